// Finds special tokens in text: a trie over their spellings. Immutable once a tokenizer is made.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/token.h"

namespace sluice {

class SpecialTokens {
 public:
  struct Match {
    Token token = kNoToken;
    size_t size = 0;
  };

  SpecialTokens();
  // `anywhere`: recognised in untrusted text too.
  void add(std::string_view text, Token token, bool anywhere);
  // The longest token that starts `text` and either lies within its first `trusted` bytes or is
  // recognised anywhere; token == kNoToken when there is none.
  Match match(std::string_view text, size_t trusted) const;
  bool may_start(char c) const { return starts_[static_cast<uint8_t>(c)]; }
  bool empty() const { return nodes_.size() == 1; }

 private:
  struct Node {
    std::vector<std::pair<char, uint32_t>> children;  // by character
    Token token = kNoToken;
    bool anywhere = false;
  };
  std::vector<Node> nodes_;
  bool starts_[256] = {};
};

}  // namespace sluice
