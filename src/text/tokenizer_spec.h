// A tokenizer as plain data, with the meanings of tokenizer.json: added tokens, normalizer, pre-
// tokenizer, model, post-processor, decoder. GGUF metadata and SentencePiece models are converted
// to it. Tokenizer::make checks it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "text/bpe.h"
#include "text/normalize.h"
#include "text/pretokenize.h"
#include "text/vocab.h"

namespace sluice {

struct AddedToken {
  Token id = kNoToken;
  std::string content;
  bool special = false;
  bool normalized = false;  // found in normalised text, else before normalisation
  bool as_spelled = false;  // ... there as the vocabulary spells it, not as `content` would become
  bool single_word = false, lstrip = false, rstrip = false;
};

struct ModelSpec {
  enum class Kind : uint8_t { byte_bpe, char_bpe, score_bpe, unigram };
  Kind kind = Kind::byte_bpe;
  std::vector<Merge> merges;   // by rank
  std::vector<double> scores;  // score_bpe and unigram: by token
  BpeOptions bpe;
  Token unk = kNoToken;        // score_bpe and unigram
  bool byte_fallback = false;  // unigram
  bool sentencepiece = false;  // unigram: in SentencePiece's arithmetic
};

// What the bytes of a token are: steps over its spelling.
struct DecoderStep {
  enum class Kind : uint8_t {
    byte_level,     // from the byte-level alphabet
    byte_fallback,  // <0x0A> is that byte
    replace,        // `from` by `to`
    strip,          // up to `start` and `stop` times `from` (one character) off the ends
  };
  Kind kind = Kind::byte_level;
  std::string from = {}, to = {};
  size_t start = 0, stop = 0;
};

// Marks around a gap that the model fills: prefix BEFORE suffix AFTER middle, then its text.
struct GapTokens {
  Token prefix = kNoToken, suffix = kNoToken, middle = kNoToken;
  bool known() const { return prefix != kNoToken && suffix != kNoToken && middle != kNoToken; }
};

struct TokenizerSpec {
  std::vector<std::string> tokens;
  std::vector<TokenType> types;  // one per token
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  ModelSpec model;
  std::vector<Token> prefix, suffix;  // around every text, where special tokens are asked for
  std::vector<DecoderStep> decoder;
  bool strip_space = false;       // decoding takes one space off the beginning
  bool strip_last_space = false;  // ... and the end
  Token bos = kNoToken, eos = kNoToken, eot = kNoToken, pad = kNoToken;
  std::string class_name;       // what transformers calls it; empty: its usual class for this model
  std::vector<Token> more_eog;  // tokens that end a generation, beside EOS, EOT and known spellings
  GapTokens gap;                // as the file names them
};

// GGUF's kinds and names as a pipeline.
Result<TokenizerSpec> spec_from_vocab(VocabSpec vocab);
// The text of a tokenizer.json.
Result<TokenizerSpec> spec_from_json(std::string_view text);
// A SentencePiece model (protobuf).
Result<TokenizerSpec> spec_from_sentencepiece(std::string_view data);

}  // namespace sluice
