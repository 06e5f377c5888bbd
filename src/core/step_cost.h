// What steps cost on one device with one model: seconds as a function of what a step computes
// (step_load.h), fitted to steps that ran or derived from a device's limits. Plain data: it is
// written to files and drives the simulator (simulation.h). StepTimeModel is for steps as they
// come, one straight line; this has a line between any two knots, since small steps wait for
// memory and large ones for arithmetic. Pure.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "base/clock.h"
#include "core/step_load.h"

namespace sluice {

struct StepCost {
  struct Knot {
    double tokens = 0, seconds = 0;
    bool operator==(const Knot&) const = default;
  };
  // A step of so many tokens, without what is below: straight lines between knots. Both ascend;
  // before the first knot a step costs as much as there, behind the last the last line goes on.
  std::vector<Knot> rows;
  double sampled = 0, context = 0, attended = 0;  // seconds per unit of StepLoad
  // A step that computes prompts, alone or beside decodes: a GPU does not replay it as a graph.
  double prompts = 0;
  // Of the engine thread, per step and per slice: planning, completing, handing out tokens.
  double host_step = 0, host_slice = 0;

  double seconds(const StepLoad& load) const;
  double host_seconds(int num_slices) const { return host_step + host_slice * num_slices; }
  // Nothing is negative, and no step costs less for more of anything.
  bool valid() const;
  bool operator==(const StepCost&) const = default;
};

// A step that ran.
struct TimedStep {
  StepLoad load;
  double seconds = 0;
};

struct CostFit {
  StepCost cost;
  double error_p50 = 0, error_p90 = 0;  // |predicted - measured| / measured
};
// Non-negative least squares of relative errors, in which a step that took far too long counts for
// little, and every kind of step counts alike, however many there are of it.
// `samples` without a step of at least one token and some time: a cost of nothing.
CostFit fit_step_cost(std::span<const TimedStep> samples);

// The x >= 0 with the least |A x - y|^2, given A'A (n x n, by rows) and A'y: Lawson and Hanson's
// active set.
std::vector<double> nonneg_least_squares(std::span<const double> ata, std::span<const double> aty);

}  // namespace sluice
