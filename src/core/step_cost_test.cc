#include "core/step_cost.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace sluice {

namespace {

// Memory bounds steps of up to 32 tokens, arithmetic larger ones.
StepCost known_cost() {
  StepCost c;
  c.rows = {{1, 4e-3}, {32, 4.5e-3}, {512, 14e-3}};
  c.sampled = 3e-6;
  c.context = 20e-9;
  c.attended = 0.2e-9;
  return c;
}

StepLoad cost_load(int i) {
  auto draw = [&](uint32_t what, int n) {
    return static_cast<int>(draw_u32({11, 0, i, what}) % static_cast<uint32_t>(n));
  };
  StepLoad l;
  const int decodes = 1 + draw(1, 32);
  const int64_t each = 1 + draw(2, 4000);
  l += {
      .tokens = decodes, .sampled = decodes, .context = decodes * each, .attended = decodes * each};
  if (i % 2 == 0) {
    const int n = 1 + draw(3, 480);
    const int64_t pos = draw(4, 8000);
    l += {.tokens = n,
          .sampled = draw(5, 2),
          .context = pos + n,
          .attended = n * pos + static_cast<int64_t>(n) * (n + 1) / 2};
  }
  return l;
}

std::vector<TimedStep> cost_samples(int num, double noise) {
  std::vector<TimedStep> out;
  for (int i = 0; i < num; ++i) {
    const double off = 1 + noise * (draw_double({13, 0, i, 0}) - 0.5);
    out.push_back({cost_load(i), known_cost().seconds(cost_load(i)) * off});
  }
  // Some with exactly the knots' tokens, as calibration has them.
  for (int n : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512}) {
    const StepLoad l{.tokens = n, .sampled = 0, .context = n, .attended = n};
    out.push_back({l, known_cost().seconds(l)});
  }
  return out;
}

}  // namespace

TEST(StepCost, LinesBetweenKnots) {
  StepCost c = known_cost();
  const auto tokens = [&](int n) {
    return c.seconds({.tokens = n, .sampled = 0, .context = 0, .attended = 0});
  };
  EXPECT_DOUBLE_EQ(tokens(1), 4e-3);
  EXPECT_DOUBLE_EQ(tokens(0), 4e-3);
  EXPECT_DOUBLE_EQ(tokens(272), (4.5e-3 + 14e-3) / 2);
  EXPECT_NEAR(tokens(992), 23.5e-3, 1e-9);  // the last line goes on
  c.rows = {{2, 1e-3}};
  EXPECT_DOUBLE_EQ(tokens(8), 4e-3);
  EXPECT_EQ(StepCost().seconds({.tokens = 5, .sampled = 1, .context = 5, .attended = 5}), 0);
}

TEST(StepCost, FitFindsTheCoefficients) {
  const CostFit fit = fit_step_cost(cost_samples(400, 0));
  EXPECT_TRUE(fit.cost.valid());
  EXPECT_NEAR(fit.cost.sampled, 3e-6, 3e-7);
  EXPECT_NEAR(fit.cost.context, 20e-9, 1e-9);
  EXPECT_NEAR(fit.cost.attended, 0.2e-9, 0.01e-9);
  EXPECT_LT(fit.error_p90, 0.01);
  for (int i = 1000; i < 1100; ++i) {
    const double is = known_cost().seconds(cost_load(i));
    EXPECT_NEAR(fit.cost.seconds(cost_load(i)), is, 0.03 * is);
  }
}

// As on a GPU, where decodes are replayed as a graph and prompts are not.
TEST(StepCost, FitTellsPromptsFromDecodesOfAsManyTokens) {
  std::vector<TimedStep> samples;
  const auto add = [&](const StepLoad& l, double extra) {
    samples.push_back({l, known_cost().seconds(l) + extra});
  };
  for (int n : {1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512}) {
    const int64_t k = n;
    add({.tokens = n, .sampled = n, .context = 40 * k, .attended = 40 * k}, 0);
    if (n > 1) add({.tokens = n, .sampled = 1, .context = k, .attended = k * (k + 1) / 2}, 1.5e-3);
  }
  const CostFit fit = fit_step_cost(samples);
  EXPECT_NEAR(fit.cost.prompts, 1.5e-3, 0.1e-3);
  // A prompt of 100 tokens beside 40 decodes, which the fit has not seen.
  const StepLoad mixed{.tokens = 140, .sampled = 41, .context = 1700, .attended = 6650};
  EXPECT_NEAR(fit.cost.seconds(mixed), known_cost().seconds(mixed) + 1.5e-3, 0.3e-3);
}

TEST(StepCost, NoiseAndStepsFarOffHardlyMoveTheFit) {
  std::vector<TimedStep> samples = cost_samples(400, 0.2);
  for (size_t i = 0; i < samples.size(); i += 20) samples[i].seconds *= 10;
  const CostFit fit = fit_step_cost(samples);
  for (int i = 1000; i < 1100; ++i) {
    const double is = known_cost().seconds(cost_load(i));
    EXPECT_NEAR(fit.cost.seconds(cost_load(i)), is, 0.1 * is);
  }
}

// Steps of short contexts by the hundred, with a cost per slice that no term stands for, and a few
// of long ones: those alone say what K and V cost.
TEST(StepCost, FewLongContextsCountAsMuchAsManyShortOnes) {
  std::vector<TimedStep> samples;
  const auto add = [&](int rows, int64_t each) {
    const StepLoad l{
        .tokens = rows, .sampled = rows, .context = rows * each, .attended = rows * each};
    samples.push_back({l, 4e-3 + 5e-6 * rows + 15e-9 * static_cast<double>(l.context) +
                              2e-6 * static_cast<double>(each < 64 ? each % 7 : 0)});
  };
  for (int rows : {1, 2, 4, 8, 16, 32, 64, 128, 256})
    for (int i = 0; i < 100; ++i) add(rows, 8 + i % 12);
  for (int rows : {1, 8, 64, 256})
    for (int64_t each : {512, 2048}) add(rows, each);
  const StepCost c = fit_step_cost(samples).cost;
  EXPECT_NEAR(c.context + c.attended, 15e-9, 1e-9);
}

TEST(StepCost, NothingIsNegativeAndMoreCostsNoLess) {
  // Times that fall with the tokens: noise alone.
  std::vector<TimedStep> samples;
  for (int i = 0; i < 60; ++i) {
    TimedStep s{cost_load(i), 0};
    s.seconds = 1e-3 * (1 + draw_double({17, 0, i, 0})) / (1 + s.load.tokens);
    samples.push_back(s);
  }
  const StepCost c = fit_step_cost(samples).cost;
  EXPECT_TRUE(c.valid());
  for (int i = 0; i < 200; ++i) {
    StepLoad l = cost_load(i);
    const double less = c.seconds(l);
    EXPECT_GE(less, 0);
    l += {.tokens = 7, .sampled = 1, .context = 100, .attended = 300};
    EXPECT_GE(c.seconds(l), less);
  }
}

TEST(StepCost, FewSamplesGiveSomethingSane) {
  EXPECT_EQ(fit_step_cost({}).cost, StepCost());
  const TimedStep one{{.tokens = 4, .sampled = 4, .context = 40, .attended = 40}, 2e-3};
  const TimedStep none{{}, 2e-3};
  EXPECT_NEAR(fit_step_cost(std::vector{one, none}).cost.seconds(one.load), 2e-3, 1e-6);
}

TEST(StepCost, ValidRefusesWhatCannotBe) {
  StepCost c = known_cost();
  EXPECT_TRUE(c.valid());
  c.rows[1].seconds = 1e-3;
  EXPECT_FALSE(c.valid());
  c = known_cost(), c.context = -1;
  EXPECT_FALSE(c.valid());
  c = known_cost(), c.rows[2].tokens = 32;
  EXPECT_FALSE(c.valid());
}

TEST(NonnegLeastSquares, IsTheConstrainedMinimum) {
  // |x + y - 1|^2 + |x - y - 3|^2: free x = 2, y = -1; with y = 0 it is x = 2.
  const std::vector<double> ata = {2, 0, 0, 2}, aty = {4, -2};
  const std::vector<double> x = nonneg_least_squares(ata, aty);
  EXPECT_NEAR(x[0], 2, 1e-9);
  EXPECT_EQ(x[1], 0);
}

}  // namespace sluice
