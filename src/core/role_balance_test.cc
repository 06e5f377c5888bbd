#include "core/role_balance.h"

#include <gtest/gtest.h>

namespace sluice {

namespace {

// Steps of 5 ms and 20 us for each token; prompts of 3,000 tokens take 65 ms.
StepCost steps_of_a_gpu() {
  StepCost c;
  c.rows = {{1, 5e-3}, {1001, 25e-3}};
  c.context = 1e-8;
  return c;
}

RequestMix mix_of(double seconds, int64_t tokens) {
  RequestMix m;
  for (int i = 0; i < 100; ++i) m.learn(seconds * (i % 2 == 0 ? 0.8 : 1.2), tokens);
  return m;
}

class RoleBalance : public testing::Test {
 protected:
  StepCost cost_ = steps_of_a_gpu();
  SplitSetup setup_{.cost = &cost_, .ttft = 1, .tpot = 10e-3, .output = 200};
  RequestMix long_prompts_ = mix_of(65e-3, 3000), short_prompts_ = mix_of(5e-3, 100);
  int best(const RequestMix& m, int movable, int moved) {
    return best_split(setup_, m, {.movable = movable, .moved = moved});
  }
};

}  // namespace

TEST_F(RoleBalance, MeansOfTheLastRequests) {
  RequestMix m;
  m.learn(1, 10);
  m.learn(3, 30);
  EXPECT_DOUBLE_EQ(m.prompt, 2);
  EXPECT_DOUBLE_EQ(m.prompt_squared, 5);
  EXPECT_DOUBLE_EQ(m.tokens, 20);
  for (int i = 0; i < 12'000; ++i) m.learn(7, 70);
  EXPECT_NEAR(m.prompt, 7, 1e-3);
  EXPECT_NEAR(m.tokens, 70, 1e-2);
}

// A tight time per token is broken by prompts beside decodes: then splitting carries more.
TEST_F(RoleBalance, SplitsUnderATightTimePerToken) {
  const double whole = split_capacity(setup_, long_prompts_, 0, 8);
  double split = 0;
  for (int p = 1; p < 8; ++p)
    split = std::max(split, split_capacity(setup_, long_prompts_, p, 8 - p));
  EXPECT_GT(split, 1.3 * whole);
  EXPECT_GT(best(long_prompts_, 8, 0), 0);
  setup_.tpot = 100e-3;
  EXPECT_EQ(best(long_prompts_, 8, 0), 0);
}

TEST_F(RoleBalance, MorePrefillWorkersForLongerPrompts) {
  const int few = best(mix_of(20e-3, 1000), 16, 4), many = best(mix_of(130e-3, 6000), 16, 4);
  EXPECT_LT(few, many);
  EXPECT_LT(many, 16);  // somebody decodes
}

// From any split the best one is reached, and is left for none.
TEST_F(RoleBalance, ComesToRest) {
  for (const RequestMix& m : {long_prompts_, short_prompts_}) {
    for (int moved = 0; moved <= 16; ++moved) {
      int now = moved;
      for (int i = 0; i < 3; ++i) now = best(m, 16, now);
      EXPECT_EQ(best(m, 16, now), now) << moved;
    }
  }
}

TEST_F(RoleBalance, CapacityGrowsWithWorkersAndFallsWithLoad) {
  double before = 0;
  for (int n = 1; n <= 8; ++n) {
    const double c = split_capacity(setup_, long_prompts_, n, 2 * n);
    EXPECT_GT(c, before);
    before = c;
  }
  EXPECT_GT(split_capacity(setup_, long_prompts_, 0, 4),
            split_capacity(setup_, long_prompts_, 0, 2));
  EXPECT_GT(split_capacity(setup_, short_prompts_, 2, 4),
            split_capacity(setup_, long_prompts_, 2, 4));
  setup_.pace = 2;
  EXPECT_LT(split_capacity(setup_, long_prompts_, 8, 16), before);
}

TEST_F(RoleBalance, NobodyToDecodeOrNothingKnown) {
  EXPECT_EQ(split_capacity(setup_, long_prompts_, 4, 0), 0);
  EXPECT_EQ(split_capacity(setup_, {}, 4, 4), 0);
  EXPECT_EQ(best_split(setup_, {}, {.movable = 8, .moved = 3}), 3);
  // An objective that no split keeps: nothing changes.
  setup_.tpot = 1e-3;
  EXPECT_EQ(best(long_prompts_, 8, 5), 5);
}

// Workers of fixed roles do their part of it.
TEST_F(RoleBalance, FixedRolesCount) {
  const int alone = best(long_prompts_, 8, 0);
  const int beside =
      best_split(setup_, long_prompts_, {.prefill = 2, .movable = 8, .moved = alone});
  EXPECT_LT(beside, alone);
  const int more = best_split(setup_, long_prompts_, {.decode = 4, .movable = 8, .moved = alone});
  EXPECT_GT(more, alone);
}

// A slow link carries no more than it can.
TEST_F(RoleBalance, ASlowLinkIsAReasonNotToSplit) {
  setup_.transfer = 1e-6;
  EXPECT_GT(best(long_prompts_, 8, 0), 0);
  setup_.transfer = 4e-4;  // 1.2 s for a prompt
  EXPECT_EQ(best(long_prompts_, 8, 0), 0);
}

// Workers whose pool is small decode fewer sequences.
TEST_F(RoleBalance, MemoryBoundsDecodes) {
  const double room = split_capacity(setup_, long_prompts_, 4, 4);
  setup_.kv_tokens = 20'000;  // of six
  EXPECT_LT(split_capacity(setup_, long_prompts_, 4, 4), room);
}

}  // namespace sluice
