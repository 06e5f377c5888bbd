// Runs plans. The engine thread calls it; work happens elsewhere. Steps complete in launch order.
#pragma once

#include "core/step_plan.h"

namespace sluice {

struct Executor {
  virtual ~Executor() = default;
  // Takes what it needs of the plan before returning; does not wait for the step. A call that
  // throws has launched nothing.
  virtual void launch(const StepPlan& plan) = 0;
  // The masks of a launched step whose plan names some: the step waits for them before it samples
  // those slices. From any thread, without waiting. Of several for one step the first counts; those
  // of a step that is done are dropped.
  virtual void masks(StepMasks masks) = 0;
  // Waits for the oldest launched step. The result is valid until the next wait(). The step is used
  // up even if the call throws; failures of the step itself are in StepResult::failure.
  virtual const StepResult& wait() = 0;
};

}  // namespace sluice
