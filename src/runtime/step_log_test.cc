#include "runtime/step_log.h"

#include <gtest/gtest.h>

namespace sluice {

TEST(StepLog, ALineEveryThirdStep) {
  StepLog profile(3, 8);
  std::vector<std::string> lines;
  for (int i = 0; i < 7; ++i) {
    const Time at = std::chrono::milliseconds(10 * i + 5);
    StepReport r;
    r.launched = r.completed = true;
    r.num_tokens = 4;
    r.plan_begin = at, r.plan_end = at + std::chrono::microseconds(100);
    r.begin = at, r.end = at + std::chrono::milliseconds(9);
    r.complete_begin = r.end, r.complete_end = r.end + std::chrono::microseconds(900);
    r.stats.num_running = 4, r.stats.num_waiting = 2;
    r.stats.total_blocks = 100, r.stats.available_blocks = 25;
    if (auto line = profile.add(r)) lines.push_back(*line);
  }
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1].substr(0, lines[1].find(" steps/s")),
            "steps 4 to 6: 4 of 8 running, 2 waiting, KV 75 %, 100.0");
  EXPECT_NE(lines[1].find("plan 0.100 ms (0.100 since the start"), std::string::npos) << lines[1];
  EXPECT_NE(lines[1].find("step 9.000 ms"), std::string::npos) << lines[1];
  EXPECT_NE(lines[1].find("host 10.00 % of both"), std::string::npos) << lines[1];
}

}  // namespace sluice
