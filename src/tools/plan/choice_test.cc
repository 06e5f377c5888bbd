#include "tools/plan/choice.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sluice {

namespace {

PlanFigures figures_with(double goodput, double rate = 100, double latency = 10) {
  PlanFigures f;
  f.requests = 1000;  // in 100 s, all of them good at a goodput of 10
  f.good = static_cast<uint64_t>(goodput * 100);
  f.goodput = goodput, f.output_per_s = rate, f.e2e.mean = latency;
  return f;
}

TrialGoal goal_with_slo() {
  TrialGoal g;
  g.slo.ttft = 1;
  return g;
}

// Settings tried, with figures by a formula instead of a simulation.
struct FormulaSearch {
  std::function<PlanFigures(const PlanSettings&)> formula;
  std::vector<Trial> trials;

  size_t add(const PlanSettings& s) {
    Trial t;
    t.settings = s, t.figures = formula(s);
    trials.push_back(t);
    return trials.size() - 1;
  }
  PlanChoice choose(const TrialGoal& goal) {
    return choose_settings(trials, goal, [&](const PlanSettings& s) -> std::optional<size_t> {
      const auto known = std::ranges::find(trials, s, &Trial::settings);
      return known != trials.end() ? static_cast<size_t>(known - trials.begin()) : add(s);
    });
  }
};

PlanSettings three_settings() {
  PlanSettings s;
  s.budget = 1024, s.kv = KvType(DType::i8, 32), s.max_seqs = 64;
  return s;
}

bool one_says(const std::vector<std::string>& words, const std::string& text) {
  return std::ranges::any_of(words, [&](const std::string& w) { return w.find(text) != w.npos; });
}

}  // namespace

TEST(PlanChoice, GainsWithinTheErrorAreNone) {
  const Slo slo = goal_with_slo().slo;
  const auto gains = [&](const PlanFigures& f) {
    return better(f, figures_with(5), slo, kMeasuredError);
  };
  EXPECT_FALSE(gains(figures_with(5.49)));
  EXPECT_TRUE(gains(figures_with(5.51)));
  EXPECT_FALSE(gains(figures_with(5, 104)));
  EXPECT_TRUE(gains(figures_with(5, 106)));
  EXPECT_FALSE(gains(figures_with(5, 100, 9.1)));
  EXPECT_TRUE(gains(figures_with(5, 100, 8.9)));
  // Not where goodput or throughput is lost for it.
  EXPECT_FALSE(gains(figures_with(4.9, 200, 1)));
  EXPECT_FALSE(gains(figures_with(5, 98, 1)));
  // Nor for longer requests.
  EXPECT_FALSE(gains(figures_with(5, 120, 12)));
  EXPECT_TRUE(better(figures_with(5, 120, 12), figures_with(5), {}, kMeasuredError));
  // Five good requests of a thousand instead of three are no gain.
  EXPECT_FALSE(better(figures_with(0.05), figures_with(0.03), slo, kMeasuredError));
}

TEST(PlanChoice, TheErrorIsThatOfTheCostsWhereThatIsLarger) {
  EXPECT_EQ(prediction_error(0.024), kMeasuredError);
  EXPECT_EQ(prediction_error(0.07).rate, 0.07);
  EXPECT_EQ(prediction_error(0.07).latency, kMeasuredError.latency);
  EXPECT_EQ(prediction_error(0.2).latency, 0.2);
}

// Equal goodput and a latency 4 % shorter: what led to --budget 1024 once.
TEST(PlanChoice, TheDefaultsAreBestWhereNothingGainsEnough) {
  FormulaSearch search;
  search.formula = [](const PlanSettings& s) {
    return figures_with(5, 100, s.budget == 1024 ? 9.6 : 10);
  };
  search.add({});
  PlanSettings s;
  s.budget = 512;
  search.add(s);
  s.budget = 1024;
  search.add(s);
  const PlanChoice c = search.choose(goal_with_slo());
  EXPECT_EQ(c.best, 0u);
  EXPECT_EQ(c.nearest, 2u);
  EXPECT_TRUE(c.needed.empty());
  const std::vector<std::string> words =
      choice_words(search.trials, c, goal_with_slo(), "The defaults", false);
  EXPECT_TRUE(words[0].starts_with("The defaults are best")) << words[0];
  EXPECT_TRUE(
      one_says(words, "(5 % of all requests within the objectives, 5 % of tokens/s, 10 % "));
  EXPECT_TRUE(one_says(words,
                       "The nearest is --budget 1024: goodput +0.0 %, tokens/s +0.0 %, mean "
                       "latency -4.0 %."));
  EXPECT_TRUE(one_says(words, "Tried: --budget 512 to 1024."));
}

TEST(PlanChoice, EverySettingEarnsItsPlace) {
  FormulaSearch search;
  // int8 gains, 64 sequences only with it, and the budget nearly nothing.
  search.formula = [](const PlanSettings& s) {
    double goodput = 4;
    if (s.kv) goodput *= s.max_seqs == 64 ? 1.5 : 1.2;
    if (s.budget) goodput *= 1.04;
    return figures_with(goodput);
  };
  search.add({});
  search.add(three_settings());
  const PlanChoice c = search.choose(goal_with_slo());
  PlanSettings want = three_settings();
  want.budget.reset();
  EXPECT_EQ(search.trials[c.best].settings, want);
  ASSERT_EQ(c.needed.size(), 2u);
  for (const NeededSetting& n : c.needed) {
    ASSERT_TRUE(n.without);
    EXPECT_TRUE(better(search.trials[c.best].figures, search.trials[*n.without].figures,
                       goal_with_slo().slo, kMeasuredError));
  }
  const std::vector<std::string> words =
      choice_words(search.trials, c, goal_with_slo(), "The defaults", true);
  EXPECT_TRUE(words[0].starts_with("Recommended: --max-seqs 64 --kv int8. It gains more"))
      << words[0];
  EXPECT_TRUE(one_says(words, "goodput +50.0 %"));
  EXPECT_TRUE(one_says(words, "Without --kv int8: goodput -33.3 %"));
  EXPECT_FALSE(one_says(words, "are best"));
}

// Each adds less than 5 % of all requests: together more than the margin, but none of them by
// itself.
TEST(PlanChoice, SmallGainsDoNotAddUp) {
  FormulaSearch search;
  search.formula = [](const PlanSettings& s) {
    double goodput = 8;
    for (bool set : {s.kv.has_value(), s.budget.has_value(), s.max_seqs.has_value()})
      goodput *= set ? 1.04 : 1;
    return figures_with(goodput);
  };
  search.add({});
  search.add(three_settings());
  EXPECT_TRUE(better(search.trials[1].figures, search.trials[0].figures, goal_with_slo().slo,
                     kMeasuredError));
  const PlanChoice c = search.choose(goal_with_slo());
  EXPECT_EQ(c.best, 0u);
  EXPECT_TRUE(c.needed.empty());
}

// Of all three each may go, one after the other, but int8 gains enough alone.
TEST(PlanChoice, OneGainIsFoundBehindSmallOnes) {
  FormulaSearch search;
  search.formula = [](const PlanSettings& s) {
    if (s.kv) return figures_with(s.budget ? 6.4 : 5.6);
    return figures_with(s.budget ? 5.95 : s.max_seqs ? 5.49 : 5);
  };
  search.add({});
  PlanSettings int8;
  int8.kv = three_settings().kv;
  search.add(int8);
  search.add(three_settings());
  const PlanChoice c = search.choose(goal_with_slo());
  EXPECT_EQ(search.trials[c.best].settings, int8);
  ASSERT_EQ(c.needed.size(), 1u);
  EXPECT_EQ(c.needed[0].without, 0u);
}

TEST(PlanChoice, WordsWithoutObjectivesNameOnlyWhatCounts) {
  FormulaSearch search;
  search.formula = [](const PlanSettings& s) {
    PlanFigures f = figures_with(5);
    f.refused = s.kv ? 3 : 50;
    return f;
  };
  search.add({});
  TrialGoal goal;
  const auto words = [&] {
    return choice_words(search.trials, search.choose(goal), goal, "The defaults", true);
  };
  EXPECT_EQ(words(), std::vector<std::string>{
                         "The defaults are best: no setting by itself is predicted to gain more "
                         "than the error of predictions (5 % of tokens/s, 10 % of the mean "
                         "latency)."});
  PlanSettings int8;
  int8.kv = three_settings().kv;
  search.add(int8);
  EXPECT_TRUE(one_says(words(), "latency): 3 instead of 50 requests refused, tokens/s +0.0 %"))
      << words()[0];
}

TEST(PlanChoice, WordsSayWhereNoRequestKeepsTheObjectives) {
  FormulaSearch search;
  search.formula = [](const PlanSettings& s) { return figures_with(s.kv ? 0.1 : 0); };
  search.add({});
  const auto none = [&](const TrialGoal& goal) {
    return one_says(choice_words(search.trials, {}, goal, "The defaults", true),
                    "No request keeps");
  };
  EXPECT_TRUE(none(goal_with_slo()));
  EXPECT_FALSE(none({}));
  search.add(three_settings());
  EXPECT_FALSE(none(goal_with_slo()));
}

TEST(PlanChoice, NoMoreReplicasThanAreNeeded) {
  FormulaSearch search;
  search.formula = [](const PlanSettings& s) { return figures_with(s.replicas >= 4 ? 9.6 : 4); };
  search.add({});
  PlanSettings s;
  s.replicas = 16;
  search.add(s);
  const PlanChoice c = search.choose(goal_with_slo());
  EXPECT_EQ(search.trials[c.best].settings.replicas, 4);
  const std::vector<std::string> words =
      choice_words(search.trials, c, goal_with_slo(), "The defaults", true);
  EXPECT_TRUE(one_says(words, "With 2 instead of 4 replicas: goodput -58.3 %")) << words[1];
}

// More of them are not for latency alone.
TEST(PlanChoice, ReplicasAreForGoodput) {
  FormulaSearch search;
  search.formula = [](const PlanSettings& s) {
    return figures_with(4.1, s.replicas > 1 ? 104 : 100, s.replicas > 1 ? 3 : 10);
  };
  search.add({});
  PlanSettings s;
  s.replicas = 2;
  search.add(s);
  const PlanChoice c = search.choose(goal_with_slo());
  EXPECT_EQ(c.best, 0u);
  EXPECT_EQ(c.nearest, 0u);
}

TEST(PlanChoice, EstimatesAreNotRecommended) {
  FormulaSearch search;
  search.formula = [](const PlanSettings& s) { return figures_with(s.ways > 1 ? 9 : 4); };
  search.add({});
  PlanSettings s;
  s.ways = 2;
  search.trials[search.add(s)].estimate = true;
  const PlanChoice c = search.choose(goal_with_slo());
  EXPECT_EQ(c.best, 0u);
  EXPECT_EQ(c.nearest, 0u);
}

}  // namespace sluice
