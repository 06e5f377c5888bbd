// Stop strings, matched over the bytes of the output as tokens arrive.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/token.h"

namespace sluice {

// The bytes of every token: all that core knows of text. Shared, immutable.
class TokenText {
 public:
  void add(std::string_view bytes) {
    pool_.append(bytes);
    ends_.push_back(pool_.size());
  }
  std::string_view bytes(Token t) const {
    auto i = static_cast<size_t>(t);
    if (t < 0 || i >= ends_.size()) return {};
    size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(pool_).substr(begin, ends_[i] - begin);
  }

 private:
  std::string pool_;
  std::vector<size_t> ends_;
};

// One per sequence with stop strings. Keeps only the tail that a match could still need.
class StopMatcher {
 public:
  struct Match {
    bool found = false;
    uint32_t cut = 0;    // found: bytes from the start of the match to the end of the text
    uint32_t trail = 0;  // found: bytes after the match
    uint32_t held = 0;   // trailing bytes that may yet become a match
    int16_t index = -1;  // found: which of the strings
  };

  // `strings` must outlive the matcher (they live in the request).
  explicit StopMatcher(const std::vector<std::string>& strings);
  // Text after `bytes` were appended. The earliest match that ends in them wins, the first of
  // `strings` where several begin there; who may not stop yet goes on as if there was none.
  Match feed(const std::vector<std::string>& strings, std::string_view bytes);
  bool operator==(const StopMatcher&) const = default;

 private:
  size_t keep_ = 0;
  std::string tail_;
};

}  // namespace sluice
