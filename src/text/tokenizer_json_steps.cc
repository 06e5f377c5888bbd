// Normalizers and pre-tokenizers of tokenizer.json.
#include "base/str.h"
#include "text/tokenizer_json.h"
#include "text/unicode.h"

namespace sluice {

namespace {

constexpr size_t kMaxSteps = 64;
constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Result<std::string> base64_decode(std::string_view text) {
  std::string out;
  uint32_t bits = 0;
  int num_bits = 0;
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  for (char c : text) {
    int v = c >= 'A' && c <= 'Z'   ? c - 'A'
            : c >= 'a' && c <= 'z' ? c - 'a' + 26
            : c >= '0' && c <= '9' ? c - '0' + 52
            : c == '+'             ? 62
            : c == '/'             ? 63
                                   : -1;
    if (v < 0) return Error{400, "precompiled_charsmap is not base64"};
    bits = bits << 6 | static_cast<uint32_t>(v);
    num_bits += 6;
    if (num_bits >= 8) out.push_back(static_cast<char>(bits >> (num_bits -= 8) & 0xFF));
  }
  return out;
}

// {"String": ...} or {"Regex": ...}
Result<TextPattern> read_pattern(const json::object& o) {
  const json::value* v = json_field(o, "pattern");
  if (v == nullptr || !v->is_object()) return Error{400, "pattern is missing or no object"};
  TextPattern out;
  if (const json::value* regex = json_field(v->get_object(), "Regex")) {
    if (!regex->is_string()) return Error{400, "pattern.Regex is no text"};
    Result<std::shared_ptr<const Regex>> made = Regex::compile(regex->get_string());
    if (!made) return made.error();
    out.regex = *made;
    return out;
  }
  auto text = json_text(v->get_object(), "String");
  if (!text) return text.error();
  if (text->empty()) return Error{400, "pattern.String is empty"};
  out.literal = *text;
  return out;
}

struct NamedKind {
  const char* name;
  NormalizerStep::Kind kind;
};
constexpr NamedKind kPlainNormalizers[] = {
    {"NFC", NormalizerStep::Kind::nfc},
    {"NFD", NormalizerStep::Kind::nfd},
    {"NFKC", NormalizerStep::Kind::nfkc},
    {"NFKD", NormalizerStep::Kind::nfkd},
    {"Lowercase", NormalizerStep::Kind::lowercase},
    {"StripAccents", NormalizerStep::Kind::strip_accents},
    {"Nmt", NormalizerStep::Kind::nmt},
    {"ByteLevel", NormalizerStep::Kind::byte_level},
};

Result<void> read_flags(const json::object& o,
                        std::initializer_list<std::pair<const char*, bool*>> flags) {
  for (const auto& [name, flag] : flags) {
    Result<bool> b = json_bool(o, name, *flag);
    if (!b) return b.error();
    *flag = *b;
  }
  return {};
}

Result<void> read_bert(const json::object& o, NormalizerStep& step) {
  step.kind = NormalizerStep::Kind::bert;
  step.clean = step.chinese = step.lower = true;
  auto ok = read_flags(o, {{"clean_text", &step.clean},
                           {"handle_chinese_chars", &step.chinese},
                           {"lowercase", &step.lower}});
  if (!ok) return ok.error();
  step.accents = step.lower;  // unless the file says
  return read_flags(o, {{"strip_accents", &step.accents}});
}

Result<void> read_replace(const json::object& o, NormalizerStep& step) {
  step.kind = NormalizerStep::Kind::replace;
  Result<TextPattern> pattern = read_pattern(o);
  if (!pattern) return pattern.error();
  step.pattern = *pattern;
  auto content = json_text(o, "content");
  if (!content) return content.error();
  step.content = *content;
  return {};
}

Result<void> read_charsmap(const json::object& o, NormalizerStep& step) {
  step.kind = NormalizerStep::Kind::charsmap;
  auto text = json_text(o, "precompiled_charsmap");
  if (!text) return text.error();
  Result<std::string> blob = base64_decode(*text);
  if (!blob) return blob.error();
  Result<std::shared_ptr<const Charsmap>> map = Charsmap::parse(*blob);
  if (!map) return map.error();
  step.charsmap = *map;
  return {};
}

// The elements of a sequence, one after the other.
template <typename Steps, typename Read>
Result<void> read_sequence(const json::object& o, const char* name, Steps& steps, Read read) {
  const json::value* list = json_field(o, name);
  if (list == nullptr || !list->is_array()) return Error{400, strf("%s is no list", name)};
  for (const json::value& v : list->get_array()) {
    if (auto ok = read(v, steps); !ok) return ok.error();
  }
  return {};
}

Result<SplitBehavior> read_behavior(const json::object& o, const char* otherwise) {
  static constexpr std::pair<const char*, SplitBehavior> kNames[] = {
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"MergedWithPrevious", SplitBehavior::with_previous},
      {"MergedWithNext", SplitBehavior::with_next},
      {"Contiguous", SplitBehavior::contiguous},
  };
  auto name = json_text(o, "behavior", otherwise);
  if (!name) return name.error();
  for (const auto& [known, behavior] : kNames) {
    if (*name == known) return behavior;
  }
  return Error{400, strf("behavior is %s, which is unknown", quote(*name).c_str())};
}

PreTokenizerStep step_of(PreTokenizerStep::Kind kind) {
  PreTokenizerStep step;
  step.kind = kind;
  return step;
}

Result<void> read_byte_level(const json::object& o, std::vector<PreTokenizerStep>& steps) {
  bool prefix = true, regex = true;
  auto ok = read_flags(o, {{"add_prefix_space", &prefix}, {"use_regex", &regex}});
  if (!ok) return ok.error();
  if (prefix) steps.push_back(step_of(PreTokenizerStep::Kind::prefix_space));
  if (regex) {
    steps.push_back(step_of(PreTokenizerStep::Kind::known));
    steps.back().known = *find_known_pattern(kGpt2);
  }
  steps.push_back(step_of(PreTokenizerStep::Kind::byte_level));
  return {};
}

Result<void> read_metaspace(const json::object& o, PreTokenizerStep& step) {
  using Prepend = PreTokenizerStep::Prepend;
  step.kind = PreTokenizerStep::Kind::metaspace;
  auto replacement = json_text(o, "replacement", "\xE2\x96\x81");
  if (!replacement) return replacement.error();
  step.replacement = *replacement;
  if (step.replacement.empty() ||
      code_point_at(step.replacement, 0).size != step.replacement.size()) {
    return Error{400, "Metaspace.replacement is not one character"};
  }
  bool prefix = true;
  if (auto ok = read_flags(o, {{"add_prefix_space", &prefix}, {"split", &step.split}}); !ok) {
    return ok.error();
  }
  auto scheme = json_text(o, "prepend_scheme", prefix ? "always" : "never");
  if (!scheme) return scheme.error();
  if (*scheme != "always" && *scheme != "never" && *scheme != "first") {
    return Error{400,
                 strf("prepend_scheme is %s; known: always, first, never", quote(*scheme).c_str())};
  }
  step.prepend = *scheme == "always"  ? Prepend::always
                 : *scheme == "first" ? Prepend::first
                                      : Prepend::never;
  return {};
}

Result<void> read_split(const json::object& o, PreTokenizerStep& step) {
  Result<SplitBehavior> behavior = read_behavior(o, "Isolated");
  if (!behavior) return behavior.error();
  step.behavior = *behavior;
  if (auto ok = read_flags(o, {{"invert", &step.invert}}); !ok) return ok.error();
  // All of a known pattern's text is matched, but for deepseek3's.
  const json::value* pattern = json_field(o, "pattern");
  const json::value* regex = pattern != nullptr && pattern->is_object()
                                 ? pattern->get_object().if_contains("Regex")
                                 : nullptr;
  if (regex != nullptr && regex->is_string()) {
    std::optional<KnownPattern> known = find_known_pattern(regex->get_string());
    bool all = known && known->kind != KnownPattern::Kind::deepseek3;
    bool pieces = step.behavior == SplitBehavior::isolated ||
                  (all && step.behavior == SplitBehavior::removed && step.invert);
    if (known && pieces) {
      step.kind = PreTokenizerStep::Kind::known;
      step.known = *known;
      return {};
    }
  }
  step.kind = PreTokenizerStep::Kind::split;
  Result<TextPattern> made = read_pattern(o);
  if (!made) return made.error();
  step.pattern = *made;
  return {};
}

Result<void> read_delimiter(const json::object& o, PreTokenizerStep& step) {
  step.kind = PreTokenizerStep::Kind::split;
  step.behavior = SplitBehavior::removed;
  auto delimiter = json_text(o, "delimiter");
  if (!delimiter) return delimiter.error();
  if (delimiter->empty() || code_point_at(*delimiter, 0).size != delimiter->size()) {
    return Error{400, "CharDelimiterSplit.delimiter is not one character"};
  }
  step.pattern.literal = *delimiter;
  return {};
}

Result<void> read_one_pre_tokenizer(const std::string& type,
                                    const json::object& o,
                                    std::vector<PreTokenizerStep>& steps) {
  using Kind = PreTokenizerStep::Kind;
  if (type == "ByteLevel") return read_byte_level(o, steps);
  steps.emplace_back();
  PreTokenizerStep& step = steps.back();
  if (type == "Metaspace") return read_metaspace(o, step);
  if (type == "Split") return read_split(o, step);
  if (type == "CharDelimiterSplit") return read_delimiter(o, step);
  if (type == "Digits") {
    bool single = false;
    if (auto ok = read_flags(o, {{"individual_digits", &single}}); !ok) return ok.error();
    step.kind = Kind::digits;
    step.behavior = single ? SplitBehavior::isolated : SplitBehavior::contiguous;
  } else if (type == "Punctuation") {
    Result<SplitBehavior> behavior = read_behavior(o, "Isolated");
    if (!behavior) return behavior.error();
    step.kind = Kind::punctuation;
    step.behavior = *behavior;
  } else if (type == "FixedLength") {
    Result<size_t> length = json_count(o, "length", 5);
    if (!length) return length.error();
    if (*length == 0) return Error{400, "FixedLength.length is 0"};
    step.kind = Kind::fixed_length;
    step.length = *length;
  } else if (type == "Whitespace") {
    step.kind = Kind::whitespace;
  } else if (type == "WhitespaceSplit") {
    step.kind = Kind::whitespace_split;
  } else if (type == "BertPreTokenizer") {
    step.kind = Kind::bert;
  } else {
    return Error{400, strf("the pre-tokenizer %s is unknown", quote(type).c_str())};
  }
  return {};
}

}  // namespace

Result<void> read_normalizer(const json::value& value, std::vector<NormalizerStep>& steps) {
  Result<std::string> type = json_type(value, "normalizer");
  if (!type) return type.error();
  const json::object& o = value.get_object();
  if (*type == "Sequence") return read_sequence(o, "normalizers", steps, read_normalizer);
  if (steps.size() >= kMaxSteps) return Error{400, "the normalizer has too many steps"};
  steps.emplace_back();
  NormalizerStep& step = steps.back();
  for (const NamedKind& k : kPlainNormalizers) {
    if (*type != k.name) continue;
    step.kind = k.kind;
    return {};
  }
  if (*type == "BertNormalizer") return read_bert(o, step);
  if (*type == "Replace") return read_replace(o, step);
  if (*type == "Precompiled") return read_charsmap(o, step);
  if (*type == "Strip") {
    step.kind = NormalizerStep::Kind::strip;
    step.left = step.right = true;
    return read_flags(o, {{"strip_left", &step.left}, {"strip_right", &step.right}});
  }
  if (*type == "Prepend") {
    step.kind = NormalizerStep::Kind::prepend;
    auto content = json_text(o, "prepend");
    if (!content) return content.error();
    step.content = *content;
    return {};
  }
  return Error{400, strf("the normalizer %s is unknown", quote(*type).c_str())};
}

Result<void> read_pre_tokenizer(const json::value& value, std::vector<PreTokenizerStep>& steps) {
  Result<std::string> type = json_type(value, "pre-tokenizer");
  if (!type) return type.error();
  const json::object& o = value.get_object();
  if (*type == "Sequence") return read_sequence(o, "pretokenizers", steps, read_pre_tokenizer);
  if (steps.size() >= kMaxSteps) return Error{400, "the pre-tokenizer has too many steps"};
  return read_one_pre_tokenizer(*type, o, steps);
}

}  // namespace sluice
