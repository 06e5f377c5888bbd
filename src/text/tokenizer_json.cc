#include "text/tokenizer_json.h"

#include <algorithm>
#include <unordered_map>

#include <boost/json/monotonic_resource.hpp>
#include <boost/json/parse.hpp>

#include "base/str.h"
#include "text/byte_level.h"

namespace sluice {

namespace {

constexpr int64_t kMaxToken = int64_t{1} << 24;

// Ids may leave gaps, which cost memory: no more of them than this beside the tokens.
constexpr size_t kMaxGaps = 65536;

struct Reader {
  TokenizerSpec spec;
  std::unordered_map<std::string, Token> ids;  // of the model's vocabulary
  size_t num_given = 0;                        // tokens that the file has

  Result<void> put(Token id, std::string_view text, TokenType type);
  Result<void> read_bpe(const json::object& model);
  Result<void> read_bpe_options(const json::object& model);
  Result<void> read_merges(const json::object& model);
  Result<void> read_unigram(const json::object& model);
  Result<void> read_model(const json::value& value);
  Result<void> read_added(const json::value& value);
  void choose_byte_bpe();
};

Result<void> Reader::put(Token id, std::string_view text, TokenType type) {
  const size_t at = static_cast<size_t>(id);
  ++num_given;
  if (at >= spec.tokens.size()) {
    if (at >= 2 * num_given + kMaxGaps) {
      return Error{
          400, strf("token %s has id %d, far above the number of tokens", quote(text).c_str(), id)};
    }
    spec.tokens.resize(at + 1);
    spec.types.resize(at + 1, TokenType::unused);
  }
  if (spec.types[at] != TokenType::unused) {
    return Error{400, strf("id %d is that of two tokens, %s and %s", id,
                           quote(spec.tokens[at]).c_str(), quote(text).c_str())};
  }
  spec.tokens[at] = text;
  spec.types[at] = type;
  return {};
}

Result<void> Reader::read_bpe_options(const json::object& model) {
  BpeOptions& o = spec.model.bpe;
  if (const json::value* dropout = json_field(model, "dropout")) {
    if (!dropout->is_number() || dropout->to_number<double>() != 0) {
      return Error{400, "model.dropout is set; tokens would be random"};
    }
  }
  const std::pair<const char*, bool*> flags[] = {{"fuse_unk", &o.fuse_unk},
                                                 {"byte_fallback", &o.byte_fallback},
                                                 {"ignore_merges", &o.ignore_merges}};
  for (const auto& [name, flag] : flags) {
    Result<bool> b = json_bool(model, name, false);
    if (!b) return b.error();
    *flag = *b;
  }
  auto prefix = json_text(model, "continuing_subword_prefix", "");
  if (!prefix) return prefix.error();
  auto suffix = json_text(model, "end_of_word_suffix", "");
  if (!suffix) return suffix.error();
  auto unk = json_text(model, "unk_token", "");
  if (!unk) return unk.error();
  o.prefix = *prefix;
  o.suffix = *suffix;
  o.drop_special_merges = true;
  if (json_field(model, "unk_token") != nullptr) {
    auto it = ids.find(*unk);
    if (it == ids.end()) {
      return Error{400,
                   strf("model.unk_token is %s, which the vocabulary lacks", quote(*unk).c_str())};
    }
    o.unk = it->second;
  }
  return {};
}

Result<void> Reader::read_merges(const json::object& model) {
  const json::value* merges = json_field(model, "merges");
  if (merges == nullptr || !merges->is_array()) {
    return Error{400, "model.merges is missing or no list"};
  }
  spec.model.merges.reserve(merges->get_array().size());
  for (const json::value& m : merges->get_array()) {
    if (m.is_string()) {
      std::string_view line = m.get_string();
      size_t space = line.find(' ');
      if (line.starts_with("#version")) continue;
      if (space == line.npos || line.find(' ', space + 1) != line.npos) {
        return Error{400, strf("merge %zu (%s) is not two tokens with a space between",
                               spec.model.merges.size(), quote(line).c_str())};
      }
      spec.model.merges.push_back(
          {std::string(line.substr(0, space)), std::string(line.substr(space + 1))});
      continue;
    }
    if (!m.is_array() || m.get_array().size() != 2 || !m.get_array()[0].is_string() ||
        !m.get_array()[1].is_string()) {
      return Error{400, strf("merge %zu is not two tokens", spec.model.merges.size())};
    }
    spec.model.merges.push_back(
        {std::string(m.get_array()[0].get_string()), std::string(m.get_array()[1].get_string())});
  }
  return {};
}

Result<void> Reader::read_bpe(const json::object& model) {
  spec.model.kind = ModelSpec::Kind::char_bpe;
  const json::value* vocab = json_field(model, "vocab");
  if (vocab == nullptr || !vocab->is_object()) {
    return Error{400, "model.vocab is missing or no object"};
  }
  const json::object& entries = vocab->get_object();
  ids.reserve(entries.size());
  // Sizes first: ids come in any order.
  Token last = -1;
  for (const auto& [text, value] : entries) {
    Result<Token> id = json_token(value, text);
    if (!id) return id.error();
    last = std::max(last, *id);
  }
  if (static_cast<size_t>(last + 1) > 2 * entries.size() + kMaxGaps) {
    return Error{400, strf("the vocabulary has %zu tokens but an id of %d", entries.size(), last)};
  }
  spec.tokens.resize(static_cast<size_t>(last + 1));
  spec.types.resize(spec.tokens.size(), TokenType::unused);
  for (const auto& [text, value] : entries) {
    Token id = static_cast<Token>(value.to_number<int64_t>());
    if (auto ok = put(id, text, TokenType::normal); !ok) return ok.error();
    if (!ids.emplace(text, id).second) {
      return Error{400, strf("the vocabulary has %s twice", quote(text).c_str())};
    }
  }
  if (auto ok = read_merges(model); !ok) return ok.error();
  return read_bpe_options(model);
}

Result<void> Reader::read_unigram(const json::object& model) {
  spec.model.kind = ModelSpec::Kind::unigram;
  const json::value* vocab = json_field(model, "vocab");
  if (vocab == nullptr || !vocab->is_array()) {
    return Error{400, "model.vocab is missing or no list"};
  }
  for (const json::value& v : vocab->get_array()) {
    const json::array* pair = v.if_array();
    if (pair == nullptr || pair->size() != 2 || !(*pair)[0].is_string() ||
        !(*pair)[1].is_number()) {
      return Error{400, strf("token %zu of model.vocab is not a text and a score", num_given)};
    }
    std::string text((*pair)[0].get_string());
    Token id = static_cast<Token>(num_given);
    if (id >= kMaxToken) return Error{400, "model.vocab has too many tokens"};
    spec.model.scores.push_back((*pair)[1].to_number<double>());
    ids[text] = id;
    if (auto ok = put(id, text, TokenType::normal); !ok) return ok.error();
  }
  Result<bool> fallback = json_bool(model, "byte_fallback", false);
  if (!fallback) return fallback.error();
  spec.model.byte_fallback = *fallback;
  if (const json::value* unk = json_field(model, "unk_id")) {
    Result<Token> id = json_token(*unk, "model.unk_id");
    if (!id) return id.error();
    if (static_cast<size_t>(*id) >= spec.tokens.size()) {
      return Error{400, strf("model.unk_id %d is outside the vocabulary", *id)};
    }
    spec.model.unk = *id;
  }
  return {};
}

Result<void> Reader::read_model(const json::value& value) {
  if (!value.is_object()) return Error{400, "model is no object"};
  const json::object& model = value.get_object();
  auto type = json_text(model, "type", model.contains("merges") ? "BPE" : "");
  if (!type) return type.error();
  if (*type == "BPE") return read_bpe(model);
  if (*type == "Unigram") return read_unigram(model);
  return Error{400, strf("model.type is %s; known: BPE, Unigram", quote(*type).c_str())};
}

Result<void> Reader::read_added(const json::value& value) {
  if (!value.is_array()) return Error{400, "added_tokens is no list"};
  for (const json::value& v : value.get_array()) {
    if (!v.is_object()) return Error{400, "added_tokens has an entry that is no object"};
    const json::object& o = v.get_object();
    AddedToken a;
    auto content = json_text(o, "content");
    if (!content) return content.error();
    a.content = *content;
    if (a.content.empty()) continue;
    const std::pair<const char*, bool*> flags[] = {{"special", &a.special},
                                                   {"single_word", &a.single_word},
                                                   {"lstrip", &a.lstrip},
                                                   {"rstrip", &a.rstrip}};
    for (const auto& [name, flag] : flags) {
      Result<bool> b = json_bool(o, name, false);
      if (!b) return b.error();
      *flag = *b;
    }
    Result<bool> normalized = json_bool(o, "normalized", !a.special);
    if (!normalized) return normalized.error();
    a.normalized = *normalized;
    // A token of the model keeps the model's id.
    if (auto it = ids.find(a.content); it != ids.end()) {
      a.id = it->second;
      if (a.special) spec.types[static_cast<size_t>(a.id)] = TokenType::control;
    } else {
      const json::value* given = json_field(o, "id");
      if (given == nullptr) return Error{400, "added_tokens has an entry without id"};
      Result<Token> id = json_token(*given, a.content);
      if (!id) return id.error();
      a.id = *id;
      TokenType type = a.special ? TokenType::control : TokenType::user_defined;
      if (auto ok = put(a.id, a.content, type); !ok) return ok.error();
      ids.emplace(a.content, a.id);
    }
    spec.added.push_back(std::move(a));
  }
  return {};
}

// BPE over the byte-level alphabet can start from bytes, unless a byte without a token would become
// something.
void Reader::choose_byte_bpe() {
  using Kind = PreTokenizerStep::Kind;
  if (spec.model.kind != ModelSpec::Kind::char_bpe) return;
  const BpeOptions& o = spec.model.bpe;
  size_t levels = 0;
  for (const PreTokenizerStep& s : spec.pre_tokenizer) levels += s.kind == Kind::byte_level;
  for (const NormalizerStep& s : spec.normalizer) {
    levels += 2 * (s.kind == NormalizerStep::Kind::byte_level);
  }
  if (levels != 1 || spec.pre_tokenizer.back().kind != Kind::byte_level) return;
  if (!o.prefix.empty() || !o.suffix.empty()) return;
  for (int b = 0; b < 256 && (o.byte_fallback || o.unk != kNoToken); ++b) {
    auto it = ids.find(byte_level_char(static_cast<uint8_t>(b)));
    if (it == ids.end() || spec.types[static_cast<size_t>(it->second)] != TokenType::normal) return;
  }
  spec.model.kind = ModelSpec::Kind::byte_bpe;
  spec.pre_tokenizer.pop_back();
  if (spec.decoder.empty()) spec.decoder.push_back({});
}

}  // namespace

const json::value* json_field(const json::object& object, std::string_view name) {
  const json::value* v = object.if_contains(name);
  return v == nullptr || v->is_null() ? nullptr : v;
}

Result<bool> json_bool(const json::object& object, std::string_view name, bool otherwise) {
  const json::value* v = json_field(object, name);
  if (v == nullptr) return otherwise;
  if (!v->is_bool()) return Error{400, strf("%s is not true or false", std::string(name).c_str())};
  return v->get_bool();
}

Result<std::string> json_text(const json::object& object,
                              std::string_view name,
                              std::string_view otherwise) {
  const json::value* v = json_field(object, name);
  if (v == nullptr) return std::string(otherwise);
  if (!v->is_string()) return Error{400, strf("%s is no text", std::string(name).c_str())};
  return std::string(v->get_string());
}

Result<std::string> json_text(const json::object& object, std::string_view name) {
  if (json_field(object, name) == nullptr) {
    return Error{400, strf("%s is missing", std::string(name).c_str())};
  }
  return json_text(object, name, "");
}

Result<size_t> json_count(const json::object& object, std::string_view name, size_t otherwise) {
  const json::value* v = json_field(object, name);
  if (v == nullptr) return otherwise;
  if (!v->is_int64() || v->get_int64() < 0 || v->get_int64() > kMaxToken) {
    return Error{400, strf("%s is no count", std::string(name).c_str())};
  }
  return static_cast<size_t>(v->get_int64());
}

Result<Token> json_token(const json::value& value, std::string_view what) {
  if (!value.is_int64() || value.get_int64() < 0 || value.get_int64() >= kMaxToken) {
    return Error{400, strf("the id of %s is not an integer from 0 to %lld", quote(what).c_str(),
                           static_cast<long long>(kMaxToken - 1))};
  }
  return static_cast<Token>(value.get_int64());
}

Result<std::string> json_type(const json::value& value, std::string_view what) {
  if (!value.is_object()) {
    return Error{400, strf("the %s is no object", std::string(what).c_str())};
  }
  return json_text(value.get_object(), "type");
}

Result<TokenizerSpec> spec_from_json(std::string_view text) {
  auto failed = [](const Error& e) { return Error{e.code, "tokenizer.json: " + e.message}; };
  // Hundreds of thousands of small values: one block after the other, and all gone at once.
  json::monotonic_resource memory;
  json::parse_options options;
  options.max_depth = 64;
  json::error_code ec;
  const json::value parsed = json::parse(text, ec, &memory, options);
  if (ec) return failed({400, strf("invalid JSON: %s", ec.message().c_str())});
  if (!parsed.is_object()) return Error{400, "tokenizer.json is no object"};
  const json::object& root = parsed.get_object();
  const json::value* model = json_field(root, "model");
  if (model == nullptr) return Error{400, "tokenizer.json: model is missing"};
  Reader r;
  if (auto ok = r.read_model(*model); !ok) return failed(ok.error());
  auto section = [&](const char* name, auto read) -> Result<void> {
    const json::value* v = json_field(root, name);
    return v == nullptr ? Result<void>() : read(*v);
  };
  bool fused = false;
  const Result<void> steps[] = {
      section("added_tokens", [&](const json::value& v) { return r.read_added(v); }),
      section("normalizer",
              [&](const json::value& v) { return read_normalizer(v, r.spec.normalizer); }),
      section("pre_tokenizer",
              [&](const json::value& v) { return read_pre_tokenizer(v, r.spec.pre_tokenizer); }),
      section("post_processor",
              [&](const json::value& v) { return read_post_processor(v, r.spec); }),
      section("decoder", [&](const json::value& v) { return read_decoder(v, fused, r.spec); }),
  };
  for (const Result<void>& ok : steps) {
    if (!ok) return failed(ok.error());
  }
  r.choose_byte_bpe();
  if (r.spec.prefix.size() == 1) r.spec.bos = r.spec.prefix[0];
  return std::move(r.spec);
}

}  // namespace sluice
