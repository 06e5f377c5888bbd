// The scheduler in virtual time: requests with known lengths arrive, steps take what a cost says,
// and the loop runs ahead of the device as engine/loop.h does. Nothing is computed. Pure: the same
// arguments give the same run. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "core/scheduler.h"
#include "core/step_cost.h"

namespace sluice {

// A request as traces and recordings have it.
struct SimRequest {
  Time at{0};  // ascending over a workload
  int input = 1, output = 1;
  std::vector<uint64_t> blocks;  // ids of its prompt's blocks: equal ids, equal tokens
  int block_tokens = 512;
  int priority = 0;
  TenantId account = 0;
  Time deadline = kNever;
};

struct SimSetup {
  SchedulerConfig scheduler;
  StepCost cost;
  // Instead of the cost: how long a step takes, as a recording has it.
  std::function<double(const StepPlan&)> step_seconds = {};
};

// What became of a request. Zero where it did not happen.
struct SimAnswer {
  bool refused = false;  // it can never run with this configuration
  bool expired = false;  // its deadline ended it
  Time arrival{0}, first_scheduled{0}, first_token{0}, finish{0};
  Time longest_gap{0};  // between two of its tokens
  int input = 0, num_tokens = 0, num_cached = 0, num_preemptions = 0;
  double ttft() const { return seconds(first_token - arrival); }
  double e2e() const { return seconds(finish - arrival); }
  // Mean time per token after the first; 0 with one.
  double tpot() const {
    return num_tokens > 1 ? seconds(finish - first_token) / (num_tokens - 1) : 0;
  }
};

// The state at one moment, for plots.
struct SimMoment {
  double at = 0;  // seconds
  int running = 0, waiting = 0;
  double kv = 0;  // share of the pool's blocks that are in use
};

struct SimRun {
  std::vector<SimAnswer> answers;  // by request
  std::vector<float> gaps;         // seconds, between two tokens of a request
  std::vector<SimMoment> moments;  // at most 2 * kSimMoments, evenly spaced
  uint64_t num_steps = 0, num_computed = 0, num_preemptions = 0;
  uint64_t prefix_queries = 0, prefix_hits = 0;  // prompt tokens
  double elapsed = 0;                            // first arrival to last token
  double busy = 0;                               // of it, seconds in which a step ran
  double most_kv = 0, mean_kv = 0;               // shares of the pool
  int most_running = 0;
  int num_refused = 0, num_expired = 0;
};
inline constexpr size_t kSimMoments = 200;

SimRun simulate(const SimSetup& setup, std::span<const SimRequest> workload);

// The prompt of request `index`: equal block ids give equal tokens, and all else is its own.
std::vector<Token> sim_prompt(const SimRequest& request, size_t index);

}  // namespace sluice
