#include "tools/chat/command.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "base/str.h"
#include "tools/chat/console.h"
#include "tools/chat/conversation.h"
#include "tools/quantize_plan.h"
#include "tensor/formats/all.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

TEST(ChatCommand, Parses) {
  EXPECT_FALSE(parse_command("hello"));
  EXPECT_FALSE(parse_command(" /etc"));
  auto c = parse_command("/set temperature  0.7 ");
  ASSERT_TRUE(c);
  EXPECT_EQ(c->name, "set");
  EXPECT_EQ(c->argument, "temperature  0.7");
  EXPECT_FALSE(c->forced);
  EXPECT_TRUE(parse_command("/save! x")->forced);
  EXPECT_EQ(parse_command("/system two\nlines")->argument, "two\nlines");
  EXPECT_EQ(parse_command("/")->name, "");
}

TEST(ChatCommand, NearestWord) {
  const std::string_view words[] = {"help", "stats", "save", "load", "retry"};
  EXPECT_EQ(nearest_word("hlep", words), "help");
  EXPECT_EQ(nearest_word("stat", words), "stats");
  EXPECT_EQ(nearest_word("s", words), "stats");
  EXPECT_EQ(nearest_word("retyr", words), "retry");
  EXPECT_EQ(nearest_word("xyzzy", words), "");
  EXPECT_EQ(nearest_word("", words), "");
}

TEST(ChatCommand, Settings) {
  SamplingOptions o;
  EXPECT_TRUE(change_setting(o, "temperature", "0.25"));
  EXPECT_EQ(o.spec.temperature, 0.25f);
  EXPECT_TRUE(change_setting(o, "top-k", "40"));
  EXPECT_EQ(o.spec.top_k, 40);
  EXPECT_TRUE(change_setting(o, "seed", "18446744073709551615"));
  EXPECT_EQ(o.spec.seed, UINT64_MAX);
  EXPECT_TRUE(change_setting(o, "max_tokens", "7"));
  EXPECT_EQ(o.max_tokens, 7);
  EXPECT_TRUE(change_setting(o, "stop", "two words"));
  EXPECT_EQ(o.stop, std::vector<std::string>{"two words"});
  EXPECT_TRUE(change_setting(o, "stop", "none"));
  EXPECT_TRUE(o.stop.empty());
  const std::string before = list_settings(o);
  struct Case {
    const char *key, *value, *says;
  };
  const Case bad[] = {{"temperature", "warm", "a number"}, {"temperature", "-1", "from 0 to 100"},
                      {"temperature", "nan", "a number"},  {"temperature", "", "a number"},
                      {"top_p", "0", "above 0"},           {"top_k", "1.5", "whole number"},
                      {"max_tokens", "0", "above 0"},      {"max_tokens", "99999999999", "whole"},
                      {"temprature", "1", "temperature?"}, {"colour", "1", "no setting"}};
  for (const Case& c : bad) {
    auto r = change_setting(o, c.key, c.value);
    ASSERT_FALSE(r) << c.key << " " << c.value;
    EXPECT_NE(r.error().message.find(c.says), std::string::npos) << r.error().message;
    EXPECT_EQ(r.error().message.find("--"), std::string::npos) << r.error().message;
  }
  EXPECT_EQ(list_settings(o), before);
}

TEST(Conversation, EditsAndFiles) {
  Conversation c;
  EXPECT_FALSE(c.drop_exchange());
  EXPECT_FALSE(c.drop_answer());
  c.set_system("be brief");
  c.add("user", "hi");
  c.add("assistant", "hello\n\"x\"");
  auto back = Conversation::from_json(c.to_json());
  ASSERT_TRUE(back);
  EXPECT_EQ(back->messages(), c.messages());
  EXPECT_TRUE(c.drop_answer());
  EXPECT_EQ(c.last_role(), "user");
  EXPECT_TRUE(c.drop_exchange());
  EXPECT_EQ(c.size(), 1u);
  EXPECT_FALSE(c.drop_exchange());
  c.add("user", "again");
  c.clear();
  EXPECT_EQ(c.system(), "be brief");
  EXPECT_EQ(c.size(), 1u);
  c.set_system("");
  EXPECT_TRUE(c.empty());
  for (const char* bad : {"", "{}", "7", "[1]", "[{}]", "[{\"role\": 1}]", "{\"messages\": 3}"})
    EXPECT_FALSE(Conversation::from_json(bad)) << bad;
  EXPECT_TRUE(
      Conversation::from_json("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}"));
}

TEST(InputHistory, KeepsLinesForTheirOwnerOnly) {
  const fs::path folder =
      fs::temp_directory_path() / strf("sluice-history-%d", static_cast<int>(getpid()));
  const std::string path = (folder / "deep" / "history").string();
  const std::vector<std::string> lines = {"one", "two\nlines \\n", "three"};
  {
    InputHistory h(path);
    for (const std::string& l : lines) h.add(l);
    h.add("three");  // twice in a row counts once
    h.add("");
  }
  struct stat st = {};
  ASSERT_EQ(stat(path.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  EXPECT_EQ(InputHistory(path).lines(), lines);
  {
    std::ofstream out(path, std::ios::app);
    out << "\xff\xfe\n";
    for (int i = 0; i < 2500; ++i) out << "line " << i << "\n";
  }
  InputHistory h(path);
  EXPECT_LT(h.lines().size(), 2000u);
  EXPECT_EQ(h.lines().back(), "line 2499");
  EXPECT_EQ(InputHistory(path).lines(), h.lines());  // the file was cut too
  fs::remove_all(folder);
  InputHistory nowhere("/dev/null/folder/history");
  nowhere.add("x");
  EXPECT_EQ(nowhere.lines().size(), 1u);
}

TEST(QuantizePlan, FormatsByRule) {
  auto tensor = [](const char* name, int64_t rows, int64_t cols) {
    return TensorInfo{name, Format::f16, rows, cols, static_cast<size_t>(rows * cols * 2)};
  };
  const std::vector<TensorInfo> tied = {
      tensor("token_embd.weight", 100, 512),   tensor("blk.0.attn_norm.weight", 1, 512),
      tensor("blk.0.attn_q.weight", 512, 512), tensor("blk.0.ffn_down.weight", 512, 96),
      tensor("blk.0.odd.weight", 4, 100),      tensor("position_embd.weight", 64, 512)};
  QuantizeRules rules;
  auto formats = [&](const std::vector<TensorInfo>& tensors) {
    std::vector<Format> out;
    for (const PlannedTensor& p : plan_formats(tensors, rules)) {
      EXPECT_EQ(p.target.bytes,
                row_bytes(p.target.format, p.target.cols) * static_cast<size_t>(p.target.rows));
      EXPECT_EQ(p.fell_back, p.wanted != p.target.format);
      out.push_back(p.target.format);
    }
    return out;
  };
  using F = Format;
  rules.type = F::q4_k;
  EXPECT_EQ(formats(tied), (std::vector<F>{F::q6_k, F::f32, F::q4_k, F::q5_0, F::f16, F::f32}));
  rules.type = F::q4_0;
  EXPECT_EQ(formats(tied), (std::vector<F>{F::q6_k, F::f32, F::q4_0, F::q4_0, F::f16, F::f32}));
  rules.type = F::q6_k;
  EXPECT_EQ(formats(tied), (std::vector<F>{F::q6_k, F::f32, F::q6_k, F::q8_0, F::f16, F::f32}));
  rules.type = F::q8_0;
  EXPECT_EQ(formats(tied), (std::vector<F>{F::q8_0, F::f32, F::q8_0, F::q8_0, F::f16, F::f32}));
  rules.type = F::q4_0;
  rules.output_type = F::q8_0;
  EXPECT_EQ(formats(tied)[0], F::q8_0);
  rules.keep_embedding = true;
  EXPECT_EQ(formats(tied)[0], F::f16);
  // With an output matrix of its own the embedding is a matrix like the others.
  rules = {};
  rules.type = F::q4_k;
  std::vector<TensorInfo> untied = tied;
  untied.push_back(tensor("output.weight", 100, 288));
  EXPECT_EQ(formats(untied)[0], F::q4_k);
  EXPECT_EQ(formats(untied).back(), F::q8_0);  // Q6_K does not divide 288
}

TEST(QuantizePlan, Metadata) {
  Meta source;
  source.set("general.architecture", std::string("llama"));
  source.set("general.file_type", uint64_t{1});
  source.set("split.count", uint64_t{3});
  source.set("llama.block_count", uint64_t{2});
  const Meta meta = quantized_meta(source, Format::q8_0);
  EXPECT_EQ(meta.integer("general.file_type"), 7);
  EXPECT_EQ(meta.integer("general.quantization_version"), 2);
  EXPECT_EQ(meta.integer("llama.block_count"), 2);
  EXPECT_FALSE(meta.has("split.count"));
}

}  // namespace
}  // namespace sluice
