#include "engine/loop.h"

#include "base/failure.h"
#include "base/log.h"

namespace sluice {

StepReport Loop::iterate(Events& events) {
  StepReport r;
  r.timed = timed_;
  r.plan_begin = clock_.now();
  scheduler_.plan(r.plan_begin, plan_, events);
  if (timed_) r.plan_end = clock_.now();
  const bool constrained = scheduler_.num_constrained() > 0 || masks_.active();
  if (constrained) masks_.drop_finished(events.list);
  if (!plan_.empty()) {
    if (constrained) masks_.plan(plan_, scheduler_);
    executor_.launch(plan_);
    ++in_flight_;
    if (constrained) masks_.launched();
    r.launched = true;
    r.launched_step = plan_.step;
    r.num_tokens = plan_.num_tokens;
    r.num_decode = plan_.num_decode;
    r.num_slices = static_cast<int>(plan_.slices.size());
    planned_at_[plan_.step % planned_at_.size()] = r.plan_begin;
  }
  // With nothing new to launch, the step in flight is all there is to wait for.
  if (in_flight_ >= max_in_flight_ || (in_flight_ > 0 && !r.launched)) {
    --in_flight_;
    const StepResult& result = executor_.wait();
    r.completed = true;
    r.completed_step = result.step;
    r.scheduled = planned_at_[result.step % planned_at_.size()];
    r.begin = result.begin;
    r.end = result.end;
    r.failed = !result.failure.empty();
    if (r.failed)
      LOG(error, "step %llu failed, and its requests with it: %s",
          static_cast<unsigned long long>(result.step), result.failure.c_str());
    r.complete_begin = timed_ ? clock_.now() : r.plan_begin;
    const size_t first = events.list.size();
    scheduler_.complete(result, r.complete_begin, events);
    if (constrained)
      r.num_forced = masks_.completed(result.step, first, scheduler_, r.complete_begin, events);
    if (timed_) r.complete_end = clock_.now();
  }
  r.stats = scheduler_.stats();
  return r;
}

void Loop::abandon() noexcept {
  masks_.abandon();
  for (; in_flight_ > 0; --in_flight_) {
    try {
      executor_.wait();
    } catch (...) {
      log_exception("step");
    }
  }
}

}  // namespace sluice
