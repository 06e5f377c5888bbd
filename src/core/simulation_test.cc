#include "core/simulation.h"

#include <gtest/gtest.h>

namespace sluice {

namespace {

using std::chrono::milliseconds;

SchedulerConfig sim_config(Pipeline pipeline = Pipeline::sync) {
  SchedulerConfig c;
  c.budget = 64;
  c.max_seqs = 8;
  c.max_len = 512;
  c.num_blocks = 256;
  c.pipeline = pipeline;
  return c;
}

// 10 ms a step.
StepCost flat_cost() {
  StepCost c;
  c.rows = {{1, 10e-3}, {1024, 10e-3}};
  return c;
}

}  // namespace

TEST(Simulation, OneRequestTakesItsSteps) {
  const std::vector<SimRequest> one = {{milliseconds(100), 130, 5, {}}};
  const SimRun run = simulate({sim_config(), flat_cost()}, one);
  const SimAnswer& a = run.answers[0];
  EXPECT_EQ(run.num_steps, 3u + 4u);  // chunks of 64, then a token each
  EXPECT_EQ(a.num_tokens, 5);
  EXPECT_NEAR(a.ttft(), 30e-3, 1e-6);
  EXPECT_NEAR(a.e2e(), 70e-3, 1e-6);
  EXPECT_NEAR(a.tpot(), 10e-3, 1e-6);
  EXPECT_EQ(a.longest_gap, milliseconds(10));
  EXPECT_NEAR(run.elapsed, 70e-3, 1e-6);
  EXPECT_NEAR(run.busy, run.elapsed, 1e-6);
  EXPECT_EQ(run.gaps.size(), 4u);
}

TEST(Simulation, PrioritiesAndDeadlinesAreTheRequestsOwn) {
  std::vector<SimRequest> three(3, {Time{0}, 8, 10, {}});
  three[1].priority = 2;
  three[2].priority = 1;
  SimSetup setup{sim_config(), flat_cost()};
  setup.scheduler.max_seqs = 1;
  setup.scheduler.order = Order::priority;
  SimRun run = simulate(setup, three);
  EXPECT_NEAR(run.answers[2].ttft(), 110e-3, 1e-6);
  EXPECT_NEAR(run.answers[1].ttft(), 210e-3, 1e-6);
  EXPECT_EQ(run.num_expired, 0);
  three[1].deadline = milliseconds(155);  // while the third runs
  three[2].deadline = milliseconds(155);
  run = simulate(setup, three);
  EXPECT_EQ(run.num_expired, 2);
  EXPECT_TRUE(run.answers[1].expired && run.answers[2].expired);
  EXPECT_EQ(run.answers[1].num_tokens, 0);
  EXPECT_GT(run.answers[2].num_tokens, 0);
  EXPECT_LT(run.answers[2].num_tokens, 10);
  EXPECT_EQ(run.answers[0].num_tokens, 10);
}

TEST(Simulation, HostTimeShowsUnlessStepsHideIt) {
  const std::vector<SimRequest> one = {{Time{0}, 8, 21, {}}};
  SimSetup setup{sim_config(), flat_cost()};
  setup.cost.host_step = 3e-3;
  setup.cost.host_slice = 1e-3;
  EXPECT_NEAR(simulate(setup, one).answers[0].tpot(), 14e-3, 1e-6);
  setup.scheduler.pipeline = Pipeline::overlap;
  EXPECT_NEAR(simulate(setup, one).answers[0].tpot(), 10e-3, 1e-6);
  setup.cost.host_step = 20e-3;  // longer than the step
  EXPECT_NEAR(simulate(setup, one).answers[0].tpot(), 21e-3, 1e-3);
}

TEST(Simulation, AnArrivalWaitsForTheStepsInFlight) {
  const std::vector<SimRequest> two = {{Time{0}, 8, 50, {}}, {milliseconds(95), 8, 2, {}}};
  // Sync: the step that runs ends at 100 ms, the next at 110 ms.
  EXPECT_NEAR(simulate({sim_config(), flat_cost()}, two).answers[1].ttft(), 15e-3, 1e-6);
  // Overlap: one more is queued already.
  EXPECT_NEAR(simulate({sim_config(Pipeline::overlap), flat_cost()}, two).answers[1].ttft(), 25e-3,
              1e-6);
}

TEST(Simulation, EveryPipelineAndPresetEnds) {
  std::vector<SimRequest> some;
  for (int i = 0; i < 40; ++i)
    some.push_back({milliseconds(7 * i), 10 + 37 * i % 200, 1 + 13 * i % 60, {}});
  for (Pipeline p : {Pipeline::sync, Pipeline::simple_async, Pipeline::interleave,
                     Pipeline::double_buffer, Pipeline::overlap}) {
    for (const char* preset : {"static", "orca", "vllm", "sarathi"}) {
      SimSetup setup{sim_config(p), flat_cost()};
      setup.scheduler.budget = 512;
      ASSERT_TRUE(apply_preset(preset, setup.scheduler));
      const SimRun run = simulate(setup, some);
      for (size_t i = 0; i < some.size(); ++i)
        EXPECT_EQ(run.answers[i].num_tokens, some[i].output) << preset << i;
      EXPECT_EQ(run.num_refused, 0);
    }
  }
}

// `bench ablate --only continuous,continuous-ragged` in virtual time: 32 requests, one in eight of
// 200 tokens, the others of 8, in 8 slots. Seconds that batches by request take over those of
// batches by step; `padded`: all rows of a batch are computed until its longest ends.
double static_over_continuous(const StepCost& cost, bool padded) {
  std::vector<SimRequest> asked(32, {Time{0}, 16, 8, {}}), run;
  for (size_t i = 0; i < asked.size(); i += 8) asked[i].output = 200;
  run = asked;
  for (SimRequest& r : run) r.output = padded ? 200 : r.output;
  auto seconds_of = [&](const char* preset, const std::vector<SimRequest>& w) {
    SimSetup setup{sim_config(), cost};
    setup.scheduler.prefix_cache = false;
    EXPECT_TRUE(apply_preset(preset, setup.scheduler));
    setup.scheduler.budget = 512;
    return simulate(setup, w).elapsed;
  };
  return seconds_of("static", run) / seconds_of("orca", asked);
}

TEST(Simulation, HowMuchContinuousBatchingGainsIsUpToTheCostOfSteps) {
  StepCost per_token;  // arithmetic is the limit
  per_token.rows = {{1, 0.34e-3}, {1024, 0.34}};
  StepCost lab;  // random:lab-16m on two cores: 0.85 ms for one row, 3.2 ms for eight
  lab.rows = {{1, 0.84e-3}, {1024, 0.5e-3 + 0.34}};
  EXPECT_NEAR(static_over_continuous(flat_cost(), false), 3.5, 0.1);  // memory is: the steps count
  EXPECT_NEAR(static_over_continuous(flat_cost(), true), 3.5, 0.1);
  EXPECT_NEAR(static_over_continuous(per_token, false), 1, 0.01);  // the tokens count
  EXPECT_NEAR(static_over_continuous(per_token, true), 4.57, 0.1);
  EXPECT_NEAR(static_over_continuous(lab, false), 1.5, 0.15);
  EXPECT_NEAR(static_over_continuous(lab, true), 4.4, 0.3);
}

TEST(Simulation, EqualBlocksHitThePrefixCache) {
  SimRequest a{Time{0}, 100, 2, {5, 6}, 32}, b{milliseconds(500), 100, 2, {5, 6}, 32},
      c{milliseconds(900), 100, 2, {5, 9}, 32};
  const SimRun run = simulate({sim_config(), flat_cost()}, std::vector{a, b, c});
  EXPECT_EQ(run.answers[0].num_cached, 0);
  EXPECT_EQ(run.answers[1].num_cached, 64);
  EXPECT_EQ(run.answers[2].num_cached, 32);
  EXPECT_EQ(run.prefix_hits, 96u);
}

TEST(Simulation, ScarceBlocksPreemptAndTooLongIsRefused) {
  SimSetup setup{sim_config(), flat_cost()};
  setup.scheduler.num_blocks = 20;
  setup.scheduler.max_len = 256;
  std::vector<SimRequest> some(6, {Time{0}, 32, 100, {}});
  some.push_back({Time{0}, 300, 1, {}});
  const SimRun run = simulate(setup, some);
  EXPECT_GT(run.num_preemptions, 0u);
  EXPECT_EQ(run.num_refused, 1);
  EXPECT_TRUE(run.answers[6].refused);
  EXPECT_GT(run.most_kv, 0.8);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(run.answers[static_cast<size_t>(i)].num_tokens, 100);
}

TEST(Simulation, RecordedTimesReplaceTheCost) {
  SimSetup setup{sim_config(), flat_cost()};
  setup.step_seconds = [](const StepPlan& p) { return p.num_decode > 0 ? 2e-3 : 5e-3; };
  const SimRun run = simulate(setup, std::vector<SimRequest>{{Time{0}, 8, 3, {}}});
  EXPECT_NEAR(run.answers[0].e2e(), 9e-3, 1e-6);
}

TEST(Simulation, LongPromptsAndEndlessStepsDoNoHarm) {
  // The prompt of the first is never made.
  const std::vector<SimRequest> two = {{Time{0}, INT32_MAX, INT32_MAX, {}}, {Time{0}, 8, 50, {}}};
  SimSetup setup{sim_config(), flat_cost()};
  setup.step_seconds = [](const StepPlan&) { return 1e300; };
  const SimRun run = simulate(setup, two);
  EXPECT_TRUE(run.answers[0].refused);
  EXPECT_EQ(run.num_refused, 1);
  EXPECT_EQ(run.answers[1].num_tokens, 50);
  EXPECT_GE(run.answers[1].tpot(), 0);
}

TEST(Simulation, MomentsStayFew) {
  const std::vector<SimRequest> one = {{Time{0}, 8, 490, {}}, {Time{0}, 9, 480, {}}};
  const SimRun run = simulate({sim_config(), flat_cost()}, one);
  EXPECT_GE(run.moments.size(), kSimMoments);
  EXPECT_LT(run.moments.size(), 2 * kSimMoments);
  EXPECT_TRUE(simulate({sim_config(), flat_cost()}, {}).answers.empty());
}

}  // namespace sluice
