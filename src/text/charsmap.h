// SentencePiece's precompiled normalisation: a double-array trie from byte strings to their
// replacements. Immutable, so any thread may use it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice {

class Charsmap {
 public:
  // `blob`: the size of the trie in bytes, the trie, and NUL-terminated replacements.
  static Result<std::shared_ptr<const Charsmap>> parse(std::string_view blob);

  struct Match {
    size_t size = 0;  // bytes of text; 0: none
    std::string_view replacement;
  };
  // Of the keys that start `text`.
  Match longest(std::string_view text) const;
  Match shortest(std::string_view text) const;

 private:
  template <typename Found>
  void walk(std::string_view text, Found found) const;
  std::string_view replacement(uint32_t at) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace sluice
