// Post-processors and decoders of tokenizer.json.
#include "base/str.h"
#include "text/tokenizer_json.h"

namespace sluice {

namespace {

constexpr size_t kMaxEndTokens = 64;  // tokens around a text

// ["</s>", 2]
Result<Token> read_pair(const json::object& o, const char* name) {
  const json::value* v = json_field(o, name);
  if (v == nullptr || !v->is_array() || v->get_array().size() != 2) {
    return Error{400, strf("post_processor.%s is not a token and its id", name)};
  }
  return json_token(v->get_array()[1], name);
}

Result<void> read_bert(const json::object& o, TokenizerSpec& spec) {
  Result<Token> cls = read_pair(o, "cls"), sep = read_pair(o, "sep");
  if (!cls) return cls.error();
  if (!sep) return sep.error();
  spec.prefix.insert(spec.prefix.begin(), *cls);
  spec.suffix.push_back(*sep);
  return {};
}

// The ids that a template's special token stands for.
Result<void> read_special(const json::object& o,
                          const json::object& piece,
                          std::vector<Token>& out) {
  auto name = json_text(piece, "id");
  if (!name) return name.error();
  const json::value* all = json_field(o, "special_tokens");
  const json::value* one =
      all != nullptr && all->is_object() ? all->get_object().if_contains(*name) : nullptr;
  const json::value* ids =
      one != nullptr && one->is_object() ? json_field(one->get_object(), "ids") : nullptr;
  if (ids == nullptr || !ids->is_array()) {
    return Error{400, strf("the template names %s, but special_tokens does not have its ids",
                           quote(*name).c_str())};
  }
  for (const json::value& v : ids->get_array()) {
    Result<Token> id = json_token(v, *name);
    if (!id) return id.error();
    out.push_back(*id);
  }
  if (out.size() > kMaxEndTokens) return Error{400, "the template adds too many tokens"};
  return {};
}

Result<void> read_template(const json::object& o, TokenizerSpec& spec) {
  const json::value* single = json_field(o, "single");
  if (single == nullptr || !single->is_array()) {
    return Error{400, "post_processor.single is missing or no list"};
  }
  std::vector<Token> before, after;
  int texts = 0;
  for (const json::value& v : single->get_array()) {
    if (!v.is_object()) return Error{400, "post_processor.single has an entry that is no object"};
    const json::object& entry = v.get_object();
    if (json_field(entry, "Sequence") != nullptr) {
      ++texts;
      continue;
    }
    const json::value* special = json_field(entry, "SpecialToken");
    if (special == nullptr || !special->is_object()) {
      return Error{400, "post_processor.single has an entry of an unknown kind"};
    }
    auto ok = read_special(o, special->get_object(), texts == 0 ? before : after);
    if (!ok) return ok.error();
  }
  if (texts != 1) return Error{400, "post_processor.single does not have the text once"};
  spec.prefix.insert(spec.prefix.begin(), before.begin(), before.end());
  spec.suffix.insert(spec.suffix.end(), after.begin(), after.end());
  return {};
}

Result<void> read_decoder_metaspace(const json::object& o, TokenizerSpec& spec) {
  auto replacement = json_text(o, "replacement", "\xE2\x96\x81");
  if (!replacement) return replacement.error();
  if (replacement->empty()) return Error{400, "Metaspace.replacement is empty"};
  Result<bool> prefix = json_bool(o, "add_prefix_space", true);
  if (!prefix) return prefix.error();
  auto scheme = json_text(o, "prepend_scheme", *prefix ? "always" : "never");
  if (!scheme) return scheme.error();
  DecoderStep step{.kind = DecoderStep::Kind::replace};
  step.from = *replacement;
  step.to = " ";
  spec.decoder.push_back(std::move(step));
  spec.strip_space = *scheme != "never";
  return {};
}

Result<void> read_decoder_replace(const json::object& o, TokenizerSpec& spec) {
  const json::value* pattern = json_field(o, "pattern");
  if (pattern == nullptr || !pattern->is_object()) {
    return Error{400, "the decoder's pattern is missing or no object"};
  }
  if (pattern->get_object().contains("Regex")) {
    return Error{400, "the decoder replaces by a regular expression; only text is supported"};
  }
  auto from = json_text(pattern->get_object(), "String");
  if (!from) return from.error();
  auto to = json_text(o, "content");
  if (!to) return to.error();
  if (from->empty()) return Error{400, "the decoder's pattern is empty"};
  DecoderStep step{.kind = DecoderStep::Kind::replace};
  step.from = *from;
  step.to = *to;
  spec.decoder.push_back(std::move(step));
  return {};
}

Result<void> read_decoder_strip(const json::object& o, bool fused, TokenizerSpec& spec) {
  auto content = json_text(o, "content");
  if (!content) return content.error();
  Result<size_t> start = json_count(o, "start", 0), stop = json_count(o, "stop", 0);
  if (!start) return start.error();
  if (!stop) return stop.error();
  if (content->empty()) return Error{400, "the decoder strips nothing"};
  if (!fused) {
    DecoderStep step{.kind = DecoderStep::Kind::strip};
    step.from = *content;
    step.start = *start;
    step.stop = *stop;
    spec.decoder.push_back(std::move(step));
    return {};
  }
  if (*content != " " || *start > 1 || *stop > 1) {
    return Error{400, "the decoder strips more than one space off a text"};
  }
  spec.strip_space = *start == 1;
  spec.strip_last_space = *stop == 1;
  return {};
}

}  // namespace

Result<void> read_post_processor(const json::value& value, TokenizerSpec& spec) {
  Result<std::string> type = json_type(value, "post-processor");
  if (!type) return type.error();
  const json::object& o = value.get_object();
  if (*type == "ByteLevel") return {};  // only about offsets
  if (*type == "TemplateProcessing") return read_template(o, spec);
  if (*type == "BertProcessing" || *type == "RobertaProcessing") return read_bert(o, spec);
  if (*type != "Sequence") {
    return Error{400, strf("the post-processor %s is unknown", quote(*type).c_str())};
  }
  const json::value* list = json_field(o, "processors");
  if (list == nullptr || !list->is_array()) return Error{400, "processors is no list"};
  for (const json::value& v : list->get_array()) {
    if (auto ok = read_post_processor(v, spec); !ok) return ok.error();
    if (spec.prefix.size() + spec.suffix.size() > kMaxEndTokens) {
      return Error{400, "the post-processor adds too many tokens"};
    }
  }
  return {};
}

Result<void> read_decoder(const json::value& value, bool& fused, TokenizerSpec& spec) {
  Result<std::string> type = json_type(value, "decoder");
  if (!type) return type.error();
  const json::object& o = value.get_object();
  if (spec.decoder.size() >= 64) return Error{400, "the decoder has too many steps"};
  if (*type == "Sequence") {
    const json::value* list = json_field(o, "decoders");
    if (list == nullptr || !list->is_array()) return Error{400, "decoders is no list"};
    for (const json::value& v : list->get_array()) {
      if (auto ok = read_decoder(v, fused, spec); !ok) return ok.error();
    }
    return {};
  }
  if (*type == "ByteLevel") {
    spec.decoder.push_back({.kind = DecoderStep::Kind::byte_level});
  } else if (*type == "ByteFallback") {
    spec.decoder.push_back({.kind = DecoderStep::Kind::byte_fallback});
  } else if (*type == "Fuse") {
    fused = true;
  } else if (*type == "Metaspace") {
    return read_decoder_metaspace(o, spec);
  } else if (*type == "Replace") {
    return read_decoder_replace(o, spec);
  } else if (*type == "Strip") {
    return read_decoder_strip(o, fused, spec);
  } else if (*type == "BPEDecoder") {
    auto suffix = json_text(o, "suffix", "</w>");
    if (!suffix) return suffix.error();
    if (suffix->empty()) return Error{400, "BPEDecoder.suffix is empty"};
    DecoderStep step{.kind = DecoderStep::Kind::replace};
    step.from = *suffix;
    step.to = " ";
    spec.decoder.push_back(std::move(step));
    spec.strip_last_space = true;
  } else {
    return Error{400, strf("the decoder %s is unknown", quote(*type).c_str())};
  }
  return {};
}

}  // namespace sluice
