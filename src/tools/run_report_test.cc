#include "tools/run_report.h"

#include <gtest/gtest.h>

namespace sluice {

namespace {

ModelShape small_shape() {
  ModelShape m;
  m.arch = "llama";
  m.hidden = 8, m.num_layers = 2, m.num_heads = 2, m.num_kv_heads = 1, m.head_dim = 4;
  m.ffn = 16, m.vocab = 32;
  return m;
}

}  // namespace

TEST(RunReport, OperationsOfAStepAreThoseOfAPrompt) {
  ModelShape m = small_shape();
  StepLoad whole{.tokens = 5, .sampled = 1, .context = 5, .attended = 15};
  EXPECT_DOUBLE_EQ(step_ops(m, whole), prefill_ops(m, 5));
  StepLoad first{.tokens = 3, .sampled = 0, .context = 3, .attended = 6};
  StepLoad rest{.tokens = 2, .sampled = 1, .context = 5, .attended = 9};
  EXPECT_DOUBLE_EQ(step_ops(m, first) + step_ops(m, rest), prefill_ops(m, 5));
}

TEST(RunReport, SharesOfTheLimits) {
  ModelShape m = small_shape();
  StepSample s;
  s.work = {.tokens = 1, .sampled = 1, .context = 100, .attended = 100};
  BenchLimits limits;
  limits.read = 1000;
  limits.peaks = {{"slow", PeakType::f32, 1e3}, {"fast", PeakType::int8, 1e12}};
  std::vector<StepSample> steps = {s, s};
  // 800 + 100 * 2 bytes at 1,000 bytes/s, twice in 4 s.
  LimitShares shares = limit_shares(steps, m, 800, 2, 4, limits);
  EXPECT_DOUBLE_EQ(shares.sol, 0.5);
  EXPECT_DOUBLE_EQ(shares.mfu, 2 * step_ops(m, s.work) / 4 / 1e12);
  EXPECT_EQ(shares.peak, "fast, 1000 Gop/s");
  EXPECT_EQ(shares.percent(shares.sol), "50.0");
  EXPECT_EQ(limit_shares(steps, m, 800, 2, 4, {}).sol, 0);
  limits.peaks = {{"measured on a busy machine", PeakType::f32, 1}};  // below what the run did
  EXPECT_TRUE(limit_shares(steps, m, 800, 2, 4, limits).peak.empty());
  EXPECT_TRUE(limit_shares_json(limit_shares(steps, m, 800, 2, 4, limits)).at("mfu").is_null());
}

TEST(RunReport, SlaFormsOfARun) {
  std::vector<TokenTimes> all = {{0, {0.5, 0.6, 0.7}, 512}, {0, {4, 4.1, 4.9}, 512}};
  SlaSummary s = sla_summary(all);
  EXPECT_DOUBLE_EQ(s.fastgen[0], 0.5);
  EXPECT_NEAR(s.tbt_worst_decile, 0.8, 1e-12);
  EXPECT_NEAR(s.normalised_mean, (0.7 / 3 + 4.9 / 3) / 2, 1e-12);
  EXPECT_EQ(sla_json(s).at("fastgen_share_by_tokens_per_s").as_object().size(), 3u);
  EXPECT_EQ(sla_summary({}).tbt_p99, 0);
}

}  // namespace sluice
