// A workload run on an engine of its own, in this process, at its true times. For tools/lab.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "runtime/options.h"
#include "tools/lab/workload.h"
#include "tools/run_report.h"
#include "tools/text_work.h"

namespace sluice {

class Session;

struct LabRun {
  double elapsed = 0;  // first request to last token
  uint64_t num_requests = 0, tokens_in = 0, tokens_out = 0, computed = 0, preemptions = 0;
  int most_running = 0;
  std::vector<TokenTimes> times;  // by request
  std::vector<StepSample> steps;
  std::vector<StepReport> reports;  // of every iteration
  uint64_t digest = 0;              // of all output tokens
  ModelShape shape;
  size_t step_bytes = 0, kv_per_token = 0;
};

struct LabSetup {
  EngineOptions engine;
  bool kv_cache = true;  // else every token computes its whole context again
  bool warm = true;      // a request runs before the first is measured
  bool padded = false;   // under --preset static: rows run to their batch's longest
  float temperature = 0, top_p = 1;
  TextWork text = TextWork::none;
};

// On the CPU, quiet, with the default policies and steps of 512 tokens.
LabSetup lab_setup(const std::string& model, const std::string& format, int threads);

// The prompt of request `index`: requests with the same block ids or the same group share tokens
// within a run, and nothing is shared between seeds.
std::vector<Token> lab_prompt(const LabRequest& request, int vocab, uint64_t seed, size_t index);

LimitShares shares_of(const LabRun& run, const BenchLimits& limits);

Result<LabRun> run_lab(const LabSetup& setup, const LabWorkload& workload, uint64_t seed);
// The same on an engine that is there, whatever setup.engine says.
Result<LabRun> run_lab_on(Session& session,
                          const LabSetup& setup,
                          const LabWorkload& workload,
                          uint64_t seed);

// One figure of a run, in the unit of its name.
enum class Figure : uint8_t {
  requests_per_s,
  tokens_per_s,  // output
  makespan,
  ttft_p50,
  ttft_mean,
  itl_p50,
  itl_p99,
  latency_mean,  // of requests
  steps,
  computed,  // tokens
  preemptions,
  concurrency,
};
struct FigureInfo {
  const char *name, *unit;
  bool more_is_better;
};
const FigureInfo& figure_info(Figure figure);
double figure_of(const LabRun& run, Figure figure);
std::string figure_text(double value, Figure figure);  // "12.3 ms"

}  // namespace sluice
