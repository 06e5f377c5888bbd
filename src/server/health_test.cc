#include "server/health.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

Time at(double s) { return Time(static_cast<int64_t>(s * 1e9)); }

struct HealthTest : testing::Test {
  Health health{10};
  std::vector<std::function<void()>> asked;
  uint64_t count = 0;

  HealthTest() {
    health.watch("io-0", [](std::function<void()> answer) { answer(); });
    health.watch(
        "engine", [this](std::function<void()> answer) { asked.push_back(std::move(answer)); },
        [this] { return count; });
  }
  std::string reason(double now) {
    auto p = health.problem(at(now));
    return p ? p->code + ": " + p->reason : "";
  }
};

TEST_F(HealthTest, AThreadThatDoesNotAnswerIsNamed) {
  EXPECT_EQ(reason(100), "");  // nothing was asked yet
  health.beat(at(100));
  health.beat(at(101));
  EXPECT_EQ(asked.size(), 1u);  // one question at a time
  EXPECT_EQ(reason(110), "");
  health.beat(at(110));
  EXPECT_EQ(reason(111), "stuck: the thread engine has given no sign of life for 11 s");
  asked[0]();
  EXPECT_EQ(reason(111), "");
  health.beat(at(112));
  EXPECT_EQ(asked.size(), 2u);
  EXPECT_EQ(reason(113), "");
}

TEST_F(HealthTest, ProgressInsideALongStepIsLife) {
  for (int t = 1; t < 100; ++t) {
    ++count;
    EXPECT_TRUE(health.beat(at(t)));
    EXPECT_EQ(reason(t), "");
  }
  EXPECT_EQ(asked.size(), 1u);
  EXPECT_FALSE(health.beat(at(105)));
  EXPECT_EQ(reason(105), "");
  EXPECT_FALSE(health.beat(at(109.5)));
  EXPECT_NE(reason(109.5), "");  // since the last progress, at 99
}

TEST_F(HealthTest, TheWatcherIsWatched) {
  health.beat(at(1));
  asked[0]();
  EXPECT_EQ(reason(10), "");
  EXPECT_EQ(reason(13), "stuck: the thread main has given no sign of life for 12 s");
  health.rest();
  EXPECT_EQ(reason(13), "");
}

TEST_F(HealthTest, AFailureStays) {
  health.fail("model_changed", "first");
  health.fail("model_lost", "second");
  health.rest();
  EXPECT_EQ(reason(0), "model_changed: first");
}

}  // namespace
}  // namespace sluice
