#include "tools/step_means.h"

#include <gtest/gtest.h>

namespace sluice {

namespace {

Time at_ms(int v) { return std::chrono::milliseconds(v); }

// Step `n` launched in one report, and completed two reports later, as with a pipeline.
std::vector<StepReport> pipelined_reports() {
  std::vector<StepReport> out(3);
  for (int i = 0; i < 2; ++i) {
    StepReport& r = out[static_cast<size_t>(i)];
    r.launched = true;
    r.launched_step = static_cast<uint64_t>(i + 1);
    r.plan_begin = at_ms(10 * i), r.plan_end = at_ms(10 * i + 1 + i);
    r.num_slices = 2 + 2 * i;
    r.work.tokens = 10 + 10 * i;
  }
  for (int i = 0; i < 2; ++i) {
    StepReport& r = out[static_cast<size_t>(i + 1)];
    r.completed = true;
    r.completed_step = static_cast<uint64_t>(i + 1);
    r.scheduled = at_ms(10 * i);
    r.begin = at_ms(10 * i + 2), r.end = at_ms(10 * i + 8), r.complete_end = at_ms(10 * i + 9);
  }
  return out;
}

}  // namespace

TEST(StepMeans, PairsACompletedStepWithItsLaunch) {
  std::vector<StepSample> steps = step_samples(pipelined_reports());
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].work.tokens, 10);
  EXPECT_EQ(steps[1].num_requests, 4);
  EXPECT_DOUBLE_EQ(steps[1].scheduling, 0.002);
  for (const StepSample& s : steps) {
    EXPECT_DOUBLE_EQ(s.to_inference, 0.002);
    EXPECT_DOUBLE_EQ(s.inference, 0.006);
    EXPECT_DOUBLE_EQ(s.latency, 0.009);
    EXPECT_LE(s.to_inference + s.inference, s.latency);
  }
}

TEST(StepMeans, AStepLaunchedBeforeTheFirstReportIsLeftOut) {
  std::vector<StepReport> reports = pipelined_reports();
  reports.erase(reports.begin());
  EXPECT_EQ(step_samples(reports).size(), 1u);
}

TEST(StepMeans, LineOfWde) {
  StepMeans m = step_means(step_samples(pipelined_reports()));
  EXPECT_EQ(wde_line(512, 30, 0.5, m),
            "Batchsize 512, Throughput 60.0000 requests/s, Scheduling time 1.5000 ms, "
            "Num requests 3.0000, Num batched tokens 15.0000, Scheduling2inference 2.0000 ms, "
            "Inference time 6.0000 ms, Avg Latency 250.0000 ms, Latency 9.0000 ms, n_step 2");
  EXPECT_EQ(step_means({}).num_steps, 0u);
}

}  // namespace sluice
