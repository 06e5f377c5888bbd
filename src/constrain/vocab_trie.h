// The tokens of a vocabulary as a trie over their bytes, built once per model and immutable after,
// and the store of masks over them.
// Nodes lie in depth-first order, so a walk is one pass that skips dead subtrees.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/token.h"
#include "constrain/mask_store.h"

namespace sluice::constrain {

class VocabTrie {
 public:
  struct Entry {
    uint32_t end;  // behind this node's subtree
    Token token;   // that ends here, kNoToken if none
    uint8_t byte;
  };

  // bytes[t]: what token t stands for; empty for tokens that stand for no text (control tokens),
  // which a constraint never allows. `ends`: tokens that end a generation.
  VocabTrie(std::span<const std::string_view> bytes, std::span<const Token> ends);

  size_t vocab_size() const { return vocab_size_; }
  size_t mask_words() const { return (vocab_size_ + 31) / 32; }
  uint32_t longest() const { return longest_; }  // bytes of a token
  std::span<const Token> ends() const { return ends_; }
  std::string_view bytes(Token t) const {
    return std::string_view(text_).substr(
        text_at_[static_cast<size_t>(t)],
        text_at_[static_cast<size_t>(t) + 1] - text_at_[static_cast<size_t>(t)]);
  }
  bool is_end(Token t) const;
  // Plain tokens (whole characters without control, line break, quote and backslash: what a JSON
  // string holds as it is) come first: nodes [0, plain_end()), the others behind.
  const std::vector<Entry>& nodes() const { return nodes_; }
  uint32_t plain_end() const { return plain_end_; }
  // The next token with the same bytes, or kNoToken.
  Token same(Token t) const { return same_[static_cast<size_t>(t)]; }
  // Bits of all plain tokens of at most so many characters.
  void add_plain(uint32_t max_chars, std::span<uint32_t> bits) const;

  MaskStore& masks() const { return masks_; }
  size_t memory_bytes() const;  // with all that the store of masks may hold

  static constexpr uint32_t kLongPlain = 16;  // longer ones are few and listed

 private:
  void build(std::vector<Token>& tokens, std::span<const std::string_view> bytes);

  size_t vocab_size_;
  std::vector<Token> ends_;
  std::string text_;
  std::vector<uint32_t> text_at_;
  std::vector<Entry> nodes_;
  uint32_t plain_end_ = 0;
  uint32_t longest_ = 0;
  std::vector<Token> same_;
  std::vector<std::vector<uint32_t>> plain_;  // [chars]: bits of plain tokens up to that length
  struct LongToken {
    Token token;
    uint32_t chars;
  };
  std::vector<LongToken> long_plain_;
  mutable MaskStore masks_;  // locks by itself
};

}  // namespace sluice::constrain
