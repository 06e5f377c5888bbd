#include "tools/flag_aliases.h"

#include <algorithm>
#include <cstdlib>
#include <span>

#include "base/str.h"

namespace sluice {

namespace {

enum class Take : uint8_t {
  alias,     // `to` stands for it; a value stays, or is translated by `values`
  on,        // a switch that says what is always so: left out
  only_one,  // the value 1 says what is always so; another gets the hint
  model,     // its value is the model, behind the prefix `to`
  hint,      // an error: `to` says what to use
};

constexpr unsigned kRun = 1, kServe = 2, kOther = 4;
constexpr unsigned kEngine = kRun | kServe | kOther;  // every command that loads a model

struct Row {
  std::string_view flag;
  unsigned commands;
  Take take;
  std::string_view to;
  int num_words = 1;             // 0: a switch
  std::string_view values = "";  // "theirs=ours ..."
};

constexpr std::string_view kPerRequest =
    "each request says how to sample; what it leaves out is the model's (--generation-config)";
constexpr std::string_view kOneGpu =
    "a process uses one GPU: leave it out, or start one server per GPU with --device cuda:N";
constexpr std::string_view kDevice = "--device auto, cpu, cuda or cuda:N says where the model runs";
constexpr std::string_view kTypes = "half=f16 float16=f16 bfloat16=bf16 float=f32 float32=f32";

constexpr Row kRows[] = {
    // The model and its files.
    {"-m", kEngine, Take::model, ""},
    {"--model", kEngine, Take::model, ""},
    {"-hf", kEngine, Take::model, "hf:"},
    {"-hfr", kEngine, Take::model, "hf:"},
    {"--hf-repo", kEngine, Take::model, "hf:"},
    {"--tokenizer", kEngine, Take::hint, "the model's own tokenizer is used: leave it out"},
    {"--trust-remote-code", kEngine, Take::hint,
     "no code that comes with a model is ever run: leave it out", 0},
    {"--no-mmap", kEngine, Take::hint, "how weights are held depends on their format: leave it out",
     0},
    {"--mlock", kEngine, Take::hint, "how weights are held depends on their format: leave it out",
     0},
    {"--chat-template", kEngine, Take::hint,
     "the model's own is used; `run --raw` uses none, `serve --allow-request-template` lets "
     "requests bring one"},
    {"--chat-template-file", kEngine, Take::hint,
     "the model's own is used; `run --raw` uses none, `serve --allow-request-template` lets "
     "requests bring one"},
    {"--jinja", kEngine, Take::on, "", 0},
    // Context, batches, cache.
    {"-c", kEngine, Take::alias, "--ctx"},
    {"--ctx-size", kEngine, Take::alias, "--ctx"},
    {"--max-model-len", kEngine, Take::alias, "--ctx"},
    {"-b", kEngine, Take::alias, "--budget"},
    {"--batch-size", kEngine, Take::alias, "--budget"},
    {"--max-num-batched-tokens", kEngine, Take::alias, "--budget"},
    {"-ub", kEngine, Take::hint, "--budget N is the tokens of a step"},
    {"--ubatch-size", kEngine, Take::hint, "--budget N is the tokens of a step"},
    {"-np", kEngine, Take::alias, "--max-seqs"},
    {"--parallel", kEngine, Take::alias, "--max-seqs"},
    {"--max-num-seqs", kEngine, Take::alias, "--max-seqs"},
    {"-cb", kEngine, Take::on, "", 0},
    {"--cont-batching", kEngine, Take::on, "", 0},
    {"-nocb", kEngine, Take::alias, "--batching=static", 0},
    {"--no-cont-batching", kEngine, Take::alias, "--batching=static", 0},
    {"--scheduling-policy", kEngine, Take::alias, "--order"},
    {"--enable-chunked-prefill", kEngine, Take::alias, "--prefill=chunked", 0},
    {"--no-enable-chunked-prefill", kEngine, Take::alias, "--prefill=whole", 0},
    {"--enable-prefix-caching", kEngine, Take::on, "", 0},
    {"--no-enable-prefix-caching", kEngine, Take::alias, "--no-prefix-cache", 0},
    {"--gpu-memory-utilization", kEngine, Take::hint,
     "--gpu-memory SIZE (like 20G) is what may be used in all, --kv-memory SIZE by the KV cache"},
    {"-ctk", kEngine, Take::hint, "--kv TYPE is the type of both K and V"},
    {"-ctv", kEngine, Take::hint, "--kv TYPE is the type of both K and V"},
    {"--cache-type-k", kEngine, Take::hint, "--kv TYPE is the type of both K and V"},
    {"--cache-type-v", kEngine, Take::hint, "--kv TYPE is the type of both K and V"},
    {"--kv-cache-dtype", kEngine, Take::alias, "--kv", 1,
     "half=f16 float16=f16 bfloat16=bf16 float32=f32 fp8=f8 fp8_e4m3=f8"},
    {"--swap-space", kEngine, Take::hint,
     "--preempt swap moves KV to host memory, --swap-memory SIZE says how much"},
    {"--cpu-offload-gb", kEngine, Take::hint,
     "--gpu-layers auto leaves layers to the CPU where the GPU has too little memory"},
    // Devices, types, threads.
    {"-ngl", kEngine, Take::alias, "--gpu-layers"},
    {"--n-gpu-layers", kEngine, Take::alias, "--gpu-layers"},
    {"-dev", kEngine, Take::hint, kDevice},
    {"-sm", kEngine, Take::hint, kOneGpu},
    {"--split-mode", kEngine, Take::hint, kOneGpu},
    {"-ts", kEngine, Take::hint, kOneGpu},
    {"--tensor-split", kEngine, Take::hint, kOneGpu},
    {"-mg", kEngine, Take::hint, kOneGpu},
    {"--main-gpu", kEngine, Take::hint, kOneGpu},
    {"-tp", kEngine, Take::only_one, kOneGpu},
    {"--tensor-parallel-size", kEngine, Take::only_one, kOneGpu},
    {"-pp", kEngine, Take::only_one, kOneGpu},
    {"--pipeline-parallel-size", kEngine, Take::only_one, kOneGpu},
    {"-dp", kEngine, Take::only_one, kOneGpu},
    {"--data-parallel-size", kEngine, Take::only_one, kOneGpu},
    {"-fa", kEngine, Take::hint, "attention never stores its score matrix: leave it out"},
    {"--flash-attn", kEngine, Take::hint, "attention never stores its score matrix: leave it out"},
    {"-tb", kEngine, Take::hint, "--threads N is for prompts and answers alike"},
    {"--threads-batch", kEngine, Take::hint, "--threads N is for prompts and answers alike"},
    {"--dtype", kEngine, Take::alias, "--dtype", 1, kTypes},
    {"--quantization", kEngine, Take::alias, "--quantize"},
    {"--enforce-eager", kEngine, Take::alias, "--no-graphs", 0},
    // Prompts and sampling.
    {"--temp", kRun, Take::alias, "--temperature"},
    {"-j", kRun, Take::alias, "--json-schema"},
    {"-jf", kRun, Take::alias, "--json-schema"},
    {"--json-schema-file", kRun, Take::alias, "--json-schema"},
    {"--grammar-file", kRun, Take::alias, "--grammar"},
    {"--repeat-penalty", kRun, Take::alias, "--repetition-penalty"},
    {"--repeat-last-n", kRun, Take::hint, "penalties look at the whole prompt and answer"},
    {"-s", kRun, Take::alias, "--seed"},
    {"--predict", kRun, Take::alias, "--max-tokens"},
    {"--n-predict", kRun, Take::alias, "--max-tokens"},
    {"--max-new-tokens", kRun, Take::alias, "--max-tokens"},
    {"--generation-config", kRun | kServe, Take::alias, "--generation-config", 1, "vllm=none"},
    {"-sys", kRun, Take::alias, "--system"},
    {"--system-prompt", kRun, Take::alias, "--system"},
    {"-cnv", kRun, Take::alias, "--interactive", 0},
    {"--conversation", kRun, Take::alias, "--interactive", 0},
    {"-no-cnv", kRun, Take::alias, "--raw", 0},
    {"--no-conversation", kRun, Take::alias, "--raw", 0},
    {"-st", kRun, Take::hint, "a prompt gets one answer: leave it out", 0},
    {"--single-turn", kRun, Take::hint, "a prompt gets one answer: leave it out", 0},
    {"--no-display-prompt", kRun, Take::on, "", 0},
    {"-v", kRun, Take::hint, "statistics are shown unless -q is given", 0},
    {"--verbose", kRun, Take::hint, "statistics are shown unless -q is given", 0},
    {"-n", kServe, Take::hint, "each request says max_tokens"},
    {"--n-predict", kServe, Take::hint, "each request says max_tokens"},
    {"--max-tokens", kServe, Take::hint, "each request says max_tokens"},
    {"--temp", kServe, Take::hint, kPerRequest},
    {"--temperature", kServe, Take::hint, kPerRequest},
    {"--top-p", kServe, Take::hint, kPerRequest},
    {"--top-k", kServe, Take::hint, kPerRequest},
    {"--min-p", kServe, Take::hint, kPerRequest},
    {"--seed", kServe, Take::hint, kPerRequest},
    {"--repeat-penalty", kServe, Take::hint, kPerRequest},
    {"--override-generation-config", kServe, Take::hint, kPerRequest},
    // The server.
    {"--api-key", kServe, Take::hint,
     "--api-key-file FILE, one key per line: every user of a machine can read command lines"},
    {"-a", kServe, Take::alias, "--served-model-name"},
    {"--alias", kServe, Take::alias, "--served-model-name"},
    {"--threads-http", kServe, Take::alias, "--io-threads"},
    {"--ssl-cert-file", kServe, Take::alias, "--tls-cert"},
    {"--ssl-certfile", kServe, Take::alias, "--tls-cert"},
    {"--ssl-key-file", kServe, Take::alias, "--tls-key"},
    {"--ssl-keyfile", kServe, Take::alias, "--tls-key"},
    {"--allowed-origins", kServe, Take::hint, "--cors ORIGIN, once for each"},
    {"--embedding", kServe, Take::on, "", 0},
    {"--embeddings", kServe, Take::on, "", 0},
    {"--metrics", kServe, Take::on, "", 0},
    {"--enable-log-requests", kServe, Take::alias, "--log-requests", 0},
    {"--disable-log-requests", kServe, Take::alias, "--no-log-requests", 0},
    {"--no-enable-log-requests", kServe, Take::alias, "--no-log-requests", 0},
};

unsigned kind_of(std::string_view command) {
  if (command == "run") return kRun;
  if (command == "serve") return kServe;
  for (const char* c : {"inspect", "perplexity", "bench throughput", "bench latency", "bench gpu"})
    if (command == c) return kOther;
  return 0;
}

const Row* find_row(std::string_view flag, unsigned command) {
  const Row* found = std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) {
    return r.flag == flag && (r.commands & command) != 0;
  });
  return found == std::end(kRows) ? nullptr : found;
}

bool is_number(const std::string& text) {
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return end != text.c_str() && *end == 0;
}

// The value as we call it.
std::string translated(std::string_view values, const std::string& theirs) {
  while (!values.empty()) {
    const std::string_view pair = values.substr(0, values.find(' '));
    values.remove_prefix(std::min(pair.size() + 1, values.size()));
    const size_t equals = pair.find('=');
    if (pair.substr(0, equals) == theirs) return std::string(pair.substr(equals + 1));
  }
  return theirs;
}

// A word of the command line: a flag with what belongs to it, or a word that stands alone.
struct Item {
  std::string flag;  // without "=value"; empty: none
  const Row* row = nullptr;
  std::vector<std::string> words;  // as typed
  std::string value;
  bool has_value = false;
};

std::vector<Item> split(unsigned command,
                        std::span<const std::string> words,
                        const FlagWords& ours) {
  std::vector<Item> items;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    Item& item = items.emplace_back();
    item.words.push_back(word);
    if (word == "--") {
      for (++i; i < words.size(); ++i) items.emplace_back().words.push_back(words[i]);
      break;
    }
    if (word.size() < 2 || word[0] != '-') continue;
    const size_t equals = word.starts_with("--") ? word.find('=') : word.npos;
    item.flag = word.substr(0, equals);
    item.row = find_row(item.flag, command);
    item.has_value = equals != word.npos;
    if (item.has_value) item.value = word.substr(equals + 1);
    const int num_words = item.row ? item.row->num_words : ours(item.flag);
    if (num_words > 0 && !item.has_value && i + 1 < words.size()) {
      item.value = words[++i];
      item.has_value = true;
      item.words.push_back(item.value);
    }
  }
  return items;
}

}  // namespace

Result<std::vector<std::string>> replace_foreign_flags(std::string_view command,
                                                       const std::vector<std::string>& words,
                                                       const FlagWords& ours) {
  const unsigned kind = kind_of(command);
  const std::vector<Item> items = split(kind, words, ours);
  bool has_model = std::any_of(items.begin(), items.end(),
                               [](const Item& i) { return i.flag.empty() && i.words[0] != "--"; });
  std::vector<std::string> out;
  std::string model;
  for (const Item& i : items) {
    const Row* row = i.row;
    // A flag of ours with their name: -m 5, and --dtype, of which only the values differ.
    const bool typed = row && row->take == Take::model && ours(i.flag) > 0 && is_number(i.value);
    if (!row || typed) {
      out.insert(out.end(), i.words.begin(), i.words.end());
      continue;
    }
    const std::string to(row->to);
    const Error hint{400, strf("%s: %s", i.flag.c_str(), to.c_str())};
    if (row->take == Take::hint) return hint;
    if (row->take == Take::only_one && i.value != "1") return hint;
    if (row->num_words > 0 && !i.has_value)
      return Error{400, strf("%s: a value is missing behind it", i.flag.c_str())};
    if (row->take == Take::alias) {
      out.push_back(to);
      if (row->num_words > 0) out.back() += "=" + translated(row->values, i.value);
    } else if (row->take == Take::model) {
      if (has_model) {
        return Error{
            400, strf("%s %s: the model is the first argument, and it is given%s", i.flag.c_str(),
                      quote(i.value).c_str(), ours(i.flag) > 0 ? "; -m N is --max-tokens" : "")};
      }
      has_model = true;
      model = to + i.value;
    }
  }
  if (!model.empty()) out.insert(out.begin(), model);
  return out;
}

}  // namespace sluice
