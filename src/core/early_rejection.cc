#include "core/early_rejection.h"

#include <algorithm>

namespace sluice {

namespace {

// Weight of a step relative to the next one: some hundred steps count.
constexpr double kKeepPace = 0.99;
// Times the predicted seconds, against clocks that jump and steps that wait for something else.
constexpr double kMostPace = 10;

}  // namespace

void EarlyRejection::launched(uint64_t step, const StepLoad& load) {
  steps_[step % steps_.size()] = {step, cost_.seconds(load)};
}

void EarlyRejection::completed(uint64_t step, double seconds) {
  const Predicted& p = steps_[step % steps_.size()];
  if (p.step != step || !(p.seconds > 0) || !(seconds > 0)) return;
  measured_ = measured_ * kKeepPace + seconds;
  predicted_ = predicted_ * kKeepPace + p.seconds;
  pace_ = std::clamp(measured_ / predicted_, 1 / kMostPace, kMostPace);
}

double EarlyRejection::retry_after(WorkerView queue, int64_t tokens, double output, Time left) {
  queue.cost = &cost_;
  queue.pace = queue.decode_pace = pace_;
  RoutedRequest request;
  request.tokens = tokens;
  request.output = output;
  RoutingConfig config;
  config.reject = true;
  const auto early = [&](Time target, RoutingState& state) {
    config.ttft = seconds(target);
    const RoutingChoice c = choose_worker(config, request, {&queue, 1}, state);
    return c.rejected ? c.retry_after : 0.0;
  };
  double wait = limit_ > Time{0} ? early(limit_, state_) : 0;
  RoutingState once;  // deadlines are the requests' own
  if (left < kNever && left > Time{0}) wait = std::max(wait, early(left, once));
  num_rejected_ += wait > 0;
  return wait;
}

}  // namespace sluice
