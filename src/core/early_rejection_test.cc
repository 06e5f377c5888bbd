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

struct Driver {
  explicit Driver(SchedulerConfig c) : scheduler(std::move(c), nullptr) {}
  void step() {
    scheduler.plan(Time{0}, plan, events);
    if (plan.empty()) return;
    executor.launch(plan);
    scheduler.complete(executor.wait(), Time{0}, events);
    events.clear();
  }
  void add(RequestId id, int tokens, Token first, int max_new, int n = 1) {
    Request r = asks(id, tokens, first);
    r.max_new = max_new, r.n = n;
    scheduler.add(std::move(r), Time{0}).value();
  }
  Scheduler scheduler;
  FakeExecutor executor{[](const StepPlan&, const Slice&) { return Token{5}; }};
  StepPlan plan;
  Events events;
};

SchedulerConfig small() {
  SchedulerConfig c;
  c.num_blocks = 64, c.block_size = 4, c.budget = 64, c.max_seqs = 4, c.max_len = 128;
  return c;
}

// Choices that wait again share their prompt: who starts first computes it, the others find it.
TEST(SchedulerView, APromptOfSeveralChoicesCountsOnce) {
  Driver d(small());
  d.add(1, 41, 1, 8, 3);
  EXPECT_EQ(d.scheduler.view_for(asks(9, 5, 90)).queued.tokens, 41);
  SchedulerConfig c = small();
  c.max_seqs = 1;  // the other choices wait when the first one forks
  Driver one(c);
  one.add(1, 41, 1, 8, 3);
  one.step();
  one.step();
  const WorkerView v = one.scheduler.view_for(asks(9, 5, 90));
  EXPECT_EQ(v.decode.tokens, 1);
  EXPECT_EQ(v.queued.tokens, 2) << "the last token of each; the rest is cached";
  // All three run, are preempted, and lose what was cached of their prompt.
  c.num_blocks = 15, c.max_seqs = 3, c.order = Order::priority;
  Driver full(c);
  Request first = asks(1, 41, 1), urgent = asks(2, 50, 60);
  first.n = 3, first.priority = 5, first.max_new = 8;
  full.scheduler.add(std::move(first), Time{0}).value();
  for (int k = 0; k < 3; ++k) full.step();
  EXPECT_EQ(full.scheduler.stats().num_running, 3);
  full.scheduler.add(std::move(urgent), Time{0}).value();
  for (int k = 0; k < 2; ++k) full.step();
  EXPECT_EQ(full.scheduler.stats().num_waiting, 3);
  const WorkerView w = full.scheduler.view_for(asks(9, 5, 200));
  EXPECT_GE(w.queued.tokens, 41 - 8);
  EXPECT_LE(w.queued.tokens, 41 + 3 * 4) << "a prompt, and what each choice has behind it";
}

TEST(SchedulerView, ForeseesWhenASlotIsFree) {
  SchedulerConfig c = small();
  c.max_seqs = 2;
  Driver d(c);
  d.add(1, 8, 1, 30);
  EXPECT_EQ(d.scheduler.view_for(asks(9, 5, 90)).room_steps, 0);
  d.add(2, 8, 60, 10);
  d.step();
  d.step();
  EXPECT_EQ(d.scheduler.view_for(asks(9, 5, 90)).room_steps, 8) << "ten tokens, two of them there";
  // Ahead of it one that takes the slot for 40 steps; the other slot is free after 28.
  d.add(3, 8, 110, 40);
  EXPECT_EQ(d.scheduler.view_for(asks(9, 5, 90)).room_steps, 28);
}

// Blocks are held for as long as outputs are known to get, not for as long as they may.
TEST(SchedulerView, ForeseesWhenBlocksAreFree) {
  SchedulerConfig c = small();
  c.num_blocks = 12;
  Driver d(c);
  for (RequestId id = 1; id <= 20; ++id) {
    d.add(id, 4, static_cast<Token>(id), 6);
    for (int k = 0; k < 12; ++k) d.step();
  }
  EXPECT_TRUE(d.scheduler.idle());
  EXPECT_EQ(d.scheduler.expected_output(asks(30, 4, 1)), 4) << "no longer than it asks for";
  d.add(31, 36, 70, 12);
  d.step();
  const WorkerView v = d.scheduler.view_for(asks(32, 16, 120));
  EXPECT_EQ(v.room_steps, 5) << "six tokens are usual, and one is there";
  // 17 ms of its own, and 5 until it starts: more than a quarter of that.
  EarlyRejection early(per_token(), milliseconds(17));
  EXPECT_GT(early.retry_after(v, 16, 4, kNever), 0);
  EarlyRejection patient(per_token(), milliseconds(100));
  EXPECT_EQ(patient.retry_after(v, 16, 4, kNever), 0);
}

// A prompt that is half computed gives back what it was promised too: nobody has to wait for the
// sequence that runs on behind it.
TEST(SchedulerView, PromisedBlocksComeBack) {
  SchedulerConfig c = small();
  c.num_blocks = 14, c.budget = 8;
  Driver d(c);
  d.add(1, 4, 1, 50);
  d.step();
  d.add(2, 36, 70, 12);
  d.step();
  EXPECT_EQ(d.scheduler.view_for(asks(9, 16, 120)).room_steps, 12);
}

}  // namespace
}  // namespace sluice
