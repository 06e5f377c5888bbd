// Whether a request's first token would come too late: predicted from what steps cost, the prompts
// that wait and what decodes, by the conductor's arithmetic (routing_policy.h) for one worker. It
// learns from steps that ran how far their predictions are off. Owned by one thread. Pure: same
// calls, same answers.
#pragma once

#include <array>
#include <cstdint>

#include "base/clock.h"
#include "core/routing_policy.h"

namespace sluice {

class EarlyRejection {
 public:
  // limit: for the first token; 0: only deadlines count.
  EarlyRejection(StepCost cost, Time limit) : cost_(std::move(cost)), limit_(limit) {}

  // A step and how long it took, in their order.
  void launched(uint64_t step, const StepLoad& load);
  void completed(uint64_t step, double seconds);

  // Whether the first token of a request whose deadline is `left` away has to come by any time.
  bool has_limit(Time left) const { return limit_ > Time{0} || left < kNever; }
  // Seconds after which the request would be taken; 0: it is taken. `queue` has what waits and
  // runs, and how much of the prompt is cached; the rest of it is filled in here. `left`: until the
  // request's deadline.
  double retry_after(WorkerView queue, int64_t tokens, double output, Time left);

  double pace() const { return pace_; }  // measured / predicted seconds of steps, of late
  uint64_t num_rejected() const { return num_rejected_; }

 private:
  struct Predicted {
    uint64_t step = 0;
    double seconds = 0;
  };
  StepCost cost_;
  Time limit_;
  RoutingState state_;                // of the limit
  std::array<Predicted, 8> steps_{};  // in flight, by step
  double measured_ = 0, predicted_ = 0, pace_ = 1;
  uint64_t num_rejected_ = 0;
};

}  // namespace sluice
