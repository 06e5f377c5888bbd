// Runs plans. The engine thread calls it; work happens elsewhere. Steps complete in launch order.
#pragma once

#include "core/step_plan.h"

namespace sluice {

struct Executor {
  virtual ~Executor() = default;
  // Takes what it needs of the plan before returning; does not wait for the step.
  virtual void launch(const StepPlan& plan) = 0;
  // Waits for the oldest launched step. The result is valid until the next wait().
  virtual const StepResult& wait() = 0;
};

}  // namespace sluice
