// What windows save: a long sequence in few blocks, many sequences in a pool for few.
#include <gtest/gtest.h>

#include "core/fake_executor.h"
#include "core/scheduler.h"

namespace sluice {
namespace {

Request make_request(RequestId id, int prompt_len, int max_new) {
  Request r;
  r.id = id;
  auto prompt = std::make_shared<std::vector<Token>>();
  for (int i = 0; i < prompt_len; ++i) prompt->push_back(static_cast<Token>(id) * 10000 + i);
  r.prompt = prompt;
  r.sampling = std::make_shared<SamplingSpec>();
  r.max_new = max_new;
  return r;
}

SchedulerConfig config(std::vector<int> windows) {
  SchedulerConfig c;
  c.budget = 64;
  c.max_seqs = 32;
  c.max_len = 8192;
  c.num_blocks = 256;
  c.group_windows = std::move(windows);
  c.prefix_cache = false;
  c.watermark = 0;
  return c;
}

// Plans a step and completes the one before it, as the overlapping pipeline does.
void iterate(Scheduler& scheduler, StepResult& last) {
  StepPlan plan;
  Events events;
  scheduler.plan(Time{0}, plan, events);
  if (last.step != 0) scheduler.complete(last, Time{0}, events);
  last = {};
  if (plan.empty()) return;
  FakeExecutor::answer(
      plan, [](const StepPlan&, const Slice&) { return Token{7}; }, last);
}

TEST(SchedulerWindows, ALongSequenceHoldsWhatItsWindowSees) {
  for (bool cache : {false, true}) {
    SchedulerConfig c = config({100});
    c.prefix_cache = cache;
    Scheduler scheduler(c, nullptr);
    // 6000 positions are 375 blocks, the pool has 256.
    ASSERT_TRUE(scheduler.add(make_request(1, 3000, 3000), Time{0}));
    StepResult last;
    int most = 0, most_at_end = 0, step = 0;
    for (; scheduler.has_work() && step < 10000; ++step) {
      iterate(scheduler, last);
      BlockCounts b = scheduler.count_blocks();
      ASSERT_TRUE(b.conserved());
      most = std::max(most, b.owned);
      if (step > 2000) most_at_end = std::max(most_at_end, b.owned);
    }
    EXPECT_LT(step, 3100);
    EXPECT_EQ(scheduler.stats().num_preemptions, 0u);
    EXPECT_LE(most, Scheduler::most_blocks(6000, c));
    EXPECT_LE(most_at_end, Scheduler::decode_blocks(6000, c));
    EXPECT_EQ(Scheduler::most_blocks(6000, c), 16);   // 99 + 2 * 64 positions
    EXPECT_EQ(Scheduler::decode_blocks(6000, c), 8);  // 99 + 2 positions
  }
}

int most_running(SchedulerConfig c) {
  Scheduler scheduler(c, nullptr);
  for (RequestId id = 1; id <= 32; ++id) {
    EXPECT_TRUE(scheduler.add(make_request(id, 600, 400), Time{0}));
  }
  StepResult last;
  int most = 0;
  for (int step = 0; scheduler.has_work() && step < 100000; ++step) {
    iterate(scheduler, last);
    most = std::max(most, scheduler.stats().num_running);
  }
  EXPECT_FALSE(scheduler.has_work());
  return most;
}

TEST(SchedulerWindows, MoreSequencesFit) {
  for (Admission admission : {Admission::watermark, Admission::reserve_max}) {
    SchedulerConfig full = config({0, 0}), half = config({0, 64}), none = config({64, 64});
    full.admission = half.admission = none.admission = admission;
    full.num_blocks = half.num_blocks = none.num_blocks = 512;
    int a = most_running(full), b = most_running(half), c = most_running(none);
    EXPECT_LE(a, 512 / (2 * 600 / 16) + 1);
    EXPECT_GE(b, a + a / 2);
    EXPECT_GE(c, 2 * b);
  }
}

}  // namespace
}  // namespace sluice
