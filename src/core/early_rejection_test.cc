#include "core/early_rejection.h"

#include <gtest/gtest.h>

#include "core/fake_executor.h"
#include "core/scheduler.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;

// A millisecond per token.
StepCost per_token() {
  StepCost c;
  c.rows = {{1, 1e-3}, {1001, 1.001}};
  return c;
}

WorkerView waiting(int tokens) {
  WorkerView v;
  v.budget = 512;
  if (tokens > 0) v.queued = chunk_load(0, tokens);
  return v;
}

TEST(EarlyRejection, WhoWaitsTooLongIsToldForHowLong) {
  EarlyRejection early(per_token(), milliseconds(1000));
  EXPECT_TRUE(early.has_limit(kNever));
  EXPECT_EQ(early.retry_after(waiting(0), 100, 16, kNever), 0);
  EXPECT_EQ(early.retry_after(waiting(500), 100, 16, kNever), 0);
  const double wait = early.retry_after(waiting(3000), 100, 16, kNever);
  EXPECT_GT(wait, 1);
  EXPECT_LT(wait, 3);
  EXPECT_EQ(early.num_rejected(), 1u);
  // It is truthful: sooner it is rejected again, then it is taken.
  const auto later = [&](double s) { return waiting(3000 - static_cast<int>(s * 1000)); };
  EXPECT_GT(early.retry_after(later(wait / 2), 100, 16, kNever), 0);
  EXPECT_EQ(early.retry_after(later(wait + 0.05), 100, 16, kNever), 0);
}

TEST(EarlyRejection, CachedPromptsAndDeadlines) {
  EarlyRejection early(per_token(), Time{0});
  WorkerView v = waiting(3000);
  EXPECT_FALSE(early.has_limit(kNever));
  EXPECT_TRUE(early.has_limit(milliseconds(1000)));
  EXPECT_EQ(early.retry_after(v, 100, 16, kNever), 0);  // no limit, no deadline
  EXPECT_GT(early.retry_after(v, 100, 16, milliseconds(1000)), 0);
  EXPECT_EQ(early.retry_after(v, 100, 16, milliseconds(4000)), 0);
  EXPECT_EQ(early.retry_after(v, 100, 16, milliseconds(-1)), 0);  // its time is up anyway
  // 2,900 of its own tokens and 300 before it: in time only where most are cached.
  v = waiting(300);
  EXPECT_GT(early.retry_after(v, 1100, 16, milliseconds(1200)), 0);
  v.cached = 1000;
  EXPECT_EQ(early.retry_after(v, 1100, 16, milliseconds(1200)), 0);
}

TEST(EarlyRejection, LearnsHowFarPredictionsAreOff) {
  EarlyRejection early(per_token(), milliseconds(1000));
  const StepLoad load{.tokens = 100, .sampled = 1, .context = 100, .attended = 5050};
  EXPECT_EQ(early.retry_after(waiting(600), 100, 16, kNever), 0);
  for (uint64_t step = 1; step < 20; ++step) {
    early.launched(step, load);
    early.completed(step, 0.2);
  }
  EXPECT_NEAR(early.pace(), 2, 1e-9);
  EXPECT_GT(early.retry_after(waiting(600), 100, 16, kNever), 0);
  early.completed(77, 5);    // never launched
  early.launched(78, load);  // not timed
  early.completed(78, 0);
  EXPECT_NEAR(early.pace(), 2, 1e-9);
}

Request asks(RequestId id, int tokens, Token first) {
  Request r;
  r.id = id;
  auto prompt = std::make_shared<std::vector<Token>>();
  for (int i = 0; i < tokens; ++i) prompt->push_back(first + i % 50);
  r.prompt = prompt;
  r.sampling = std::make_shared<const SamplingSpec>();
  r.max_new = 4;
  return r;
}

TEST(SchedulerView, CountsWhatWaitsWhatDecodesAndWhatIsCached) {
  SchedulerConfig c;
  c.num_blocks = 64, c.block_size = 4, c.budget = 16, c.max_seqs = 2, c.max_len = 128;
  Scheduler s(c, nullptr);
  const Request next = asks(9, 41, 1);
  WorkerView v = s.view_for(next);
  EXPECT_EQ(v.queued.tokens + v.decode.tokens, 0);
  EXPECT_EQ(v.cached, 0);
  EXPECT_EQ(v.free_tokens, 64 * 4);
  EXPECT_EQ(v.budget, 16);
  s.add(asks(1, 41, 1), Time{0}).value();
  s.add(asks(2, 8, 60), Time{0}).value();
  s.add(asks(3, 10, 120), Time{0}).value();
  v = s.view_for(next);
  EXPECT_EQ(v.queued.tokens, 41 + 8 + 10);
  EXPECT_EQ(v.queued.sampled, 3);
  FakeExecutor executor{[](const StepPlan&, const Slice&) { return Token{5}; }};
  StepPlan plan;
  Events events;
  const auto step = [&] {
    s.plan(Time{0}, plan, events);
    executor.launch(plan);
    s.complete(executor.wait(), Time{0}, events);
  };
  step();
  v = s.view_for(next);
  EXPECT_EQ(v.queued.tokens, 41 + 8 + 10 - 16);
  EXPECT_EQ(v.cached, 16);  // four blocks of the first prompt
  for (int k = 0; k < 3; ++k) step();
  v = s.view_for(next);
  EXPECT_EQ(v.decode.tokens, 2);
  EXPECT_EQ(v.queued.tokens, 10);  // two may run
  EXPECT_EQ(v.cached, 40);
}

}  // namespace
}  // namespace sluice
