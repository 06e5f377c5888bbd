// What the orders of service are for, counted on a virtual clock.
#include <cmath>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "core/policy.h"
#include "core/virtual_run.h"

namespace sluice {
namespace {

SchedulerConfig config(Order order, int max_seqs) {
  SchedulerConfig c;
  c.order = order;
  c.max_seqs = max_seqs;
  c.budget = 4096;
  c.num_blocks = 1 << 16;
  c.prefix_cache = false;
  return c;
}

// 1,500 requests at once with lengths like those of instruction data: log-normal, at most 504.
std::vector<VirtualRun::Job> batch_jobs() {
  std::mt19937_64 rng(1);
  auto uniform = [&] { return (static_cast<double>(rng() >> 11) + 0.5) / 9007199254740992.0; };
  std::vector<VirtualRun::Job> jobs;
  for (int i = 0; i < 1500; ++i) {
    double z = std::sqrt(-2 * std::log(uniform())) * std::cos(6.283185307179586 * uniform());
    int output = std::clamp(static_cast<int>(std::exp(4.0 + 1.0 * z)), 1, 504);
    jobs.push_back({.prompt = 24, .output = output});
  }
  return jobs;
}

struct Outcome {
  int steps = 0;
  double mean_latency = 0;
};

Outcome run_batch(Order order) {
  VirtualRun run(config(order, 128));
  for (const VirtualRun::Job& job : batch_jobs()) run.add(job);
  Outcome o;
  while (run.scheduler().has_work()) {
    run.step();
    for (const Event& e : run.events.list) {
      if (e.last) o.mean_latency += seconds(e.timing.finish - e.timing.arrival) / 1500;
    }
  }
  o.steps = run.num_steps;
  return o;
}

TEST(SchedulerOrder, LongestOutputFirstSavesAFifthOfTheSteps) {
  int tokens = 0, longest = 0;
  for (const VirtualRun::Job& job : batch_jobs()) {
    tokens += job.output;
    longest = std::max(longest, job.output);
  }
  int bound = std::max(longest, (tokens + 127) / 128);
  Outcome fcfs = run_batch(Order::fcfs), longest_first = run_batch(Order::longest_output);
  EXPECT_LE(longest_first.steps, 0.8 * fcfs.steps) << fcfs.steps;
  EXPECT_LE(longest_first.steps, 1.02 * bound) << bound;
}

TEST(SchedulerOrder, ShortestOutputFirstHasTheSmallestMeanLatency) {
  Outcome fcfs = run_batch(Order::fcfs), shortest = run_batch(Order::shortest_output),
          longest = run_batch(Order::longest_output);
  EXPECT_LE(shortest.mean_latency, 0.7 * fcfs.mean_latency);
  EXPECT_GE(longest.mean_latency, fcfs.mean_latency);
}

// Two accounts, one of which sends ten times as much: while both wait, both get as much.
TEST(SchedulerOrder, FairGivesNobodyMoreThanItsShare) {
  for (Order order : {Order::fcfs, Order::fair}) {
    VirtualRun run(config(order, 16));
    for (int i = 0; i < 2000; ++i) {
      for (int k = 0; k < 10; ++k) run.add({.prompt = 20, .output = 30, .account = 1});
      run.add({.prompt = 20, .output = 30, .account = 2});
    }
    for (int i = 0; i < 4000; ++i) ASSERT_TRUE(run.step());
    double share = static_cast<double>(run.tokens_of[1]) /
                   static_cast<double>(run.tokens_of[1] + run.tokens_of[2]);
    if (order == Order::fcfs) {
      EXPECT_GT(share, 0.85);
    } else {
      EXPECT_LT(share, 0.51);
      EXPECT_GT(share, 0.49);
    }
  }
}

// The same number of requests, but of one account ten times as long: tokens are shared, not
// requests.
TEST(SchedulerOrder, FairCountsTokens) {
  VirtualRun run(config(Order::fair, 16));
  for (int i = 0; i < 3000; ++i) {
    run.add({.prompt = 100, .output = 200, .account = 1});
    run.add({.prompt = 10, .output = 20, .account = 2});
  }
  for (int i = 0; i < 3000; ++i) ASSERT_TRUE(run.step());
  // They differ by what may be in flight at most.
  EXPECT_LE(std::abs(run.tokens_of[1] - run.tokens_of[2]), 16 * 300);
  EXPECT_GT(run.tokens_of[2], 30'000);
}

// One that was away while another had the engine to itself starts level with it: it neither waits
// for having been charged less nor catches up on what it did not ask for.
TEST(SchedulerOrder, ANewcomerStartsLevel) {
  VirtualRun run(config(Order::fair, 8));
  for (int i = 0; i < 2000; ++i) run.add({.prompt = 10, .output = 30, .account = 1});
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(run.step());
  for (int i = 0; i < 2000; ++i) run.add({.prompt = 10, .output = 30, .account = 2});
  int64_t before = run.tokens_of[1];
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(run.step());
  EXPECT_NEAR(static_cast<double>(run.tokens_of[1] - before), static_cast<double>(run.tokens_of[2]),
              0.05 * static_cast<double>(run.tokens_of[2]));
}

// Without aging a long request among ever new short ones is last; with it, it starts in time.
TEST(SchedulerOrder, AgingBoundsTheWaitInAnyOrder) {
  for (const auto& [name, order] : kOrders) {
    // fcfs has nothing to bound; priority-aging.plan has the other.
    if (order == Order::fcfs || order == Order::priority) continue;
    for (bool aging : {false, true}) {
      SchedulerConfig c = config(order, 1);
      if (aging) c.aging = std::chrono::seconds(1);
      VirtualRun run(c);
      // The one that waits: longest under shortest-output, shortest under longest-output, of an
      // account that was charged much under fair.
      int output = order == Order::shortest_output ? 10 : 2;
      if (order == Order::fair) {
        run.add({.prompt = 4000, .output = 5, .account = 1});
        run.add({.prompt = 1, .output = 1, .account = 2});
        ASSERT_TRUE(run.step());
      }
      RequestId waits = run.add({.prompt = 1, .output = output, .account = 1});
      Time asked = run.now(), ended{0};
      for (int i = 0; i < 300 && ended == Time{0}; ++i) {
        run.add({.prompt = 1, .output = 4, .account = 2});
        ASSERT_TRUE(run.step());
        for (const Event& e : run.events.list) {
          if (e.req == waits && e.last) ended = run.now();
        }
      }
      if (aging) {
        EXPECT_NE(ended, Time{0}) << name;
        EXPECT_LT(seconds(ended - asked), 1.3) << name;
      } else {
        EXPECT_EQ(ended, Time{0}) << name;
      }
    }
  }
}

}  // namespace
}  // namespace sluice
