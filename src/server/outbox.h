// Events from the engine thread to one io thread: one batch per step, posted once.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/trace.h"
#include "core/events.h"

namespace sluice {

class Generation;

struct Delivery {
  std::shared_ptr<Generation> to;
  size_t prompt = 0;  // which of the generation's
  std::optional<Error> refused;
  Event event;
  std::vector<TopLogprob> top, prompt_top;
  double retry_after = 0;  // seconds, where refused for being late
};

class Outbox : public std::enable_shared_from_this<Outbox> {
 public:
  explicit Outbox(std::function<void(std::function<void()>)> post) : post_(std::move(post)) {}

  // Before the first delivery: what the io thread does with them becomes spans of its track.
  void trace(TraceTrack* track) { track_ = track; }
  TraceTrack* track() const { return track_; }

  // Engine thread. The first after a drain posts the next drain. A call that throws delivers
  // nothing.
  void push(Delivery delivery);

 private:
  void drain();  // io thread

  std::function<void(std::function<void()>)> post_;
  std::mutex mutex_;
  std::vector<Delivery> items_;
  std::vector<Delivery> batch_;  // io thread
  TraceTrack* track_ = nullptr;
};

}  // namespace sluice
