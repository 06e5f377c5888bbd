// Eager admission preempts, reservation leaves memory idle; predicted peaks do neither. Counted on
// a virtual clock.
#include <cmath>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "core/policy.h"
#include "core/virtual_run.h"

namespace sluice {
namespace {

struct Outcome {
  double tokens_per_second = 0;
  uint64_t preemptions = 0;
};

// 3,000 requests of four accounts whose outputs have a median of 20, 90, 150 and 330 tokens, each
// asking for up to 2,048. About 250 fit the pool of 2,400 blocks.
Outcome run(Admission admission, const char* predictor, int num_blocks = 2400) {
  SchedulerConfig c;
  c.admission = admission;
  c.predictor = parse_predictor(predictor).value();
  c.num_blocks = num_blocks;
  c.prefix_cache = false;
  VirtualRun run(c);
  std::mt19937_64 rng(1);
  auto uniform = [&] { return (static_cast<double>(rng() >> 11) + 0.5) / 9007199254740992.0; };
  int64_t tokens = 0;
  for (int i = 0; i < 3000; ++i) {
    static constexpr double kMedians[] = {3.0, 4.5, 5.0, 5.8};
    double z = std::sqrt(-2 * std::log(uniform())) * std::cos(6.283185307179586 * uniform());
    int output = std::clamp(static_cast<int>(std::exp(kMedians[i % 4] + 0.5 * z)), 1, 1500);
    tokens += output;
    run.add({.prompt = 20 + static_cast<int>(uniform() * 100),
             .output = output,
             .max_new = 2048,
             .account = static_cast<TenantId>(i % 4)});
  }
  run.run();
  return {static_cast<double>(tokens) / seconds(run.now()),
          run.scheduler().stats().num_preemptions};
}

TEST(SchedulerAdmission, LearntQuantilesHardlyPreemptAtEagersThroughput) {
  Outcome eager = run(Admission::watermark, "oracle"),
          peak = run(Admission::predicted_peak, "quantile");
  EXPECT_GT(eager.preemptions, 100u) << "the workload proves too little";
  EXPECT_LE(static_cast<double>(peak.preemptions), 0.05 * static_cast<double>(eager.preemptions));
  EXPECT_GE(peak.tokens_per_second, 0.95 * eager.tokens_per_second);
}

// The figures of docs/scheduling.md; --gtest_output=xml:FILE shows them.
TEST(SchedulerAdmission, SmallerPoolsAndOtherQuantiles) {
  auto per_mille = [](double part, double whole) { return static_cast<int>(1000 * part / whole); };
  auto compare = [&](int num_blocks, const char* predictor, double preempted, double throughput) {
    Outcome eager = run(Admission::watermark, "oracle", num_blocks),
            peak = run(Admission::predicted_peak, predictor, num_blocks);
    auto was = static_cast<double>(eager.preemptions), is = static_cast<double>(peak.preemptions);
    EXPECT_LE(is, preempted * was) << predictor << " in " << num_blocks;
    EXPECT_GE(peak.tokens_per_second, throughput * eager.tokens_per_second)
        << predictor << " in " << num_blocks;
    std::string name = "blocks_" + std::to_string(num_blocks) + "_" + predictor;
    RecordProperty(name + "_preemptions", static_cast<int>(peak.preemptions));
    RecordProperty(name + "_of", static_cast<int>(eager.preemptions));
    RecordProperty(name + "_throughput_per_mille",
                   per_mille(peak.tokens_per_second, eager.tokens_per_second));
  };
  for (int num_blocks : {600, 1200, 1800, 2400}) compare(num_blocks, "survival", 0.06, 0.95);
  compare(600, "quantile:0.75", 0.12, 0.94);
  compare(1200, "quantile:0.75", 0.07, 0.96);
  compare(1800, "quantile:0.75", 0.05, 0.96);
  compare(1200, "quantile:0.6", 0.15, 0.99);
  compare(1200, "quantile:0.9", 0.01, 0.85);
}

TEST(SchedulerAdmission, WhatEveryoneMayAskForAtMostLeavesMemoryIdle) {
  Outcome eager = run(Admission::watermark, "oracle"),
          reserve = run(Admission::reserve_max, "oracle"),
          constant = run(Admission::predicted_peak, "constant:256");
  EXPECT_EQ(reserve.preemptions, 0u);
  EXPECT_LT(reserve.tokens_per_second, 0.25 * eager.tokens_per_second);
  EXPECT_GT(constant.tokens_per_second, 0.9 * eager.tokens_per_second);
}

// What a device cannot sample by is refused with the field's name.
TEST(SchedulerCheck, SamplingBeyondTheDeviceIsRefused) {
  SchedulerConfig config;
  config.num_blocks = 16;
  config.max_len = 64;
  auto checked = [&](const SamplingSpec& spec) {
    Request r;
    r.prompt = std::make_shared<const std::vector<Token>>(4, 1);
    r.max_new = 4;
    r.sampling = std::make_shared<const SamplingSpec>(spec);
    const Result<void> ok = Scheduler::check(r, config);
    return ok ? std::string("fits") : ok.error().message;
  };
  SamplingSpec spec;
  spec.num_logprobs = 5;
  spec.logprob_ids = {1, 2};
  EXPECT_EQ(checked(spec), "fits");
  config.sampling.logprob_ids = 0;
  EXPECT_NE(checked(spec).find("logprob_token_ids"), std::string::npos) << checked(spec);
  spec.logprob_ids.clear();
  EXPECT_EQ(checked(spec), "fits");
  config.sampling.num_logprobs = 4;
  EXPECT_NE(checked(spec).find("fewer logprobs"), std::string::npos) << checked(spec);
}

}  // namespace
}  // namespace sluice
