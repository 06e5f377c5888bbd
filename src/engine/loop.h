// One iteration of the engine: plan, launch, wait, complete. Shared by server, benchmarks,
// simulator. No thread of its own, but for the masks of constrained requests; whoever calls
// iterate() owns it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "core/executor.h"
#include "core/pipeline.h"
#include "core/scheduler.h"
#include "core/step_load.h"
#include "engine/masks.h"

namespace sluice {

// What one iteration did, for everything that observes: metrics, traces, recorders.
struct StepReport {
  bool launched = false, completed = false;
  bool failed = false;  // the completed step, on the executor
  bool timed = true;    // else only plan_begin is known
  uint64_t launched_step = 0, completed_step = 0;
  Time plan_begin{0}, plan_end{0};  // of the launched step
  Time scheduled{0};                // of the completed step
  Time begin{0}, end{0};            // of the completed step, on the executor
  Time complete_begin{0}, complete_end{0};
  int num_tokens = 0, num_decode = 0, num_slices = 0;  // of the launched step
  int num_forced = 0;         // tokens of the completed step's events that were not sampled
  uint64_t num_restarts = 0;  // times that the engine lost its requests to an exception, so far
  SchedulerStats stats;
  // Filled in by observers that want them: they take a walk over sequences and slices.
  KvUse kv;
  StepLoad work;  // of the launched step
  Time host_time() const { return (plan_end - plan_begin) + (complete_end - complete_begin); }
};

// Called on the engine thread after each iteration; must not block. All belongs to the call.
using StepObserver =
    std::function<void(const StepReport&, const StepPlan&, const Events&, const Scheduler&)>;

// Neither changes an output.
struct LoopOptions {
  bool forced = true;  // append what constraints leave no choice about, unsampled
  bool timed = true;   // reports say when things happened; else the clock is read once per
                       // iteration, for deadlines and aging
};

class Loop {
 public:
  Loop(Scheduler& scheduler,
       Executor& executor,
       const Clock& clock,
       Pipeline pipeline,
       LoopOptions options = {})
      : scheduler_(scheduler),
        executor_(executor),
        clock_(clock),
        timed_(options.timed),
        max_in_flight_(pipeline.max_in_flight()),
        planned_at_(static_cast<size_t>(max_in_flight_) + 1),
        masks_(executor, options.forced) {}

  // Makes progress if there is any to make; events of what happened are appended to `events`.
  // Blocks only for a step in flight.
  StepReport iterate(Events& events);
  // After an exception: waits for the steps in flight and drops their results.
  void abandon() noexcept;
  bool busy() const { return in_flight_ > 0 || scheduler_.has_work(); }
  // Whether iterate() would do nothing before scheduler.next_wakeup(), unless something comes.
  bool idle() const { return in_flight_ == 0 && (!scheduler_.has_work() || scheduler_.filling()); }
  const StepPlan& last_plan() const { return plan_; }

 private:
  Scheduler& scheduler_;
  Executor& executor_;
  const Clock& clock_;
  bool timed_;
  int max_in_flight_;
  int in_flight_ = 0;
  std::vector<Time> planned_at_;  // by step, of those in flight
  Masks masks_;                   // of constrained requests
  StepPlan plan_;
};

}  // namespace sluice
