// Finds marker strings in text that comes in pieces. One thread.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::dialect {

std::string_view trimmed(std::string_view text);

// Markers anywhere in a text. No marker begins with another one.
class MarkerScan {
 public:
  static constexpr int kNone = -1;
  // Empty ones are left out but keep their number.
  explicit MarkerScan(std::initializer_list<std::string_view> markers);
  MarkerScan() = default;

  // Number of the marker that this byte completes. What is surely text is appended to `text`.
  int feed(char c, std::string& text);
  // How many of these bytes are surely text; 0 while something is held back.
  size_t plain(std::string_view bytes) const;
  // What was held back, because it might become a marker.
  std::string take_held() { return std::exchange(held_, {}); }

 private:
  std::vector<std::string_view> markers_;
  std::string firsts_;  // the first byte of each
  std::string held_;
};

// One of several strings at this place, perhaps after white space.
class Expect {
 public:
  static constexpr int kMore = -1, kNone = -2;
  // White space around the strings does not count; empty ones are left out but keep their number.
  void set(std::initializer_list<std::string_view> strings);
  int feed(char c);
  size_t matched() const { return seen_.size(); }
  bool nothing() const { return strings_.empty() || !any_; }

 private:
  std::vector<std::string_view> strings_;
  std::string seen_;
  bool any_ = false;
};

}  // namespace sluice::dialect
