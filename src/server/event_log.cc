#include "server/event_log.h"

#include <algorithm>
#include <charconv>

namespace sluice {

void EventLog::append(std::string_view events) {
  size_t bytes_before = text_.size(), num_before = ends_.size();
  try {
    while (!events.empty()) {
      size_t size = std::min(events.find("\n\n"), events.size() - 2) + 2;
      text_ += "id: " + id_ + ':' + std::to_string(end()) + '\n';
      text_ += events.substr(0, size);
      ends_.push_back(text_.size());
      events.remove_prefix(size);
    }
  } catch (...) {
    text_.resize(bytes_before);
    while (ends_.size() > num_before) ends_.pop_back();
    throw;
  }
  drop_oldest();
}

void EventLog::drop_oldest() {
  if (text_.size() <= max_bytes_) return;
  // Down to a half, so that dropping costs little per event. The last one is always kept.
  size_t num = 0, drop = text_.size() - max_bytes_ / 2;
  while (num + 1 < ends_.size() && ends_[num] < drop) ++num;
  size_t bytes = num > 0 ? ends_[num - 1] : 0;
  text_.erase(0, bytes);
  ends_.erase(ends_.begin(), ends_.begin() + static_cast<ptrdiff_t>(num));
  for (size_t& e : ends_) e -= bytes;
  first_ += num;
}

bool EventLog::seek(uint64_t last) {
  if (last + 1 < first_ || last + 1 > end()) return false;
  at_ = last + 1;
  return true;
}

size_t EventLog::begin_of(uint64_t number) const {
  return number == first_ ? 0 : ends_[static_cast<size_t>(number - first_ - 1)];
}

std::string_view EventLog::next(size_t bytes) {
  if (at_ < first_ || at_end()) return {};
  size_t begin = begin_of(at_), last = static_cast<size_t>(at_ - first_);
  while (last + 1 < ends_.size() && ends_[last + 1] - begin <= bytes) ++last;
  at_ = first_ + last + 1;
  return std::string_view(text_).substr(begin, ends_[last] - begin);
}

std::optional<EventId> parse_event_id(std::string_view text) {
  size_t colon = text.rfind(':');
  if (colon == text.npos || colon == 0 || colon > 128) return {};
  EventId e{std::string(text.substr(0, colon)), 0};
  const char* end = text.data() + text.size();
  auto [at, failed] = std::from_chars(text.data() + colon + 1, end, e.number);
  if (failed != std::errc() || at != end || e.number > UINT64_MAX / 2) return {};
  return e;
}

}  // namespace sluice
