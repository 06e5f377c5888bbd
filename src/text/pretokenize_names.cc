// The pre-tokenizers that GGUF files name, as rows of patterns applied one after the other.
#include <span>

#include "base/check.h"
#include "text/pretokenize.h"

namespace sluice {

namespace {

using Known = KnownPattern::Kind;

constexpr KnownPattern kGpt2{Known::gpt2, 0, false};
constexpr KnownPattern kLlama3{Known::llama3, 3, false};
constexpr KnownPattern kQwen2{Known::llama3, 1, false};
constexpr KnownPattern kQwen35{Known::llama3_marks, 1, false};
constexpr KnownPattern kO200k{Known::o200k, 3, true};
constexpr KnownPattern kTekken{Known::o200k, 1, false};
constexpr KnownPattern kDeepseek3{Known::deepseek3, 0, false};

// Classes of characters in a row (ClassPattern), every match a piece.
constexpr const char* kDeepseekLlm[] = {
    "[\r\n]",
    "\\s?[A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293"
    "\u0295-\u02AF\u0370-\u0373\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C"
    "\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5"
    "\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77\u1D79-\u1D9A\u1E00-\u1F15"
    "\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D"
    "\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB"
    "\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124"
    "\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184"
    "\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B\uA722-\uA76F"
    "\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A"
    "\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-\U000104FB\U00010C80-\U00010CB2"
    "\U00010CC0-\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943]+",
    "\\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+",
    "\\s+$",
    "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+",
    "\\p{N}+",
};
constexpr const char* kDeepseekCoder[] = {
    "[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+", "\\p{N}",
};
constexpr const char* kDeepseek3Before[] = {
    "\\p{N}{1,3}",
    "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+",
};
constexpr const char* kFalconBefore[] = {"[\\p{P}\\$\\+<=>\\^~\\|`]+"};
constexpr const char* kFalconAfter[] = {"[0-9][0-9][0-9]"};

struct Row {
  std::string_view name;
  const KnownPattern* known = nullptr;
  bool nfc = false, ignore_merges = false, add_bos = false;
  bool digits = false;  // numbers one by one, first of all
  std::span<const char*const> before = {}, after = {};
};

constexpr Row kRows[] = {
    {.name = "default", .known = &kGpt2},
    {.name = "gpt-2", .known = &kGpt2},
    {.name = "phi-2", .known = &kGpt2},
    {.name = "mpt", .known = &kGpt2},
    {.name = "olmo", .known = &kGpt2},
    {.name = "jais", .known = &kGpt2},
    {.name = "smollm", .known = &kGpt2, .digits = true},
    {.name = "starcoder", .known = &kGpt2, .digits = true},
    {.name = "refact", .known = &kGpt2, .digits = true},
    {.name = "command-r", .known = &kGpt2, .digits = true},
    {.name = "codeshell", .known = &kGpt2, .digits = true},
    {.name = "exaone", .known = &kGpt2, .digits = true},
    {.name = "llama3", .known = &kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "llama-v3", .known = &kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "llama-bpe", .known = &kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "falcon3", .known = &kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "pixtral", .known = &kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "lfm2", .known = &kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "dbrx", .known = &kLlama3},
    {.name = "smaug-bpe", .known = &kLlama3},
    {.name = "glm4", .known = &kLlama3},
    {.name = "qwen2", .known = &kQwen2, .nfc = true},
    {.name = "deepseek-r1-qwen", .known = &kQwen2, .nfc = true},
    {.name = "stablelm2", .known = &kQwen2},
    {.name = "qwen35", .known = &kQwen35, .nfc = true},
    {.name = "gpt-4o", .known = &kO200k},
    {.name = "llama4", .known = &kO200k},
    {.name = "tekken", .known = &kTekken, .ignore_merges = true, .add_bos = true},
    {.name = "deepseek-llm", .before = kDeepseekLlm},
    {.name = "deepseek-coder", .before = kDeepseekCoder},
    {.name = "deepseek-v3", .known = &kDeepseek3, .before = kDeepseek3Before},
    {.name = "falcon", .known = &kGpt2, .before = kFalconBefore, .after = kFalconAfter},
};

void add_patterns(std::span<const char* const> patterns, std::vector<PreTokenizerStep>& steps) {
  for (const char* pattern : patterns) {
    PreTokenizerStep step;
    step.kind = PreTokenizerStep::Kind::split;
    Result<std::shared_ptr<const Regex>> regex = Regex::compile(pattern);
    CHECK(regex.has_value());
    step.pattern.regex = *regex;
    steps.push_back(std::move(step));
  }
}

}  // namespace

std::optional<NamedPreTokenizer> find_pre_tokenizer(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name != name) continue;
    NamedPreTokenizer out;
    out.nfc = row.nfc;
    out.ignore_merges = row.ignore_merges;
    out.add_bos = row.add_bos;
    if (row.digits) {
      out.steps.emplace_back();
      out.steps.back().kind = PreTokenizerStep::Kind::digits;
    }
    add_patterns(row.before, out.steps);
    if (row.known != nullptr) {
      out.steps.emplace_back();
      out.steps.back().known = *row.known;
    }
    add_patterns(row.after, out.steps);
    return out;
  }
  return std::nullopt;
}

std::string known_pre_tokenizers() {
  std::string out;
  for (const Row& r : kRows) {
    if (!out.empty()) out += ", ";
    out += r.name;
  }
  return out;
}

}  // namespace sluice
