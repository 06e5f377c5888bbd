#include "tools/sla.h"

#include <gtest/gtest.h>

namespace sluice {

TEST(Sla, TimesOfOneRequest) {
  TokenTimes t{10, {12, 13, 15}, 100};
  EXPECT_DOUBLE_EQ(t.ttft(), 2);
  EXPECT_DOUBLE_EQ(t.tpot(), 1.5);
  EXPECT_DOUBLE_EQ(t.normalised_latency(), 5.0 / 3);
  EXPECT_DOUBLE_EQ((TokenTimes{0, {1}, 1}).tpot(), 0);
}

TEST(Sla, FastGenWantsAFirstTokenByPromptLengthAndARateThatNeverFalls) {
  // 512 tokens may take a second; 10 tokens/s, then one gap of 2 s moves the average to 0.29 s.
  TokenTimes t{0, {0.9}, 512};
  for (int i = 0; i < 20; ++i) t.tokens.push_back(t.tokens.back() + 0.1);
  EXPECT_TRUE(meets_fastgen(t, 6));
  t.tokens.push_back(t.tokens.back() + 2);
  EXPECT_TRUE(meets_fastgen(t, 2));
  EXPECT_FALSE(meets_fastgen(t, 4));
  t.tokens.push_back(t.tokens.back() + 1e-3);  // the worst counts, not the last
  EXPECT_FALSE(meets_fastgen(t, 4));
  t.prompt = 256;
  EXPECT_FALSE(meets_fastgen(t, 2));
}

TEST(Sla, AverageOfGapsStartsAtTheFirst) {
  GapAverage a;
  EXPECT_EQ(a.worst(), 0);
  a.add(1);
  EXPECT_DOUBLE_EQ(a.worst(), 1);
  a.add(3);
  EXPECT_DOUBLE_EQ(a.worst(), 1.2);
}

TEST(Sla, AttainmentCountsRequestsThatKeepBothLimits) {
  std::vector<TokenTimes> all = {{0, {1, 2}, 1}, {0, {3, 4}, 1}, {0, {1, 9}, 1}, {0, {1}, 1}};
  EXPECT_DOUBLE_EQ(attainment(all, 2, 5), 0.5);
  EXPECT_DOUBLE_EQ(attainment(all, 3, 8), 1);
  EXPECT_DOUBLE_EQ(attainment({}, 1, 1), 0);
}

TEST(Sla, WorstDecileIsAMean) {
  std::vector<double> gaps(20, 0.01);
  gaps[3] = 1, gaps[17] = 3;
  EXPECT_DOUBLE_EQ(worst_decile_gap(gaps), 2);
  EXPECT_DOUBLE_EQ(worst_decile_gap({0.5, 0.1}), 0.5);
  EXPECT_DOUBLE_EQ(worst_decile_gap({}), 0);
}

}  // namespace sluice
