#include "tools/run_report.h"

#include <algorithm>
#include <string_view>

#include "base/metrics.h"
#include "base/str.h"

namespace sluice {

SlaSummary sla_summary(const std::vector<TokenTimes>& requests) {
  SlaSummary s;
  Percentiles normalised, gaps;
  std::vector<double> all;
  for (const TokenTimes& t : requests) {
    normalised.add(t.normalised_latency());
    for (size_t i = 1; i < t.tokens.size(); ++i) {
      all.push_back(t.tokens[i] - t.tokens[i - 1]);
      gaps.add(all.back());
    }
    for (size_t i = 0; i < std::size(kFastGenRates); ++i)
      s.fastgen[i] += meets_fastgen(t, kFastGenRates[i]) ? 1 : 0;
  }
  for (double& share : s.fastgen)
    share /= static_cast<double>(std::max<size_t>(requests.size(), 1));
  s.normalised_mean = requests.empty() ? 0 : normalised.mean();
  s.normalised_p50 = normalised.at(0.5);
  s.tbt_p99 = gaps.at(0.99);
  s.tbt_worst_decile = worst_decile_gap(std::move(all));
  return s;
}

json::object sla_json(const SlaSummary& s) {
  json::object fastgen;
  for (size_t i = 0; i < std::size(kFastGenRates); ++i)
    fastgen[strf("%g", kFastGenRates[i])] = s.fastgen[i];
  return {{"normalised_latency_s",
           json::object{{"mean", s.normalised_mean}, {"p50", s.normalised_p50}}},
          {"tbt_p99_s", s.tbt_p99},
          {"tbt_worst_decile_s", s.tbt_worst_decile},
          {"fastgen_share_by_tokens_per_s", std::move(fastgen)}};
}

double step_ops(const ModelShape& m, const StepLoad& w) {
  double ops = 0;
  for (const Product& p : products(m)) {
    double rows = std::string_view(p.name) == "lm_head" ? w.sampled : w.tokens;
    ops += 2.0 * static_cast<double>(p.rows) * static_cast<double>(p.cols) * p.times * rows;
  }
  return ops + 4.0 * static_cast<double>(w.attended) * m.num_heads * m.head_dim * m.num_layers;
}

std::string LimitShares::percent(double share) const {
  return peak.empty() ? "" : strf("%.1f", share * 100);
}

std::string limit_shares_text(const LimitShares& s) {
  if (s.peak.empty()) return "not known: no limits were measured, or others used the machine then";
  return strf("%.1f %% (%s), %.1f %%", s.mfu * 100, s.peak.c_str(), s.sol * 100);
}

json::object limit_shares_json(const LimitShares& s) {
  if (s.peak.empty()) return {{"mfu", nullptr}, {"sol_fraction", nullptr}};
  return {{"mfu", s.mfu}, {"sol_fraction", s.sol}, {"mfu_peak", s.peak}};
}

LimitShares limit_shares(std::span<const StepSample> steps,
                         const ModelShape& shape,
                         size_t step_bytes,
                         size_t kv_per_token,
                         double elapsed,
                         const BenchLimits& limits) {
  LimitShares out;
  const BenchLimits::Peak* peak = nullptr;
  for (const BenchLimits::Peak& p : limits.peaks)
    if (!peak || p.ops_per_s > peak->ops_per_s) peak = &p;
  if (!peak || limits.read <= 0 || elapsed <= 0) return out;
  out.peak = strf("%s, %.0f Gop/s", peak->name.c_str(), peak->ops_per_s / 1e9);
  double ops = 0, least = 0;
  for (const StepSample& s : steps) {
    const double o = step_ops(shape, s.work);
    const double bytes = static_cast<double>(step_bytes) +
                         static_cast<double>(s.work.context) * static_cast<double>(kv_per_token);
    ops += o;
    least += std::max(bytes / limits.read, o / peak->ops_per_s);
  }
  out.mfu = ops / elapsed / peak->ops_per_s;
  out.sol = least / elapsed;
  // No run computes more than the peak: others used the machine while that was measured.
  constexpr double kPossible = 1.1;
  return out.mfu <= kPossible ? out : LimitShares();
}

}  // namespace sluice
