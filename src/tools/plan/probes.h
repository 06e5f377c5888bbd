// The workloads that a calibration runs to see every kind of step.
#pragma once

#include <string>
#include <vector>

#include "core/scheduler.h"
#include "core/step_cost.h"
#include "tools/lab/workload.h"

namespace sluice {

struct Probe {
  enum class Kind { decodes, prompt, mixed, context };
  Kind kind = Kind::decodes;
  std::string what;
  LabWorkload requests;
};

// Kinds take turns, and of each the sizes that are far apart come first: where time runs out, what
// was seen is spread over all kinds and sizes.
std::vector<Probe> calibration_probes(const SchedulerConfig& config);

// Seconds that a probe will take, by a cost.
double probe_seconds(const LabWorkload& requests, const StepCost& cost, int budget);

}  // namespace sluice
