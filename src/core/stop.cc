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
  tail_.append(bytes);

  size_t begin = std::string::npos;
  for (const std::string& s : strings) {
    if (!s.empty()) begin = std::min(begin, tail_.find(s));
  }
  if (begin != std::string::npos) return {true, static_cast<uint32_t>(tail_.size() - begin), 0};

  size_t held = 0;
  for (const std::string& s : strings) {
    for (size_t n = std::min(s.size() - (s.empty() ? 0 : 1), tail_.size()); n > held; --n) {
      if (std::string_view(tail_).substr(tail_.size() - n) == std::string_view(s).substr(0, n)) {
        held = n;
        break;
      }
    }
  }
  return {false, 0, static_cast<uint32_t>(held)};
}

}  // namespace sluice
