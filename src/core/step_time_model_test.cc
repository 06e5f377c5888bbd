#include "core/step_time_model.h"

#include <algorithm>
#include <array>

#include <gtest/gtest.h>

#include "base/random.h"

namespace sluice {

namespace {

// 1 ms, 20 us per token, 0.1 us per position read, 1 ns per pair.
double true_time(const StepLoad& l) {
  return 1e-3 + 20e-6 * l.tokens + 0.1e-6 * static_cast<double>(l.context) +
         1e-9 * static_cast<double>(l.attended);
}

StepLoad drawn_load(int i) {
  auto draw = [&](uint32_t what, int n) {
    return static_cast<int>(draw_u32({7, 0, i, what}) % static_cast<uint32_t>(n));
  };
  StepLoad l;
  l.tokens = 1 + draw(1, 512);
  l.context = l.tokens + draw(2, 20000);
  l.attended = l.context * (1 + draw(3, 30));
  return l;
}

}  // namespace

TEST(StepTimeModel, FindsTheCoefficients) {
  StepTimeModel m;
  EXPECT_EQ(m.predict(drawn_load(0)), 0);
  for (int i = 0; i < 100; ++i) m.add(drawn_load(i), true_time(drawn_load(i)));
  EXPECT_NEAR(m.coefficients()[0], 1e-3, 1e-7);
  EXPECT_NEAR(m.coefficients()[1], 20e-6, 1e-9);
  EXPECT_NEAR(m.coefficients()[2], 0.1e-6, 1e-11);
  EXPECT_NEAR(m.coefficients()[3], 1e-9, 1e-13);
  EXPECT_NEAR(m.predict(drawn_load(500)), true_time(drawn_load(500)), 1e-8);
  EXPECT_GT(m.r_squared(), 0.999999);
}

TEST(StepTimeModel, NoiseLowersTheShareExplained) {
  StepTimeModel m;
  for (int i = 0; i < 400; ++i) {
    double noise = draw_double({9, 0, i, 0}) - 0.5;
    m.add(drawn_load(i), true_time(drawn_load(i)) * (1 + noise));
  }
  EXPECT_GT(m.r_squared(), 0.5);
  EXPECT_LT(m.r_squared(), 0.99);
  EXPECT_NEAR(m.coefficients()[1], 20e-6, 8e-6);
}

TEST(StepTimeModel, TermsThatNeverVaryAreLeftOut) {
  StepTimeModel m;
  StepLoad l;
  for (int n = 1; n <= 8; ++n) {
    l.tokens = n, l.context = n, l.attended = n;  // all the same
    m.add(l, 2e-3 + n * 1e-3);
  }
  l.tokens = l.context = l.attended = 20;
  EXPECT_NEAR(m.predict(l), 22e-3, 1e-6);
}

TEST(StepTimeModel, ForgetsWhatWasLongAgo) {
  StepTimeModel m(0.9);
  StepLoad l;
  l.tokens = 4;
  for (int i = 0; i < 100; ++i) m.add(l, 1);
  for (int i = 0; i < 100; ++i) m.add(l, 3);
  EXPECT_NEAR(m.predict(l), 3, 0.01);
}

// Flat to 128 tokens, then 20 us each: a knee bends the line there, and only there.
TEST(StepTimeModel, KneesBendTheLine) {
  constexpr std::array kAt = {32, 128, 512};
  StepTimeModel bent(1, kAt), straight;
  auto time_of = [](int tokens) { return 4e-3 + 20e-6 * std::max(0, tokens - 128); };
  auto load_of = [](int tokens) {
    return StepLoad{.tokens = tokens, .sampled = 1, .context = 5000, .attended = 5000};
  };
  for (int tokens = 8; tokens <= 1024; tokens += 24) {
    bent.add(load_of(tokens), time_of(tokens));
    straight.add(load_of(tokens), time_of(tokens));
  }
  for (int tokens : {1, 64, 128, 300, 1000, 2000})
    EXPECT_NEAR(bent.predict(load_of(tokens)), time_of(tokens), 1e-6) << tokens;
  EXPECT_GT(bent.r_squared(), 0.999999);
  EXPECT_LT(straight.r_squared(), 0.999);
  // Where all steps lie beyond a knee, it says nothing.
  StepTimeModel beyond(1, kAt);
  for (int tokens = 600; tokens < 700; tokens += 10) beyond.add(load_of(tokens), 1e-5 * tokens);
  EXPECT_NEAR(beyond.predict(load_of(1000)), 1e-2, 1e-6);
}

TEST(StepTimeModel, ChoosesTheMostThatEndsInTime) {
  StepTimeModel m;
  for (int i = 0; i < 100; ++i) m.add(drawn_load(i), true_time(drawn_load(i)));
  StepLoad decodes{.tokens = 16, .sampled = 16, .context = 16 * 100, .attended = 16 * 100};
  const int n = m.prompt_tokens_within(decodes, 1000, 5e-3, 512);
  ASSERT_GT(n, 0);
  ASSERT_LT(n, 512);
  auto time_of = [&](int tokens) {
    StepLoad l = decodes;
    l += {.tokens = tokens,
          .sampled = 1,
          .context = 1000 + tokens,
          .attended = tokens * 1000 + tokens * (tokens + 1) / 2};
    return true_time(l);
  };
  EXPECT_LE(time_of(n), 5e-3 + 1e-6);
  EXPECT_GT(time_of(n + 1), 5e-3 - 1e-6);
  EXPECT_LE(m.prompt_tokens_within(decodes, 50'000, 5e-3, 512), n);
  EXPECT_EQ(m.prompt_tokens_within(decodes, 0, 1e-3, 512), 0);
  EXPECT_EQ(m.prompt_tokens_within(decodes, 0, 1, 64), 64);
}

}  // namespace sluice
