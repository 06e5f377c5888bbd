// Steps of a run reduced to means, by the definitions of wde's metrics, and its line. Pure.
//   waiting_time          first_scheduled - arrival      (per request; wde's page has the sign
//                                                         reversed)
//   scheduling_time       plan_end - plan_begin
//   scheduling2inference  begin - scheduled
//   inference_time        end - begin: inputs, compute, outputs
//   latency               finish - scheduled: until the results are processed
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/step_load.h"
#include "engine/loop.h"

namespace sluice {

// One completed step with what it held; seconds.
struct StepSample {
  StepLoad work;
  int num_requests = 0;
  double scheduling = 0, to_inference = 0, inference = 0, latency = 0;
};

// Pairs each completed step with its launch, which may be several reports earlier.
std::vector<StepSample> step_samples(std::span<const StepReport> reports);

struct StepMeans {
  uint64_t num_steps = 0;
  double num_requests = 0, num_tokens = 0;
  double scheduling = 0, to_inference = 0, inference = 0, latency = 0;  // seconds
};
StepMeans step_means(std::span<const StepSample> steps);

// "Batchsize 512, Throughput 64.9 requests/s, Scheduling time ...", as wde prints it; `elapsed` is
// the run's, and its average latency that per step.
std::string wde_line(int budget, uint64_t num_requests, double elapsed, const StepMeans& means);

}  // namespace sluice
