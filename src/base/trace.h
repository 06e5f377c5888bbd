// A trace of what ran when, in the JSON that Perfetto and chrome://tracing open.
// One Trace for the process, owned by main; each thread records into a track of its own, so that
// recording takes no lock that another thread holds. A null Trace or Track records nothing.
//
//   TraceTrack* track = trace ? trace->track("engine") : nullptr;
//   ...
//   record_span(track, "step", begin, end, {{"tokens", n}});
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace sluice {

struct TraceArg {
  const char* name = nullptr;  // a literal, or text that outlives the trace; as every name below
  double value = 0;
};

// Events of one thread. Room for `max_events` is set aside at once (the system commits it page by
// page as it fills), so recording never allocates; what comes after is counted as dropped.
class TraceTrack {
 public:
  static constexpr size_t kMaxArgs = 4;  // more are ignored

  TraceTrack(std::string name, size_t max_events);

  // Something that took from `begin` to `end`.
  void span(const char* name, Time begin, Time end, std::initializer_list<TraceArg> args = {});
  // A value from `at` on; drawn as a graph over the whole process.
  void counter(const char* name, Time at, double value);

 private:
  friend class Trace;
  struct Event {
    const char* name;
    Time begin, end;  // a counter has end < begin
    std::array<TraceArg, kMaxArgs> args;
  };
  void push(const Event& event);
  void append_json(std::string& out, size_t tid) const;

  std::string name_;
  size_t max_events_;
  mutable std::mutex mutex_;  // held by the writer of the file while it reads; else uncontended
  std::vector<Event> events_;
  uint64_t num_dropped_ = 0;
};

class Trace {
 public:
  // Each track holds at most this many events (about 100 bytes each).
  explicit Trace(size_t max_events_per_track = size_t{1} << 18);

  // A new track, valid as long as the trace. Any thread.
  TraceTrack* track(std::string name);
  // Everything recorded so far. Any thread.
  std::string to_json() const;
  Result<void> write(const std::string& path) const;
  uint64_t num_dropped() const;

 private:
  size_t max_events_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<TraceTrack>> tracks_;
};

inline void record_span(TraceTrack* track,
                        const char* name,
                        Time begin,
                        Time end,
                        std::initializer_list<TraceArg> args = {}) {
  if (track) track->span(name, begin, end, args);
}
// A span from its construction to its end. Without a track no clock is read.
class TraceSpan {
 public:
  TraceSpan(TraceTrack* track, const Clock* clock, const char* name)
      : track_(track), clock_(clock), name_(name), begin_(track ? clock->now() : Time{0}) {}
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;
  ~TraceSpan() {
    if (track_) track_->span(name_, begin_, clock_->now());
  }

 private:
  TraceTrack* track_;
  const Clock* clock_;
  const char* name_;
  Time begin_;
};
inline void record_counter(TraceTrack* track, const char* name, Time at, double value) {
  if (track) track->counter(name, at, value);
}

}  // namespace sluice
