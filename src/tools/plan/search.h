// Settings tried one after the other in the simulator, and which of them nothing else beats.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "tools/plan/choice.h"

namespace sluice {

Result<Trial> run_trial(const PlanTarget& target,
                        const PlanSettings& settings,
                        std::span<const SimRequest> workload,
                        const TrialGoal& goal);

struct SearchResult {
  std::vector<Trial> trials;  // the first: the settings as given
  PlanChoice choice;
  // Of the trials with prefill and decode workers, the one that beats the choice by more than the
  // error of predictions, with no more workers.
  std::optional<size_t> split;
};

// The first is `start`; then one knob after the other, from the best so far, twice; then replicas
// where the SLO is kept by less than nine in ten; then what the choice asks for; then prefill and
// decode workers for each number of replicas tried; then estimates of tensor parallelism.
SearchResult search_settings(const PlanTarget& target,
                             Trial start,
                             std::span<const SimRequest> workload,
                             const TrialGoal& goal,
                             const std::function<void(size_t)>& progress);

// Marks the trials that no other beats in time to the first token, time per token (both 99th
// percentiles), output tokens per second, memory and price at once; of equal ones the first. Those
// that refuse more requests than the first do not count.
void mark_front(std::span<Trial> trials);

// Whether `a` is nowhere worse than `b` and somewhere better; lower is better.
bool dominates(std::span<const double> a, std::span<const double> b);

}  // namespace sluice
