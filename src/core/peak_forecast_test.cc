#include "core/peak_forecast.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

LengthHistogram lengths(std::initializer_list<int> list, int times = 50) {
  LengthHistogram h;
  for (int n = 0; n < times; ++n) {
    for (int l : list) h.add(l);
  }
  return h;
}

PeakForecast::Growth growth(const LengthHistogram& ended, int prompt, int num_output) {
  PeakForecast::Growth g;
  g.ended = &ended;
  g.num_output = num_output;
  g.max_new = 2048;
  g.positions = prompt + num_output;
  return g;
}

TEST(SurvivalCurve, IsTheShareThatGetsLonger) {
  LengthHistogram h = lengths({2, 5, 9, 12});
  SurvivalCurve c;
  c.fit(h);
  EXPECT_EQ(c.longer_than(-1), 1);
  EXPECT_NEAR(c.longer_than(2), 0.75, 1e-6);
  EXPECT_NEAR(c.longer_than(8), 0.5, 1e-6);
  EXPECT_NEAR(c.longer_than(12), 0, 1e-6);
}

// A hundred have ended early, and a hundred go on: half of all get further, not none.
TEST(SurvivalCurve, WhoStillRunsCounts) {
  LengthHistogram h = lengths({3}, 100);
  SurvivalCurve c;
  c.add_running(10, 100);
  c.fit(h);
  EXPECT_NEAR(c.longer_than(5), 0.5, 1e-6);
  EXPECT_NEAR(c.longer_than(500), 0.5, 1e-6) << "nobody knows how long they get";
}

TEST(PeakForecast, HoldsWhatIsCertainAndAMarginForTheRest) {
  LengthHistogram sure = lengths({15}), any = lengths({1, 15});
  auto least = [](const LengthHistogram& h) {
    for (int usable = 1;; ++usable) {
      PeakForecast f;
      for (int i = 0; i < 20; ++i) f.add(growth(h, 0, 0));
      if (f.fits(usable, 1, 1)) return usable;
    }
  };
  // All of 20 get to 15 tokens; of the others half do.
  EXPECT_EQ(least(sure), 300);
  EXPECT_LT(least(any), 240);
  EXPECT_GT(least(any), 150);
}

TEST(PeakForecast, WhatTheRequestSaysIsTaken) {
  PeakForecast::Growth g;
  g.predicted = 16, g.max_new = 2048;
  PeakForecast f;
  f.add(g);
  EXPECT_TRUE(f.fits(16, 1, 1));
  EXPECT_FALSE(f.fits(15, 1, 1));
  for (int end : {1, 17, 127, 8191}) {
    f.clear();
    g.predicted = g.max_new = end;
    f.add(g);
    EXPECT_TRUE(f.fits(end, 1, 1)) << end;
    EXPECT_FALSE(f.fits(end - 1, 1, 1)) << end;
  }
}

}  // namespace
}  // namespace sluice
