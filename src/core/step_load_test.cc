#include "core/step_load.h"

#include <gtest/gtest.h>

namespace sluice {

TEST(StepLoad, CountsWhatAStepReadsAndComputes) {
  StepPlan plan;
  plan.slices.resize(2);
  plan.slices[0].pos = 9, plan.slices[0].count = 1, plan.slices[0].want = Want::last;
  plan.slices[1].pos = 4, plan.slices[1].count = 3;
  StepLoad w = step_load(plan);
  EXPECT_EQ(w.tokens, 4);
  EXPECT_EQ(w.sampled, 1);
  EXPECT_EQ(w.context, 10 + 7);
  EXPECT_EQ(w.attended, 10 + (5 + 6 + 7));
  w += w;
  EXPECT_EQ(w.context, 34);
  EXPECT_EQ(step_load(StepPlan()), StepLoad());
}

}  // namespace sluice
