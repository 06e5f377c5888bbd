#include "load/vocab.h"

#include <algorithm>

#include "base/log.h"
#include "base/str.h"
#include "text/pretokenize.h"

namespace sluice {

namespace {

std::string key(const char* name) { return std::string("tokenizer.ggml.") + name; }

Result<Token> token_id(const Meta& meta, const char* name, size_t num_tokens) {
  if (!meta.has(key(name))) return kNoToken;
  std::optional<int64_t> id = meta.integer(key(name));
  if (!id) return Error{400, strf("tokenizer.ggml.%s is not an integer", name)};
  // Files write -1 (as 32 or 64 bits) for "none".
  if (*id == -1 || *id == int64_t{UINT32_MAX}) return kNoToken;
  if (*id < 0 || static_cast<uint64_t>(*id) >= num_tokens) {
    return Error{400, strf("tokenizer.ggml.%s is %lld, outside the vocabulary of %zu tokens", name,
                           static_cast<long long>(*id), num_tokens)};
  }
  return static_cast<Token>(*id);
}

Result<void> read_token_ids(const Meta& meta, VocabSpec& spec) {
  const std::pair<const char*, Token*> ids[] = {{"bos_token_id", &spec.bos},
                                                {"eos_token_id", &spec.eos},
                                                {"eot_token_id", &spec.eot},
                                                {"unknown_token_id", &spec.unk},
                                                {"padding_token_id", &spec.pad}};
  for (const auto& [name, id] : ids) {
    Result<Token> t = token_id(meta, name, spec.tokens.size());
    if (!t) return t.error();
    *id = *t;
  }
  return {};
}

Result<void> read_types(const Meta& meta, VocabSpec& spec) {
  const std::vector<int64_t>* types = meta.integers(key("token_type"));
  if (types == nullptr) return {};
  spec.types.reserve(types->size());
  for (int64_t t : *types) {
    // 0 is "undefined", which writers use for ordinary tokens.
    if (t < 0 || t > 6) {
      return Error{400, strf("tokenizer.ggml.token_type has the unknown type %lld",
                             static_cast<long long>(t))};
    }
    spec.types.push_back(t == 0 ? TokenType::normal : static_cast<TokenType>(t));
  }
  return {};
}

// SentencePiece's normalizer, where the file has it.
Result<void> read_normalizer(const Meta& meta, VocabSpec& spec) {
  spec.remove_extra_spaces =
      meta.boolean(key("remove_extra_whitespaces")).value_or(spec.remove_extra_spaces);
  const std::vector<int64_t>* bytes = meta.integers(key("precompiled_charsmap"));
  if (bytes == nullptr) return {};
  spec.charsmap.reserve(bytes->size());
  for (int64_t b : *bytes) {
    if (b < -128 || b > 255) {
      return Error{400, "tokenizer.ggml.precompiled_charsmap has a number that is no byte"};
    }
    spec.charsmap.push_back(static_cast<char>(b));
  }
  return {};
}

// The ids beside the vocabulary, and whether BOS and EOS go around every text.
Result<void> read_ids(const Meta& meta, TokenizerSpec& spec) {
  const std::pair<const char*, Token*> ids[] = {{"bos_token_id", &spec.bos},
                                                {"eos_token_id", &spec.eos},
                                                {"eot_token_id", &spec.eot},
                                                {"padding_token_id", &spec.pad}};
  for (const auto& [name, id] : ids) {
    Result<Token> t = token_id(meta, name, spec.tokens.size());
    if (!t) return t.error();
    if (*t != kNoToken) *id = *t;
  }
  // By spelling, where no id is given.
  const std::pair<const char*, Token*> spelled[] = {{"bos_token", &spec.bos},
                                                    {"eos_token", &spec.eos}};
  for (const auto& [name, id] : spelled) {
    const std::string* text = meta.string(std::string("tokenizer.huggingface.") + name);
    if (text == nullptr || meta.has(key(name) + "_id")) continue;
    auto it = std::find(spec.tokens.begin(), spec.tokens.end(), *text);
    if (it != spec.tokens.end()) *id = static_cast<Token>(it - spec.tokens.begin());
  }
  if (std::optional<bool> add = meta.boolean(key("add_bos_token"))) {
    bool has = !spec.prefix.empty() && spec.prefix.front() == spec.bos;
    if (has && !*add) spec.prefix.erase(spec.prefix.begin());
    if (!has && *add && spec.bos != kNoToken) spec.prefix.insert(spec.prefix.begin(), spec.bos);
  }
  if (std::optional<bool> add = meta.boolean(key("add_eos_token"))) {
    bool has = !spec.suffix.empty() && spec.suffix.back() == spec.eos;
    if (has && !*add) spec.suffix.pop_back();
    if (!has && *add && spec.eos != kNoToken) spec.suffix.push_back(spec.eos);
  }
  return {};
}

// Ids beyond the vocabulary are left out: configurations name rows that no token uses.
void read_eog(const Meta& meta, TokenizerSpec& spec) {
  for (const char* name : {"tokenizer.ggml.eos_token_ids", "general.eos_token_ids"}) {
    const std::vector<int64_t>* ids = meta.integers(name);
    if (ids == nullptr) continue;
    for (int64_t id : *ids) {
      if (id >= 0 && static_cast<uint64_t>(id) < spec.tokens.size()) {
        spec.more_eog.push_back(static_cast<Token>(id));
      }
    }
  }
}

// Marks to fill in the middle, by their names today and before. Some without the others are none.
Result<void> read_gap(const Meta& meta, TokenizerSpec& spec) {
  GapTokens gap;
  const std::pair<const char*, Token*> ids[] = {
      {"fim_pre_token_id", &gap.prefix}, {"prefix_token_id", &gap.prefix},
      {"fim_suf_token_id", &gap.suffix}, {"suffix_token_id", &gap.suffix},
      {"fim_mid_token_id", &gap.middle}, {"middle_token_id", &gap.middle}};
  for (const auto& [name, id] : ids) {
    Result<Token> t = token_id(meta, name, spec.tokens.size());
    if (!t) return t.error();
    if (*id == kNoToken) *id = *t;
  }
  if (gap.known()) spec.gap = gap;
  return {};
}

// The kind and its defaults for what the file may leave out.
Result<void> read_kind(const Meta& meta, VocabSpec& spec) {
  const std::string* model = meta.string(key("model"));
  if (model == nullptr) return Error{400, "the file has no tokenizer (tokenizer.ggml.model)"};
  if (*model == "gpt2") {
    spec.kind = VocabSpec::Kind::bpe;
  } else if (*model == "llama") {
    spec.kind = VocabSpec::Kind::spm;
    spec.add_bos = spec.add_space_prefix = true;
  } else if (*model == "t5") {
    spec.kind = VocabSpec::Kind::unigram;
    spec.add_space_prefix = spec.remove_extra_spaces = spec.add_eos = true;
  } else if (*model == "gemma4") {
    spec.kind = VocabSpec::Kind::char_bpe;
    spec.add_bos = true;
  } else {
    return Error{400, strf("tokenizer.ggml.model is %s; known: gpt2 (byte-level BPE), llama "
                           "(SentencePiece BPE), t5 (SentencePiece Unigram), gemma4 (BPE)",
                           quote(*model).c_str())};
  }
  const std::string* pre = meta.string(key("pre"));
  spec.pre = pre != nullptr ? *pre : "default";
  if (spec.kind == VocabSpec::Kind::bpe) {
    if (pre == nullptr) {
      LOG(warn, "the file names no pre-tokenizer (tokenizer.ggml.pre); taking GPT-2's");
    }
    std::optional<NamedPreTokenizer> row = find_pre_tokenizer(spec.pre);
    spec.add_bos = row && row->add_bos;
  }
  return {};
}

}  // namespace

Result<VocabSpec> vocab_from_meta(const Meta& meta) {
  VocabSpec spec;
  if (auto ok = read_kind(meta, spec); !ok) return ok.error();
  const std::vector<std::string>* tokens = meta.strings(key("tokens"));
  if (tokens == nullptr) return Error{400, "the file has no vocabulary (tokenizer.ggml.tokens)"};
  spec.tokens = *tokens;
  if (auto ok = read_types(meta, spec); !ok) return ok.error();
  if (auto ok = read_token_ids(meta, spec); !ok) return ok.error();
  if (const auto* scores = meta.floats(key("scores"))) spec.scores = *scores;
  if (const auto* merges = meta.strings(key("merges"))) spec.merges = *merges;
  if (auto ok = read_normalizer(meta, spec); !ok) return ok.error();
  if ((spec.kind == VocabSpec::Kind::bpe || spec.kind == VocabSpec::Kind::char_bpe) &&
      spec.merges.empty()) {
    return Error{400, "the file has a BPE vocabulary without merges (tokenizer.ggml.merges)"};
  }
  spec.add_bos = meta.boolean(key("add_bos_token")).value_or(spec.add_bos);
  spec.add_eos = meta.boolean(key("add_eos_token")).value_or(spec.add_eos);
  spec.add_space_prefix = meta.boolean(key("add_space_prefix")).value_or(spec.add_space_prefix);
  return spec;
}

Result<std::unique_ptr<Tokenizer>> tokenizer_from_meta(const Meta& meta) {
  const std::string* json = meta.string("tokenizer.huggingface.json");
  const std::string* pieces = meta.string("tokenizer.sentencepiece.model");
  Result<TokenizerSpec> spec = Error{400, "the file has no tokenizer"};
  if (meta.has(key("tokens")) || (json == nullptr && pieces == nullptr)) {
    Result<VocabSpec> vocab = vocab_from_meta(meta);
    if (!vocab) return vocab.error();
    spec = spec_from_vocab(std::move(*vocab));
  } else {
    spec = json != nullptr ? spec_from_json(*json) : spec_from_sentencepiece(*pieces);
    if (!spec) return spec.error();
    if (auto ok = read_ids(meta, *spec); !ok) return ok.error();
  }
  if (!spec) return spec.error();
  if (const auto* name = meta.string("tokenizer.huggingface.class")) spec->class_name = *name;
  read_eog(meta, *spec);
  if (auto ok = read_gap(meta, *spec); !ok) return ok.error();
  return Tokenizer::make(std::move(*spec));
}

}  // namespace sluice
