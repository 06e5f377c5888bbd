#include "core/stop.h"

#include <algorithm>

namespace sluice {

StopMatcher::StopMatcher(const std::vector<std::string>& strings) {
  for (const std::string& s : strings) keep_ = std::max(keep_, s.size());
  tail_.reserve(keep_ * 2 + 64);
}

StopMatcher::Match StopMatcher::feed(const std::vector<std::string>& strings,
                                     std::string_view bytes) {
  if (keep_ == 0) return {};
  // A match cannot start before the last keep_-1 bytes of the old text.
  if (tail_.size() >= keep_) tail_.erase(0, tail_.size() - (keep_ - 1));
  size_t old = tail_.size();
  tail_.append(bytes);

  Match match;
  size_t begin = std::string::npos;
  for (size_t i = 0; i < strings.size(); ++i) {
    const std::string& s = strings[i];
    if (s.empty()) continue;
    size_t at = tail_.find(s, old - std::min(old, s.size() - 1));
    if (at >= begin) continue;
    begin = at;
    match = {true, static_cast<uint32_t>(tail_.size() - at),
             static_cast<uint32_t>(tail_.size() - at - s.size()), 0, static_cast<int16_t>(i)};
  }

  size_t held = 0;
  for (const std::string& s : strings) {
    for (size_t n = std::min(s.size() - (s.empty() ? 0 : 1), tail_.size()); n > held; --n) {
      if (std::string_view(tail_).substr(tail_.size() - n) == std::string_view(s).substr(0, n)) {
        held = n;
        break;
      }
    }
  }
  match.held = static_cast<uint32_t>(held);
  return match;
}

}  // namespace sluice
