// Step costs measured on this machine: a spread of real steps through the engine, then a fit.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/loop.h"
#include "runtime/options.h"
#include "tools/plan/cost_file.h"

namespace sluice {

class Session;

// How long each completed step kept the device: from the end of the step before it, or from its
// launch where that was later, to its own end.
std::vector<TimedStep> timed_steps(std::span<const StepReport> reports);

// What a cost says of steps that ran, by their kind: where a prediction is off.
struct StepKind {
  const char* name = "";
  int num = 0;
  double predicted = 0, measured = 0;  // seconds, of all
};
using StepKinds = std::array<StepKind, 3>;
StepKinds step_kinds(std::span<const TimedStep> steps, const StepCost& cost);

// Seconds of the engine thread per step and per slice, where a step followed the one before it.
struct HostCost {
  double step = 0, slice = 0;
};
HostCost fit_host_cost(std::span<const StepReport> reports);

// Runs steps on the session for about `limit` seconds and fits them. `progress` gets what runs and
// the share of the time that is spent.
Result<CostFile> calibrate(Session& session,
                           double limit,
                           const std::function<void(const std::string&, double)>& progress);

// Options as calibration wants them: no prefix cache, which would leave out prompts, and nothing
// that bounds prompts beside decodes.
EngineOptions calibration_options(EngineOptions options);

}  // namespace sluice
