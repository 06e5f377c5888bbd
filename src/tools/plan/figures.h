// A simulated or measured run as the figures that people compare, and the requests of a plan.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "core/simulation.h"
#include "tools/bench_serve/plan.h"
#include "tools/commands.h"
#include "tools/lab/run.h"

namespace sluice {

struct Quantiles {
  double p50 = 0, p90 = 0, p99 = 0, mean = 0;
};

struct PlanFigures {
  // good: keeps all of the SLO; expired: a deadline ended it
  uint64_t requests = 0, refused = 0, expired = 0, good = 0;
  Quantiles ttft, tpot, itl, e2e;  // seconds
  double elapsed = 0;
  double requests_per_s = 0, output_per_s = 0, total_per_s = 0, goodput = 0;  // goodput: requests/s
  double busy = 0, most_kv = 0, mean_kv = 0, hit_rate = 0;                    // shares
  uint64_t steps = 0, preemptions = 0;
  int most_running = 0;
  double share_good() const {
    return requests > 0 ? static_cast<double>(good) / static_cast<double>(requests) : 0;
  }
};

// Of several replicas' runs, which ran at the same time.
PlanFigures figures_of(std::span<const SimRun> runs, const Slo& slo);
PlanFigures figures_of(const LabRun& run, const Slo& slo);
json::object figures_json(const PlanFigures& figures);

// Where the requests of a plan come from.
struct WorkloadOptions {
  std::string trace;                          // file, or a recording; empty: rate and lengths
  double rate = 1;                            // requests per second
  Arrivals arrivals = Arrivals::poisson;      // of a rate
  std::string input = "512", output = "128";  // lengths, as bench serve takes them
  int requests = 0;                           // at most; 0: 500, or the whole trace
  double time_scale = 1, length_scale = 1;    // of a trace: gaps, lengths
  uint64_t seed = 1;
};
Result<std::vector<SimRequest>> plan_workload(const WorkloadOptions& options);
std::string workload_name(const WorkloadOptions& options);
// For an engine that computes them.
LabWorkload lab_workload(std::span<const SimRequest> workload);
// Every so many-th request, from `first` on: what one of the replicas gets.
std::vector<SimRequest> share_of(std::span<const SimRequest> workload, int first, int replicas);

}  // namespace sluice
