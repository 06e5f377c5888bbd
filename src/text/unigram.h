// The Unigram model: of all ways to write a piece as tokens, the one whose scores add up highest.
// Immutable, so any thread may use it with a scratch of its own.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "text/bpe.h"
#include "text/model.h"

namespace sluice {

struct UnigramOptions {
  Token unk = kNoToken;
  bool byte_fallback = false;
  // SentencePiece adds in single precision and looks for the lowest score among normal tokens;
  // the tokenizers library in double, among all.
  bool sentencepiece = false;
};

// Bytes to tokens, one byte per step. Open addressing over (node, byte).
class TokenTrie {
 public:
  explicit TokenTrie(size_t num_bytes = 0);  // of all keys together
  void insert(std::string_view key, Token token);
  static constexpr uint32_t kRoot = 0, kNone = UINT32_MAX;
  uint32_t step(uint32_t node, char c) const;
  Token token(uint32_t node) const { return tokens_[node]; }

 private:
  struct Slot {
    uint32_t node = kNone, child = kNone;
    uint8_t byte = 0;
  };
  size_t slot_of(uint32_t node, uint8_t byte) const;

  std::vector<Slot> slots_;
  size_t mask_ = 0;
  std::vector<Token> tokens_;  // per node
};

class Unigram final : public TextModel {
 public:
  // `scores` of the first tokens; those after them have no part in the model.
  static Result<std::unique_ptr<TextModel>> make(const VocabView& vocab,
                                                 std::vector<double> scores,
                                                 UnigramOptions options);
  // O(length × longest token).
  bool encode(std::string_view piece,
              ModelScratch& scratch,
              std::vector<Token>& out) const override;
  bool takes_symbols() const override { return has_symbols_; }

 private:
  explicit Unigram(UnigramOptions options) : options_(options) {}
  template <typename Score>
  bool search(std::string_view piece, ModelScratch& scratch) const;
  void put_unknown(std::string_view text, std::vector<Token>& out) const;

  UnigramOptions options_;
  TokenTrie trie_;
  std::vector<double> scores_;
  std::vector<bool> symbols_;  // SentencePiece: user-defined tokens, scored by length
  bool has_symbols_ = false;
  double unk_score_ = 0;
  Token byte_tokens_[256];
};

}  // namespace sluice
