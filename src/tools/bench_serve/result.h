// A load test's runs reduced to what people read: percentiles, rates, failures by kind, warnings;
// as a table, as JSON, as records. For tools/bench_serve.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "tools/bench_serve/run.h"

namespace sluice {

struct Summary {
  RunPoint point;
  uint64_t sent = 0, ok = 0, failed = 0, cancelled = 0, good = 0;
  std::map<std::string, uint64_t> failures;          // "http 429", "connect", ...
  std::map<std::string, uint64_t> finishes;          // finish_reason of the good ends
  std::map<std::string, std::string> first_message;  // one example per kind of failure
  uint64_t refused = 0, with_retry_after = 0;        // 429 and 503
  uint64_t input_tokens = 0, output_tokens = 0, cached_tokens = 0, chunks = 0;
  uint64_t without_usage = 0;  // requests whose tokens are counted by chunks
  uint64_t input_differs = 0;  // the server counted another prompt length than was asked for
  uint64_t odd_counts = 0;     // more chunks with text than tokens in the usage
  Percentiles ttft, tpot, itl, e2e, refusal, lateness, lag;
  Percentiles normalised;                           // request latency per output token
  uint64_t fastgen[std::size(kFastGenRates)] = {};  // requests that meet each rate
  double worst_decile = 0;                          // of all gaps
  double elapsed = 0, send_window = 0, client_cpu = 0;
  uint64_t connections = 0, stale = 0;
  bool streamed = true, interrupted = false, has_slo = false;
  std::vector<std::string> warnings;

  double per_second(uint64_t n) const { return static_cast<double>(n) / elapsed; }
  double share(uint64_t n) const {
    return sent > 0 ? static_cast<double>(n) / static_cast<double>(sent) : 0;
  }
  // Requests per second that were sent; of an open loop, over the time of sending.
  double send_rate() const;
};

Summary summarise(const RunResult& run, const Slo& slo, bool streamed);

std::string summary_table(std::vector<Summary>& runs);
json::object summary_json(Summary& s);
json::object record_json(const LoadRecord& r, size_t run);

}  // namespace sluice
