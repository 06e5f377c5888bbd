#include "server/meters.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

StepReport completed(bool failed) {
  StepReport r;
  r.completed = true;
  r.failed = failed;
  return r;
}

TEST(Meters, CountsFailedStepsInARow) {
  Meters m("model");
  for (bool failed : {true, true}) m.on_step(completed(failed), Time(1));
  EXPECT_EQ(m.failed_in_a_row(), 2);
  m.on_step(StepReport{}, Time(2));  // launched, nothing completed
  EXPECT_EQ(m.failed_in_a_row(), 2);
  m.on_step(completed(false), Time(3));
  EXPECT_EQ(m.failed_in_a_row(), 0);
  m.on_step(completed(true), Time(4));
  EXPECT_EQ(m.failed_in_a_row(), 1);
  std::string text = m.expose();
  EXPECT_NE(text.find("sluice_failed_steps_total 3"), std::string::npos) << text;
  EXPECT_NE(text.find("sluice_steps_total 4"), std::string::npos);
}

TEST(Meters, FragmentationIsReadTenTimesASecond) {
  Meters m("model");
  StepReport r;
  r.stats.num_running = 3;
  m.on_step(r, Time(1));
  EXPECT_TRUE(m.wants_kv_use(r, Time(1'000'000'000)));
  EXPECT_FALSE(m.wants_kv_use(r, Time(1'099'000'000)));
  EXPECT_TRUE(m.wants_kv_use(r, Time(1'100'000'000)));
  m.on_kv_use({.total = 1000, .held = 400, .unfilled = 100, .free = 600, .largest = 450});
  r.stats.num_running = 0;
  m.on_step(r, Time(1'101'000'000));
  EXPECT_TRUE(m.wants_kv_use(r, Time(1'101'000'000))) << "the last sequence has ended";
  std::string text = m.expose();
  for (const char* line : {"sluice_kv_internal_fragmentation_ratio 0.25",
                           "sluice_kv_external_fragmentation_ratio 0.25",
                           "sluice_kv_waste_ratio 0.25", "sluice_requests_running_peak 3"})
    EXPECT_NE(text.find(line), std::string::npos) << line << " is not in\n" << text;
}

TEST(Meters, PredictionsAndChoicesOfTheTarget) {
  Meters m("model");
  StepReport r = completed(false);
  m.on_step(r, Time(1));
  EXPECT_NE(m.expose().find("sluice_step_prediction_error_ratio_count 0"), std::string::npos);
  r.stats.slo = {.prompt_tokens = 96,
                 .predicted = 0.25,
                 .step_target = 0.04,
                 .num_learnt = 1,
                 .last_predicted = 0.03,
                 .last_seconds = 0.04,
                 .late = 0.125};
  m.on_step(r, Time(2));
  m.on_step(r, Time(3));  // nothing new
  std::string text = m.expose();
  for (const char* line :
       {"sluice_slo_prompt_tokens 96", "sluice_slo_late_ratio 0.125",
        "sluice_step_predicted_seconds 0.25", "sluice_step_prediction_error_ratio_count 1"})
    EXPECT_NE(text.find(line), std::string::npos) << line << " is not in\n" << text;
}

TEST(Meters, StallsOnlyWithWorkToDo) {
  Meters m("model");
  EXPECT_EQ(m.stalled(Time(5'000'000'000)), 0);
  m.on_submit(Time(5'000'000'000));
  EXPECT_DOUBLE_EQ(m.stalled(Time(7'000'000'000)), 2);
  m.on_step(completed(false), Time(7'000'000'000));
  EXPECT_DOUBLE_EQ(m.stalled(Time(7'500'000'000)), 0.5);
  m.on_terminal();
  EXPECT_EQ(m.stalled(Time(60'000'000'000)), 0);
}

TEST(Meters, ALongStepThatGoesOnIsNoStall) {
  Meters m("model");
  m.on_submit(Time(0));
  m.on_progress(Time(5'000'000'000));
  EXPECT_DOUBLE_EQ(m.stalled(Time(5'500'000'000)), 0.5);
}

}  // namespace
}  // namespace sluice
