#include <gtest/gtest.h>

#include "core/conductor.h"

namespace sluice {

namespace {

using std::chrono::milliseconds;

// Steps of 5 ms and 20 us for each token, and objectives that prompts beside decodes break.
class ConductorRoles : public testing::Test {
 protected:
  static std::vector<ConductorWorker> workers(size_t num) {
    ConductorWorker w;
    w.cost.rows = {{1, 5e-3}, {1001, 25e-3}};
    w.fetches = true;
    return std::vector<ConductorWorker>(num, w);
  }
  static RoutingConfig balanced() {
    return {.ttft = 1, .tpot = 7e-3, .transfer = 1e-6, .balance = true};
  }
  // Long prompts, one after the other, each answered before the next.
  void serve(Conductor& c, int num, int64_t tokens) {
    for (int i = 0; i < num; ++i) {
      const Conductor::Ask ask{.tokens = tokens, .blocks = {}};
      const RoutingChoice choice = c.choose(ask, now_);
      ASSERT_GE(choice.worker, 0);
      answer(c, c.sent(choice.worker, ask, now_), 5 + tokens / 50, choice.decoder < 0);
      if (choice.decoder < 0) continue;
      Conductor::Ask over = ask;
      over.handed_over = true;
      answer(c, c.sent(choice.decoder, over, now_), 10, true);
    }
  }
  void answer(Conductor& c, Conductor::Ticket t, int64_t first_token_ms, bool whole) {
    c.tokens(t, 1, now_ += milliseconds(first_token_ms));
    if (whole) c.tokens(t, 99, now_ += milliseconds(500));
    c.ended(t, whole, now_);
  }
  static int count(const Conductor& c, WorkerRole role) {
    int n = 0;
    for (size_t i = 0; i < c.num_workers(); ++i) n += c.role(static_cast<int>(i)) == role;
    return n;
  }
  Time now_{0};
};

}  // namespace

TEST_F(ConductorRoles, FollowTheMixByRank) {
  Conductor c(balanced(), workers(6));
  for (int i = 0; i < 6; ++i) c.set_rank(i, static_cast<uint64_t>(10 - i));
  EXPECT_EQ(count(c, WorkerRole::both), 6);
  serve(c, 600, 3'000);
  const int prefill = count(c, WorkerRole::prefill);
  EXPECT_GT(prefill, 0);
  EXPECT_EQ(count(c, WorkerRole::decode), 6 - prefill);
  for (int i = 0; i < 6; ++i)  // the lowest ranks
    EXPECT_EQ(c.role(i) == WorkerRole::prefill, i >= 6 - prefill) << i;
  EXPECT_GE(c.num_role_changes(), 6u);
  // Prompts that are short: fewer workers for them.
  serve(c, 1'200, 40);
  EXPECT_LT(count(c, WorkerRole::prefill), prefill);
}

TEST_F(ConductorRoles, ConductorsWithDifferentLoadAgree) {
  Conductor a(balanced(), workers(8)), b(balanced(), workers(8));
  serve(a, 1'000, 3'000);
  serve(b, 700, 3'000);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(a.role(i), b.role(i)) << i;
}

TEST_F(ConductorRoles, WithoutTheOptionTheyAreAsReported) {
  RoutingConfig config = balanced();
  config.balance = false;
  Conductor c(config, workers(6));
  c.set_role(2, WorkerRole::prefill, false, true);
  serve(c, 600, 3'000);
  EXPECT_EQ(count(c, WorkerRole::prefill), 1);
  EXPECT_EQ(count(c, WorkerRole::both), 5);
  EXPECT_EQ(c.num_role_changes(), 0u);
}

// Workers that say that they have one role keep it.
TEST_F(ConductorRoles, FixedRolesStay) {
  Conductor c(balanced(), workers(6));
  c.set_role(4, WorkerRole::decode, false, false);
  c.set_role(5, WorkerRole::prefill, false, false);
  serve(c, 600, 3'000);
  EXPECT_EQ(c.role(4), WorkerRole::decode);
  EXPECT_EQ(c.role(5), WorkerRole::prefill);
}

// A worker ends its outputs before it computes prompts alone; meanwhile it gets nothing.
TEST_F(ConductorRoles, AWorkerIsDoneBeforeItChanges) {
  Conductor c(balanced(), workers(4));
  const Conductor::Ask ask{.tokens = 3'000, .blocks = {}};
  const auto busy = c.sent(0, ask, now_);  // the lowest rank: the first to change
  c.tokens(busy, 1, now_);
  serve(c, 300, 3'000);
  EXPECT_EQ(count(c, WorkerRole::prefill), 0);
  EXPECT_EQ(c.role(0), WorkerRole::both);
  EXPECT_TRUE(c.view(0, ask, now_).draining);
  EXPECT_EQ(c.num_requests(0), 1);
  c.ended(busy, true, now_);
  EXPECT_NE(c.choose(ask, now_).worker, -1);
  EXPECT_EQ(c.role(0), WorkerRole::prefill);
  EXPECT_FALSE(c.view(0, ask, now_).draining);
}

TEST_F(ConductorRoles, WhoeverIsLeftTakesRequests) {
  Conductor c(balanced(), workers(2));
  const Conductor::Ask ask{.tokens = 3'000, .blocks = {}};
  const auto busy = c.sent(0, ask, now_);
  c.tokens(busy, 1, now_);
  serve(c, 300, 3'000);
  ASSERT_TRUE(c.view(0, ask, now_).draining);
  c.set_alive(1, false);
  EXPECT_EQ(c.choose(ask, now_).worker, 0);
  c.set_draining(0, true);  // its own word counts
  EXPECT_EQ(c.choose(ask, now_).worker, -1);
}

TEST_F(ConductorRoles, DeathTakesTheRole) {
  Conductor c(balanced(), workers(4));
  serve(c, 600, 3'000);
  ASSERT_EQ(c.role(0), WorkerRole::prefill);
  c.set_alive(0, false);
  EXPECT_EQ(c.role(0), WorkerRole::both);
  const int before = count(c, WorkerRole::prefill);
  serve(c, 300, 3'000);
  EXPECT_EQ(count(c, WorkerRole::prefill), std::max(1, before));
  c.set_alive(0, true);
  serve(c, 600, 3'000);
  EXPECT_EQ(c.role(0), WorkerRole::prefill);  // by rank again
}

}  // namespace sluice
