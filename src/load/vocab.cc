#include "load/vocab.h"

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

// The kind and its defaults for what the file may leave out.
Result<void> read_kind(const Meta& meta, VocabSpec& spec) {
  const std::string* model = meta.string(key("model"));
  if (model == nullptr) return Error{400, "the file has no tokenizer (tokenizer.ggml.model)"};
  if (*model == "gpt2") {
    spec.kind = VocabSpec::Kind::bpe;
  } else if (*model == "llama") {
    spec.kind = VocabSpec::Kind::spm;
    spec.add_bos = spec.add_space_prefix = true;
  } else {
    return Error{400, strf("tokenizer.ggml.model is %s; known: gpt2 (byte-level BPE), llama "
                           "(SentencePiece BPE)",
                           quote(*model).c_str())};
  }
  const std::string* pre = meta.string(key("pre"));
  spec.pre = pre != nullptr ? *pre : "default";
  if (spec.kind == VocabSpec::Kind::bpe) {
    if (pre == nullptr) {
      LOG(warn, "the file names no pre-tokenizer (tokenizer.ggml.pre); taking GPT-2's");
    }
    const PreTokenizer* row = find_pre_tokenizer(spec.pre);
    spec.add_bos = row != nullptr && row->add_bos;
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
  if (spec.kind == VocabSpec::Kind::bpe && spec.merges.empty()) {
    return Error{400, "the file has a BPE vocabulary without merges (tokenizer.ggml.merges)"};
  }
  spec.add_bos = meta.boolean(key("add_bos_token")).value_or(spec.add_bos);
  spec.add_eos = meta.boolean(key("add_eos_token")).value_or(spec.add_eos);
  spec.add_space_prefix = meta.boolean(key("add_space_prefix")).value_or(spec.add_space_prefix);
  return spec;
}

}  // namespace sluice
