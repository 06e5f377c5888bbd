#include "dialect/marker_scan.h"

#include <algorithm>

#include "dialect/json_scanner.h"

namespace sluice::dialect {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_json_space(text.back())) text.remove_suffix(1);
  return text;
}

MarkerScan::MarkerScan(std::initializer_list<std::string_view> markers) {
  for (std::string_view m : markers) {
    markers_.push_back(trimmed(m));
    if (!markers_.back().empty()) firsts_ += markers_.back()[0];
  }
}

int MarkerScan::feed(char c, std::string& text) {
  held_ += c;
  size_t from = 0;
  for (; from < held_.size(); ++from) {
    std::string_view rest = std::string_view(held_).substr(from);
    for (size_t i = 0; i < markers_.size(); ++i) {
      if (markers_[i].empty() || !markers_[i].starts_with(rest)) continue;
      text.append(held_, 0, from);
      held_.erase(0, from);
      if (markers_[i].size() > held_.size()) return kNone;
      held_.clear();
      return static_cast<int>(i);
    }
  }
  text += held_;
  held_.clear();
  return kNone;
}

size_t MarkerScan::plain(std::string_view bytes) const {
  if (!held_.empty()) return 0;
  return std::min(bytes.find_first_of(firsts_), bytes.size());
}

void Expect::set(std::initializer_list<std::string_view> strings) {
  strings_.clear();
  seen_.clear();
  any_ = false;
  for (std::string_view s : strings) {
    strings_.push_back(trimmed(s));
    any_ = any_ || !strings_.back().empty();
  }
}

int Expect::feed(char c) {
  if (seen_.empty() && is_json_space(c)) return kMore;
  seen_ += c;
  bool open = false;
  for (size_t i = 0; i < strings_.size(); ++i) {
    if (strings_[i].empty() || !strings_[i].starts_with(seen_)) continue;
    if (strings_[i].size() == seen_.size()) return static_cast<int>(i);
    open = true;
  }
  if (open) return kMore;
  seen_.pop_back();
  return kNone;
}

}  // namespace sluice::dialect
