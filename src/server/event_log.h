// The events of a stream that may be resumed: each has a number from 1 on, and those that a client
// may still ask for are kept. Used by the io thread of its generation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// Of all streams that may be resumed, and of the events of one.
inline constexpr size_t kMaxKeptStreams = 256, kMaxStreamBytes = size_t{1} << 20;

class EventLog {
 public:
  EventLog(std::string id, size_t max_bytes) : id_(std::move(id)), max_bytes_(max_bytes) {}

  // Server-sent events, each ending with an empty line. They get "id: ID:NUMBER" in front. The
  // oldest are dropped once more than max_bytes are kept. Throws std::bad_alloc and appends
  // nothing.
  void append(std::string_view events);
  // The next events will be those after number `last`. False: they are not kept any more.
  bool seek(uint64_t last);
  // Whole events, at least one if there is any, then as many as fit `bytes`; empty: none is left.
  std::string_view next(size_t bytes);
  bool at_begin() const { return at_ == 1; }  // nothing has been written
  bool at_end() const { return at_ == end(); }
  // The next event was dropped before it was written: the reader is too far behind.
  bool lost() const { return at_ < first_; }
  size_t bytes() const { return text_.size(); }

 private:
  uint64_t end() const { return first_ + ends_.size(); }
  size_t begin_of(uint64_t number) const;
  void drop_oldest();

  std::string id_;
  size_t max_bytes_;
  std::string text_;
  std::deque<size_t> ends_;  // of each event in text_
  uint64_t first_ = 1;       // number of the first event in text_
  uint64_t at_ = 1;          // number of the next event to be written
};

// "ID:NUMBER" into its parts.
struct EventId {
  std::string id;
  uint64_t number = 0;
};
std::optional<EventId> parse_event_id(std::string_view text);

}  // namespace sluice
