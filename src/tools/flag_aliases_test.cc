#include "tools/flag_aliases.h"

#include <gtest/gtest.h>

#include <map>
#include <sstream>

namespace sluice {
namespace {

int ours(std::string_view flag) {
  static const std::map<std::string_view, int> known = {{"-p", 1}, {"-m", 1},     {"-n", 1},
                                                        {"-f", 1}, {"-t", 1},     {"--ctx", 1},
                                                        {"-q", 0}, {"--dtype", 1}};
  auto it = known.find(flag);
  return it == known.end() ? -1 : it->second;
}

std::string replaced(std::string_view command, const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string w; in >> w;) words.push_back(w);
  Result<std::vector<std::string>> got = replace_foreign_flags(command, words, ours);
  if (!got) return "error: " + got.error().message;
  std::string out;
  for (const std::string& w : *got) out += (out.empty() ? "" : " ") + w;
  return out;
}

TEST(FlagAliases, SameMeaning) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"run", "x -c 4096 --temp 0", "x --ctx=4096 --temperature=0"},
      {"run", "x --ctx-size=4096", "x --ctx=4096"},
      {"run", "x -j {} --grammar-file g", "x --json-schema={} --grammar=g"},
      {"run", "x -m 5 -t 2 -n 3 -q", "x -m 5 -t 2 -n 3 -q"},
      {"run", "-m x.gguf -p hi", "x.gguf -p hi"},
      {"run", "-p hi -m x.gguf -m 5", "x.gguf -p hi -m 5"},
      {"run", "x -p -c", "x -p -c"},  // a value of ours is no flag
      {"run", "x -- -c 5", "x -- -c 5"},
      {"run", "x -no-cnv --no-display-prompt", "x --raw"},
      {"serve", "--model x --max-model-len 8192 --max-num-seqs 4", "x --ctx=8192 --max-seqs=4"},
      {"serve", "x --dtype bfloat16", "x --dtype=bf16"},
      {"serve", "x --dtype f16", "x --dtype=f16"},
      {"serve", "x --enable-prefix-caching --tensor-parallel-size 1 --enforce-eager",
       "x --no-graphs"},
      {"serve", "x --generation-config vllm", "x --generation-config=none"},
      {"serve", "x -ngl 99", "x --gpu-layers=99"},
      {"run", "x --n-gpu-layers auto", "x --gpu-layers=auto"},
      {"serve", "-hf someone/model", "hf:someone/model"},
      {"bench latency", "x --enable-chunked-prefill", "x --prefill=chunked"},
      {"tokenize", "x -c 5", "x -c 5"},  // loads no model
  };
  for (const auto& [command, line, want] : cases) EXPECT_EQ(replaced(command, line), want) << line;
}

TEST(FlagAliases, HintsNameOurs) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"run", "x -dev CUDA0", "--device"},
      {"run", "x -fa", "leave it out"},
      {"run", "x -fa on", "leave it out"},
      {"run", "x -m lots", "--max-tokens"},
      {"run", "x --model y", "first argument"},
      {"serve", "x --api-key secret", "--api-key-file"},
      {"serve", "x --gpu-memory-utilization 0.9", "--kv-memory"},
      {"serve", "x --tensor-parallel-size 2", "--device cuda:N"},
      {"serve", "x --temperature 0.5", "--generation-config"},
      {"serve", "x --max-model-len", "value is missing"},
  };
  for (const auto& [command, line, want] : cases) {
    const std::string got = replaced(command, line);
    EXPECT_EQ(got.find("error: "), 0u) << line << ": " << got;
    EXPECT_NE(got.find(want), std::string::npos) << line << ": " << got;
    EXPECT_EQ(got.find("secret"), std::string::npos);
  }
}

}  // namespace
}  // namespace sluice
