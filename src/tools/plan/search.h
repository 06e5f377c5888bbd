// Settings tried one after the other in the simulator, and which of them nothing else beats.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tools/plan/target.h"

namespace sluice {

// One setting and what it came to.
struct Trial {
  PlanSettings settings;
  std::string flags;  // of `sluice serve`; empty: the defaults
  PlanFigures figures;
  std::vector<SimRun> runs;  // by replica; kept for the first trial and the best
  double memory = 0;         // bytes on all devices
  double per_million = 0;    // dollars per million output tokens; 0: nobody knows the price
  bool on_front = false, estimate = false;
};

struct TrialGoal {
  Slo slo;
  double price = 0;  // dollars per hour and device
};

// Which is better: fewer requests refused, then the larger share of requests that keep the SLO,
// then more output tokens per second, then shorter requests. Small differences do not count.
bool better(const PlanFigures& a, const PlanFigures& b, const Slo& slo);

Result<Trial> run_trial(const PlanTarget& target,
                        const PlanSettings& settings,
                        std::span<const SimRequest> workload,
                        const TrialGoal& goal);

// The first is `start`; then one knob after the other, from the best so far, twice; then replicas
// where the SLO is kept by less than nine in ten; then estimates of tensor parallelism. `best` gets
// the index of the best that the engine can run as it is.
std::vector<Trial> search_settings(const PlanTarget& target,
                                   Trial start,
                                   std::span<const SimRequest> workload,
                                   const TrialGoal& goal,
                                   const std::function<void(size_t)>& progress,
                                   size_t& best);

// Marks the trials that no other beats in time to the first token, time per token (both 99th
// percentiles), output tokens per second, memory and price at once; of equal ones the first. Those
// that refuse more requests than the first do not count.
void mark_front(std::span<Trial> trials);

// Whether `a` is nowhere worse than `b` and somewhere better; lower is better.
bool dominates(std::span<const double> a, std::span<const double> b);

}  // namespace sluice
