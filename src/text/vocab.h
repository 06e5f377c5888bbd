// A vocabulary as a model file describes it: plain data with GGUF's meanings. Whoever reads the
// file fills it; Tokenizer::make checks it. (TokenizerSpec is what tokenizer.json can say.)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/token.h"

namespace sluice {

enum class TokenType : uint8_t {
  normal = 1,
  unknown = 2,
  control = 3,       // <|im_end|>, <s>: stands for no text
  user_defined = 4,  // added as a whole, never built by merging
  unused = 5,
  byte = 6,  // <0x0A>: one byte (SentencePiece)
};

struct VocabSpec {
  enum class Kind : uint8_t {
    bpe,       // byte-level BPE: `pre` names the pre-tokenizer, `merges` are "left right" by rank
    spm,       // SentencePiece BPE: `scores` order the merges, byte tokens catch unknown characters
    unigram,   // SentencePiece Unigram: `scores`, `charsmap`
    char_bpe,  // BPE over characters with U+2581 for spaces, byte tokens for unknown ones
  };
  Kind kind = Kind::bpe;
  std::string pre;
  std::vector<std::string> tokens;
  std::vector<float> scores;     // spm, unigram: one per token
  std::vector<TokenType> types;  // one per token; empty: all normal
  std::vector<std::string> merges;
  Token bos = kNoToken, eos = kNoToken, eot = kNoToken, unk = kNoToken, pad = kNoToken;
  bool add_bos = false, add_eos = false;
  bool add_space_prefix = false;  // spm: a space before text that follows no text
  // unigram: SentencePiece's normalizer.
  std::string charsmap;  // precompiled; empty: none
  bool remove_extra_spaces = false;
};

struct Merge {
  std::string left, right;
};

}  // namespace sluice
