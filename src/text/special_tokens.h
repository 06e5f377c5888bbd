// Finds added tokens in text: a trie over their spellings. Immutable once a tokenizer is made.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/token.h"

namespace sluice {

// Which parts of a text are trusted: runs that alternate, each up to its end.
struct TrustRuns {
  std::span<const size_t> ends;  // ascending; the last is the text's size
  bool first_trusted = false;
};

class SpecialTokens {
 public:
  struct Flags {
    bool anywhere = false;     // recognised in untrusted text too
    bool single_word = false;  // only where no word character touches it
    bool lstrip = false;       // takes the white space before it
    bool rstrip = false;       // ... after it
  };
  struct Match {
    Token token = kNoToken;
    size_t size = 0;
  };
  struct Hit {
    Token token = kNoToken;
    size_t begin = 0, end = 0;
  };

  SpecialTokens();
  // Of two tokens spelled alike, the first added is found.
  void add(std::string_view text, Token token, Flags flags);
  // The longest token that starts `text` and either lies within its first `trusted` bytes or is
  // recognised anywhere; token == kNoToken when there is none.
  Match match(std::string_view text, size_t trusted) const;
  // Replaces `hits` by the tokens in `text`, leftmost and longest first, in order. A token that
  // takes white space may overlap the next: so it is defined.
  void find_all(std::string_view text, TrustRuns trust, std::vector<Hit>& hits) const;
  bool empty() const { return nodes_.size() == 1; }

 private:
  struct Node {
    std::vector<std::pair<char, uint32_t>> children;  // by character
    Token token = kNoToken;
    Flags flags;
  };
  Match match(std::string_view text, size_t trusted, Flags& flags) const;

  std::vector<Node> nodes_;
  bool starts_[256] = {};
};

}  // namespace sluice
