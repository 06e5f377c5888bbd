// What every benchmark of the engine reports beside its own figures: the latency forms of other
// systems, and how near to the machine's limits a run came. Pure functions.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "tools/bench_limits.h"
#include "tools/sla.h"
#include "tools/step_means.h"

namespace sluice {

struct SlaSummary {
  double normalised_mean = 0, normalised_p50 = 0;  // s per output token
  double tbt_p99 = 0, tbt_worst_decile = 0;        // s
  double fastgen[std::size(kFastGenRates)] = {};   // share of requests that meet each rate
};
SlaSummary sla_summary(const std::vector<TokenTimes>& requests);
json::object sla_json(const SlaSummary& summary);

// Operations of a step's forward pass: linear layers over all tokens, logits of sampled rows,
// attention over the pairs of queries and keys.
double step_ops(const ModelShape& shape, const StepLoad& work);

// A run beside what the machine could do: each step at least reads the weights and the K and V
// that it attends to, and computes its operations.
struct LimitShares {
  double mfu = 0;    // operations / time / peak
  double sol = 0;    // sum over steps of max(bytes / bandwidth, operations / peak), of the time
  std::string peak;  // whose: the fastest type that the device has; empty: no limits are known
  // "12.3", empty where no limits are known.
  std::string percent(double share) const;
};
// "12.3 % (bfmmla, 200 Gop/s), 45.6 %", or why there are none.
std::string limit_shares_text(const LimitShares& shares);
json::object limit_shares_json(const LimitShares& shares);
LimitShares limit_shares(std::span<const StepSample> steps,
                         const ModelShape& shape,
                         size_t step_bytes,
                         size_t kv_per_token,
                         double elapsed,
                         const BenchLimits& limits);

}  // namespace sluice
