// The requests and steps of a recorded run, for simulations of it. One thread.
#pragma once

#include <vector>

#include "base/result.h"
#include "core/simulation.h"
#include "core/step_load.h"
#include "tools/replay/recording_files.h"

namespace sluice {

// A step that ran, and the prompt that had most of it.
struct RecordedStep {
  uint64_t step = 0;
  StepLoad load;
  int num_decode = 0, prompt_tokens = 0;
  RequestId prompt = 0;  // 0: none
  int prompt_pos = 0, prompt_count = 0;
  double seconds = 0;  // 0: no result
};

struct RecordedWorkload {
  // With their priorities, accounts and deadlines. Outputs have the length that they had, those cut
  // off by a deadline the length that was asked for; of several choices the first one counts.
  std::vector<SimRequest> requests;
  std::vector<RecordedStep> steps;
};

// Requests from before the first segment are left out (400: this program plans otherwise).
Result<RecordedWorkload> read_workload(const RecordedRun& run);
// Arrivals of the last run that has some, from a file or a folder; the first one comes at 0.
Result<std::vector<SimRequest>> recorded_arrivals(const std::string& path);

}  // namespace sluice
