// The model of a tokenizer (BPE, unigram): turns one piece of text into tokens. Immutable once
// made, so any thread may use it with a scratch of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/token.h"
#include "text/merge.h"

namespace sluice {

struct ModelScratch {
  MergeScratch merge;
  std::vector<Token> symbols;
  std::vector<uint32_t> sources;
  bool take_symbols = false;   // user-defined symbols in the piece are meant (takes_symbols)
  std::vector<double> scores;  // Unigram: per end of a piece
  std::vector<Token> ids;
  std::vector<uint32_t> starts;
};

class TextModel {
 public:
  virtual ~TextModel() = default;
  // Appends the tokens of `piece`, which is not empty. False: the vocabulary cannot spell it.
  virtual bool encode(std::string_view piece,
                      ModelScratch& scratch,
                      std::vector<Token>& out) const = 0;
  // Appends to `ends` (each plus `base`) places where a piece can be cut without changing its
  // tokens, the last being its end.
  virtual void cut(std::string_view piece, size_t base, std::vector<uint32_t>& ends) const {
    ends.push_back(static_cast<uint32_t>(base + piece.size()));
  }
  virtual bool cuts() const { return false; }
  // The model itself weighs user-defined symbols against other tokens.
  virtual bool takes_symbols() const { return false; }
};

}  // namespace sluice
