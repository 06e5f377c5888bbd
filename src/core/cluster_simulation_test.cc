#include "core/cluster_simulation.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace sluice {

namespace {

using std::chrono::milliseconds;

ClusterSetup cluster_of(int workers, Routing policy) {
  ClusterSetup c;
  SchedulerConfig& s = c.worker.scheduler;
  s.budget = 256;
  s.max_seqs = 16;
  s.max_len = 4096;
  s.num_blocks = 1024;
  c.worker.cost.rows = {{1, 2e-3}, {256, 10e-3}};
  c.num_workers = workers;
  c.routing.policy = policy;
  return c;
}

// Requests in bursts; every tenth has one of three prefixes of two blocks.
std::vector<SimRequest> cluster_load(int num, int gap_ms) {
  std::vector<SimRequest> out;
  for (int i = 0; i < num; ++i) {
    SimRequest& r = out.emplace_back();
    r.at = milliseconds(gap_ms * (i / 3));
    r.input = 100 + 37 * i % 900;
    r.output = 1 + 13 * i % 60;
    r.block_tokens = 128;
    if (i % 10 < 7) {
      const auto p = static_cast<uint64_t>(i % 3);
      r.blocks = {p * 10 + 1, p * 10 + 2};
      r.input += 256;
    }
  }
  return out;
}

double cluster_hits(const ClusterRun& run) {
  double hits = 0, asked = 0;
  for (const SimRun& w : run.workers)
    hits += static_cast<double>(w.prefix_hits), asked += static_cast<double>(w.prefix_queries);
  return hits / asked;
}

}  // namespace

TEST(ClusterSimulation, OneWorkerIsTheSimulation) {
  const auto load = cluster_load(120, 9);
  const ClusterSetup setup = cluster_of(1, Routing::cache_aware);
  const SimRun one = simulate(setup.worker, load);
  const ClusterRun run = simulate_cluster(setup, load);
  ASSERT_EQ(run.workers.size(), 1u);
  EXPECT_EQ(run.workers[0].num_steps, one.num_steps);
  EXPECT_EQ(run.workers[0].prefix_hits, one.prefix_hits);
  for (size_t i = 0; i < load.size(); ++i) {
    EXPECT_EQ(run.workers[0].answers[i].first_token, one.answers[i].first_token) << i;
    EXPECT_EQ(run.workers[0].answers[i].finish, one.answers[i].finish) << i;
  }
}

TEST(ClusterSimulation, EveryRequestEndsOnceAndRunsAreAlike) {
  auto load = cluster_load(300, 3);
  load[17].input = 5000;  // longer than the context
  for (const auto& row : kRoutings) {
    for (bool reject : {false, true}) {
      ClusterSetup setup = cluster_of(4, row.value);
      setup.routing.reject = reject;
      setup.routing.ttft = 0.08;
      setup.routing.tpot = 0.02;
      const ClusterRun run = simulate_cluster(setup, load), again = simulate_cluster(setup, load);
      EXPECT_EQ(run.placed, again.placed) << row.name;
      EXPECT_EQ(run.retry_after, again.retry_after) << row.name;
      ASSERT_EQ(run.placed.size(), load.size());
      // The requests of a worker, in their order, are its answers.
      std::vector<size_t> next(4);
      uint64_t rejected = 0, refused = 0;
      for (size_t i = 0; i < load.size(); ++i) {
        if (run.placed[i] < 0) {
          ++rejected;
          continue;
        }
        const auto w = static_cast<size_t>(run.placed[i]);
        ASSERT_LT(next[w], run.workers[w].answers.size());
        const SimAnswer& a = run.workers[w].answers[next[w]++];
        EXPECT_EQ(a.input, load[i].input);
        refused += a.refused;
        if (!a.refused) {
          EXPECT_EQ(a.num_tokens, load[i].output);
          EXPECT_GE(a.finish, a.first_token);
          EXPECT_GT(a.first_token, load[i].at);
        }
      }
      for (size_t w = 0; w < 4; ++w) EXPECT_EQ(next[w], run.workers[w].answers.size());
      EXPECT_EQ(rejected, run.num_rejected);
      EXPECT_EQ(rejected, run.retry_after.size());
      if (!reject) {
        EXPECT_EQ(rejected, 0u);
        EXPECT_EQ(refused, 1u);
      } else {
        EXPECT_GT(rejected, 0u) << row.name;
        EXPECT_LT(rejected, load.size() * 9 / 10) << row.name;
      }
    }
  }
}

TEST(ClusterSimulation, ByCacheMoreIsHit) {
  // Twelve prefixes of 1,024 tokens; a worker has room for six.
  std::vector<SimRequest> load = cluster_load(300, 60);
  for (size_t i = 0; i < load.size(); ++i) {
    SimRequest& r = load[i];
    const uint64_t prefix = mix_bits(i + 1) % 12;
    r.blocks.clear();
    for (uint64_t b = 0; b < 8; ++b) r.blocks.push_back(prefix * 100 + b);
    r.input = 1024 + 50 + static_cast<int>(i % 7) * 10;
    r.output = 10;
  }
  ClusterSetup setup = cluster_of(4, Routing::cache_aware);
  setup.worker.scheduler.num_blocks = 400;
  const double by_cache = cluster_hits(simulate_cluster(setup, load));
  setup.routing.policy = Routing::round_robin;
  const double in_turn = cluster_hits(simulate_cluster(setup, load));
  EXPECT_GT(by_cache, in_turn + 0.2);
}

TEST(ClusterSimulation, RejectionKeepsTheObjectiveOfThoseTaken) {
  const auto load = cluster_load(600, 2);
  ClusterSetup setup = cluster_of(4, Routing::cache_aware);
  setup.routing.ttft = 0.2;
  const auto late = [&](const ClusterRun& run) {
    int n = 0;
    for (const SimRun& w : run.workers)
      for (const SimAnswer& a : w.answers) n += a.ttft() > 2 * setup.routing.ttft;
    return n;
  };
  const int before = late(simulate_cluster(setup, load));
  setup.routing.reject = true;
  const ClusterRun run = simulate_cluster(setup, load);
  EXPECT_GT(before, 100);
  EXPECT_LT(late(run), 10);
  for (double s : run.retry_after) EXPECT_GT(s, 0);
}

TEST(ClusterSimulation, PromptsAreHandedOver) {
  auto load = cluster_load(200, 6);
  load[17].input = 5000;  // longer than the context
  using enum WorkerRole;
  for (const auto& row : kRoutings) {
    ClusterSetup setup = cluster_of(4, row.value);
    setup.roles = {prefill, decode, prefill, decode};
    setup.routing.transfer = 1e-6;
    const ClusterRun run = simulate_cluster(setup, load), again = simulate_cluster(setup, load);
    EXPECT_EQ(run.placed, again.placed) << row.name;
    EXPECT_GT(run.num_handed_over, 20u) << row.name;
    EXPECT_EQ(run.num_handed_over, again.num_handed_over);
    // Each request has one answer, at a decode worker, or is refused.
    size_t answers = 0, refused = 0, tokens = 0, wanted = 0;
    for (const SimRun& w : run.workers) {
      answers += w.answers.size();
      refused += static_cast<size_t>(w.num_refused);
      for (const SimAnswer& a : w.answers) {
        tokens += static_cast<size_t>(a.num_tokens);
        EXPECT_TRUE(a.refused || a.first_token > a.arrival);
      }
    }
    for (const SimRequest& r : load) wanted += static_cast<size_t>(r.output);
    EXPECT_EQ(answers, load.size()) << row.name;
    EXPECT_EQ(refused, 1u);
    EXPECT_EQ(tokens, wanted - static_cast<size_t>(load[17].output));
    EXPECT_TRUE(run.workers[0].answers.size() + run.workers[2].answers.size() <= 1);
  }
}

TEST(ClusterSimulation, WhatExpiresOnAPrefillWorkerIsCounted) {
  auto load = cluster_load(200, 2);
  for (size_t i = 0; i < load.size(); i += 2) load[i].deadline = load[i].at + milliseconds(100);
  using enum WorkerRole;
  ClusterSetup setup = cluster_of(3, Routing::round_robin);
  setup.roles = {prefill, decode, decode};
  const ClusterRun run = simulate_cluster(setup, load);
  size_t answers = 0;
  int expired = 0;
  for (const SimRun& w : run.workers) {
    answers += w.answers.size();
    for (const SimAnswer& a : w.answers) expired += a.expired;
  }
  EXPECT_EQ(answers, load.size());
  EXPECT_GT(run.workers[0].answers.size(), 10u);
  EXPECT_EQ(expired,
            run.workers[0].num_expired + run.workers[1].num_expired + run.workers[2].num_expired);
}

TEST(ClusterSimulation, AHandedOverPromptIsNotComputedAgain) {
  const auto load = cluster_load(60, 200);  // one burst after the other
  using enum WorkerRole;
  ClusterSetup setup = cluster_of(2, Routing::round_robin);
  setup.roles = {prefill, decode};
  const ClusterRun fast = simulate_cluster(setup, load);
  EXPECT_EQ(fast.num_handed_over, load.size());
  uint64_t outputs = 0;
  for (const SimRequest& r : load) outputs += static_cast<uint64_t>(r.output);
  // The tail of each prompt, at most a block, and every output but the first token.
  EXPECT_LE(fast.workers[1].num_computed, outputs + 16 * load.size());
  EXPECT_EQ(fast.workers[1].prefix_hits, 0u);
  // A slow link shows in the time to the first token, and nowhere else.
  setup.routing.transfer = 50e-6;
  const ClusterRun slow = simulate_cluster(setup, load);
  double more = 0, tokens = 0;
  for (size_t i = 0; i < load.size(); ++i) {
    more += slow.workers[1].answers[i].ttft() - fast.workers[1].answers[i].ttft();
    tokens += load[i].input;
  }
  EXPECT_GT(more, tokens * 50e-6 * 0.8);
}

// One hot prefix in bursts: with fetches it is computed once, and then moves.
TEST(ClusterSimulation, HotPrefixesAreFetched) {
  std::vector<SimRequest> load;
  for (int i = 0; i < 120; ++i) {
    SimRequest& r = load.emplace_back();
    r.at = milliseconds(700 * (i / 12) + 3 * (i % 12));
    r.input = 2'048 + 60;
    r.output = 20;
    r.block_tokens = 128;
    for (uint64_t b = 0; b < 16; ++b) r.blocks.push_back(100 * (static_cast<uint64_t>(i) / 60) + b);
  }
  ClusterSetup setup = cluster_of(4, Routing::cache_aware);
  setup.worker = with_places(setup.worker);
  const ClusterRun without = simulate_cluster(setup, load);
  EXPECT_EQ(without.num_fetches, 0u);
  setup.routing.fetch = true;
  setup.routing.transfer = 1e-6;
  const ClusterRun with = simulate_cluster(setup, load), again = simulate_cluster(setup, load);
  EXPECT_EQ(with.placed, again.placed);
  EXPECT_GT(with.num_fetches, 0u);
  EXPECT_GT(with.num_fetched_tokens, 2'000u);
  const auto computed = [](const ClusterRun& run) {
    uint64_t num = 0;
    for (const SimRun& w : run.workers) num += w.num_computed;
    return num;
  };
  EXPECT_LT(computed(with), computed(without));
  size_t answers = 0;
  for (const SimRun& w : with.workers) {
    answers += w.answers.size();
    for (const SimAnswer& a : w.answers) EXPECT_GT(a.first_token, a.arrival);
  }
  EXPECT_EQ(answers, load.size());
  // A link that is slower than computing is not used.
  setup.routing.transfer = 1e-3;
  EXPECT_EQ(simulate_cluster(setup, load).num_fetches, 0u);
}

// Long prompts, then long outputs: the workers change what they do, and every request ends once.
TEST(ClusterSimulation, RolesFollowTheMix) {
  std::vector<SimRequest> load;
  Time at{0};
  for (int i = 0; i < 3'600; ++i) {
    const bool prompts = i % 2'400 < 1'200;
    SimRequest& r = load.emplace_back();
    r.at = at += milliseconds(prompts ? 24 : 10);
    r.input = prompts ? 1'500 + i % 7 * 100 : 60 + i % 50;
    r.output = prompts ? 24 : 60;
  }
  ClusterSetup setup = cluster_of(8, Routing::cache_aware);
  setup.routing.transfer = 1e-6;
  setup.routing.ttft = 1;
  setup.routing.tpot = 4e-3;
  const auto good = [&](const ClusterRun& run) {
    int n = 0;
    for (const SimRun& w : run.workers)
      for (const SimAnswer& a : w.answers)
        n += a.ttft() <= setup.routing.ttft && a.tpot() <= setup.routing.tpot;
    return n;
  };
  const int all_do_all = good(simulate_cluster(setup, load));
  setup.routing.balance = true;
  const ClusterRun run = simulate_cluster(setup, load), again = simulate_cluster(setup, load);
  EXPECT_EQ(run.placed, again.placed);
  EXPECT_GT(run.num_role_changes, 4u);
  EXPECT_GT(run.num_handed_over, 200u);
  size_t answers = 0, tokens = 0, wanted = 0;
  for (const SimRun& w : run.workers) {
    answers += w.answers.size();
    for (const SimAnswer& a : w.answers) tokens += static_cast<size_t>(a.num_tokens);
  }
  for (const SimRequest& r : load) wanted += static_cast<size_t>(r.output);
  EXPECT_EQ(answers, load.size());
  EXPECT_EQ(tokens, wanted);
  EXPECT_GT(good(run), all_do_all + 200);
}

}  // namespace sluice
