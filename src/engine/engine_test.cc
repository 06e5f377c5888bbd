// Loop and Engine on an executor that computes nothing: the order of launches and waits, and who is
// told what when requests end, the device fails or the engine goes away.
#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>

#include <gtest/gtest.h>

#include "core/fake_executor.h"
#include "core/policy.h"

namespace sluice {
namespace {

// Samples the step's number for every row that wants a token.
Token step_number(const StepPlan& plan, const Slice&) { return static_cast<Token>(plan.step); }

SchedulerConfig config() {
  SchedulerConfig c;
  c.num_blocks = 64;
  c.block_size = 4;
  c.budget = 16;
  c.max_seqs = 4;
  c.max_len = 64;
  return c;
}

Request request(int prompt, int max_new) {
  Request r;
  r.prompt = std::make_shared<const std::vector<Token>>(static_cast<size_t>(prompt), 7);
  r.sampling = std::make_shared<const SamplingSpec>();
  r.max_new = max_new;
  return r;
}

// What one request was told; waits for its end.
class Record final : public Sink {
 public:
  void on_event(const Event& e, std::span<const TopLogprob>) override {
    std::lock_guard lock(mutex_);
    EXPECT_EQ(num_last_ + num_refused_, 0) << "an event after the end";
    if (e.token != kNoToken) tokens_.push_back(e.token);
    if (e.finish != Finish::none) finishes_.push_back(e.finish);
    num_last_ += e.last;
    changed_.notify_all();
  }
  void on_refused(const Error& error) override {
    std::lock_guard lock(mutex_);
    refusal_ = error.message;
    ++num_refused_;
    changed_.notify_all();
  }
  bool ended() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20),
                             [&] { return num_last_ + num_refused_ > 0; });
  }
  bool has_tokens(size_t n) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return tokens_.size() >= n; });
  }
  // Read after the end.
  std::vector<Token> tokens_;
  std::vector<Finish> finishes_;
  std::string refusal_;
  int num_last_ = 0, num_refused_ = 0;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

std::string run_loop(Pipeline pipeline, FakeExecutor& executor, Events& events) {
  Scheduler scheduler(config(), nullptr);
  RealClock clock;
  executor.keep_log = true;
  Loop loop(scheduler, executor, clock, pipeline);
  Request r = request(3, 3);
  r.id = 1;
  scheduler.add(r, clock.now()).value();
  for (int i = 0; i < 50 && loop.busy(); ++i) loop.iterate(events);
  EXPECT_FALSE(loop.busy());
  EXPECT_TRUE(scheduler.idle());
  return executor.log;
}

TEST(Loop, SyncWaitsForEachStepBeforeItPlansTheNext) {
  FakeExecutor executor{step_number};
  Events events;
  // The fourth step closes the row.
  EXPECT_EQ(run_loop(Pipeline::sync, executor, events), "L1 W1 L2 W2 L3 W3 L4 W4 ");
  EXPECT_EQ(executor.most_in_flight, 1u);
  EXPECT_EQ(events.list.size(), 3u);
}

TEST(Loop, OverlapKeepsOneStepAheadAndDrains) {
  FakeExecutor executor{step_number};
  Events events;
  EXPECT_EQ(run_loop(Pipeline::overlap, executor, events).substr(0, 18), "L1 L2 W1 L3 W2 W3 ");
  EXPECT_EQ(executor.most_in_flight, 2u);
  EXPECT_EQ(events.list.size(), 3u);
  EXPECT_EQ(events.list.back().finish, Finish::length);
}

TEST(Loop, UntimedReadsTheClockOncePerIteration) {
  struct CountingClock final : Clock {
    Time now() const override { return Time(++reads); }
    mutable int reads = 0;
  };
  for (bool timed : {false, true}) {
    Scheduler scheduler(config(), nullptr);
    CountingClock clock;
    FakeExecutor executor{step_number};
    Loop loop(scheduler, executor, clock, Pipeline::sync, {.timed = timed});
    Request r = request(3, 3);
    r.id = 1;
    scheduler.add(r, Time(0)).value();
    Events events;
    int iterations = 0;
    for (; loop.busy(); ++iterations) EXPECT_EQ(loop.iterate(events).timed, timed);
    EXPECT_EQ(clock.reads, timed ? 4 * iterations : iterations);
    EXPECT_EQ(events.list.size(), 3u);
  }
}

TEST(Loop, ReportsNameTheStepsTheyAreAbout) {
  Scheduler scheduler(config(), nullptr);
  RealClock clock;
  FakeExecutor executor{step_number};
  Loop loop(scheduler, executor, clock, Pipeline::overlap);
  Request r = request(20, 4);  // two chunks: a budget of 16 tokens
  r.id = 1;
  scheduler.add(r, clock.now()).value();
  Events events;
  uint64_t launched = 0, completed = 0;
  std::vector<int> tokens;
  while (loop.busy()) {
    StepReport report = loop.iterate(events);
    EXPECT_TRUE(report.launched || report.completed) << "an iteration that did nothing";
    if (report.launched) {
      EXPECT_EQ(report.launched_step, ++launched);
      EXPECT_LE(report.plan_begin, report.plan_end);
      if (report.num_tokens > 0) tokens.push_back(report.num_tokens);
    }
    if (report.completed) {
      EXPECT_EQ(report.completed_step, ++completed);
      EXPECT_LE(report.scheduled, report.complete_begin);
      EXPECT_LE(report.complete_begin, report.complete_end);
    }
  }
  EXPECT_EQ(launched, completed);
  EXPECT_EQ(tokens, (std::vector<int>{16, 4, 1, 1, 1}));
}

class EngineOn : public testing::TestWithParam<Pipeline> {
 protected:
  std::unique_ptr<Engine> start(SchedulerConfig c = config()) {
    c.pipeline = GetParam();
    return std::make_unique<Engine>(Scheduler(c, nullptr), executor, clock,
                                    Engine::Options{GetParam(), {}});
  }
  RealClock clock;
  FakeExecutor executor{step_number, GetParam()};
};

TEST_P(EngineOn, DeliversEveryTokenOfManyRequests) {
  auto engine = start();
  std::vector<std::shared_ptr<Record>> records;
  std::vector<RequestId> ids;
  for (int i = 0; i < 40; ++i) {
    records.push_back(std::make_shared<Record>());
    ids.push_back(engine->submit(request(1 + i % 30, 1 + i % 7), records.back()));
  }
  EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
  for (int i = 0; i < 40; ++i) {
    Record& r = *records[static_cast<size_t>(i)];
    ASSERT_TRUE(r.ended());
    EXPECT_EQ(r.tokens_.size(), static_cast<size_t>(1 + i % 7));
    EXPECT_EQ(r.finishes_, std::vector<Finish>{Finish::length});
  }
}

TEST_P(EngineOn, RefusalsReachTheSinkAndHarmNobody) {
  auto engine = start();
  auto good = std::make_shared<Record>(), bad = std::make_shared<Record>();
  engine->submit(request(64, 1), bad);
  engine->submit(request(5, 2), good);
  ASSERT_TRUE(bad->ended());
  EXPECT_EQ(bad->num_refused_, 1);
  EXPECT_NE(bad->refusal_.find("context"), std::string::npos);
  ASSERT_TRUE(good->ended());
  EXPECT_EQ(good->tokens_.size(), 2u);
}

// Who would be late is told when to come back, and the others are served.
TEST_P(EngineOn, TellsWhoWouldBeLate) {
  StepCost cost;
  cost.rows = {{1, 10.0}, {2, 20.0}};  // ten seconds a token
  SchedulerConfig c = config();
  c.pipeline = GetParam();
  Engine::Options options{GetParam(), {}};
  options.early.emplace(cost, std::chrono::seconds(100));
  Engine engine(Scheduler(c, nullptr), executor, clock, std::move(options));
  std::promise<void> begun, go;
  engine.call([&, ready = go.get_future().share()](Scheduler&) {
    begun.set_value();
    ready.wait();
  });
  begun.get_future().wait();
  std::vector<std::shared_ptr<Record>> records;
  for (int k = 0; k < 3; ++k) {
    records.push_back(std::make_shared<Record>());
    engine.submit(request(12, 2), records.back());
  }
  const auto never = std::make_shared<Record>();
  engine.submit(request(70, 2), never);
  go.set_value();  // all at once: the first one is alone, the others wait for it
  for (const auto& r : records) ASSERT_TRUE(r->ended());
  EXPECT_EQ(records[0]->tokens_.size(), 2u);
  for (size_t k : {1, 2}) {
    EXPECT_EQ(records[k]->num_refused_, 1);
    EXPECT_NE(records[k]->refusal_.find("too late: try again in"), std::string::npos);
  }
  ASSERT_TRUE(never->ended());  // waiting does not make its prompt shorter
  EXPECT_NE(never->refusal_.find("the context holds 64"), std::string::npos) << never->refusal_;
  const auto later = std::make_shared<Record>();
  engine.submit(request(12, 2), later);
  ASSERT_TRUE(later->ended());
  EXPECT_EQ(later->tokens_.size(), 2u);
}

TEST_P(EngineOn, CancelWithAStepInFlightEndsOnceAndTheLateTokenIsDropped) {
  executor.set_open(false, 3);  // two tokens come through; the third step stays in flight
  auto engine = start();
  auto record = std::make_shared<Record>(), next = std::make_shared<Record>();
  RequestId id = engine->submit(request(3, 50), record);
  ASSERT_TRUE(record->has_tokens(2));
  engine->cancel(id);
  engine->cancel(id);
  engine->submit(request(3, 2), next);
  executor.set_open(true);
  ASSERT_TRUE(record->ended());
  EXPECT_EQ(record->finishes_, std::vector<Finish>{Finish::cancelled});
  ASSERT_TRUE(next->ended());
  EXPECT_EQ(next->tokens_.size(), 2u);
}

TEST_P(EngineOn, AFailedDeviceEndsEveryRequestOnce) {
  executor.fail_from = 6;
  auto engine = start();
  std::vector<std::shared_ptr<Record>> records;
  for (int i = 0; i < 12; ++i) {  // four run, the others wait
    records.push_back(std::make_shared<Record>());
    Request r = request(10, 40);
    r.n = i % 3 == 0 ? 2 : 1;
    engine->submit(std::move(r), records.back());
  }
  for (size_t i = 0; i < records.size(); ++i) {
    Record& r = *records[i];
    ASSERT_TRUE(r.ended());
    EXPECT_EQ(r.num_last_, 1);
    EXPECT_EQ(r.finishes_, std::vector<Finish>(i % 3 == 0 ? 2 : 1, Finish::failed));
  }
}

// One step fails, those that were launched behind it succeed: their tokens are nobody's, and the
// engine goes on with whoever comes next.
TEST_P(EngineOn, StepsBehindAFailedOneAreLostThoughTheySucceed) {
  constexpr uint64_t kFailed = 6;
  executor.on_launch = [](const StepPlan& plan, StepResult& r) {
    if (plan.step != kFailed) return;
    r.clear();
    r.step = plan.step;
    r.failure = "the fan fell off";
  };
  executor.set_open(false, 1);
  auto engine = start();
  std::vector<std::shared_ptr<Record>> records;
  for (int i = 0; i < 6; ++i) {  // four run, the others wait
    records.push_back(std::make_shared<Record>());
    engine->submit(request(10, 40), records.back());
  }
  executor.set_open(true);  // all are there now: the engine takes them with its next step
  for (auto& r : records) {
    ASSERT_TRUE(r->ended());
    EXPECT_EQ(r->num_last_, 1);
    EXPECT_EQ(r->finishes_, std::vector<Finish>{Finish::failed});
    for (Token t : r->tokens_) EXPECT_LT(t, static_cast<Token>(kFailed)) << "of a lost step";
  }
  auto next = std::make_shared<Record>();
  engine->submit(request(10, 8), next);
  ASSERT_TRUE(next->ended());
  EXPECT_EQ(next->finishes_, std::vector<Finish>{Finish::length});
  EXPECT_EQ(next->tokens_.size(), 8u);
  EXPECT_GT(next->tokens_.front(), static_cast<Token>(kFailed));
}

TEST_P(EngineOn, DeadlinesWakeAnEngineThatWaits) {
  auto engine = start();
  auto record = std::make_shared<Record>();
  Request r = request(3, 60);
  r.deadline = clock.now() + std::chrono::milliseconds(30);
  executor.set_open(false);
  engine->submit(std::move(r), record);
  std::this_thread::sleep_for(std::chrono::milliseconds(40));
  executor.set_open(true);
  ASSERT_TRUE(record->ended());
  EXPECT_EQ(record->finishes_, std::vector<Finish>{Finish::deadline});
  EXPECT_LT(record->tokens_.size(), 60u);
}

// Requests that never got to a step are told, too.
TEST_P(EngineOn, DestructionTellsEverySinkOnce) {
  for (bool running : {false, true}) {
    std::vector<std::shared_ptr<Record>> records;
    auto engine = start();
    if (running) {
      executor.set_open(false);
      records.push_back(std::make_shared<Record>());
      engine->submit(request(3, 50), records.back());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    for (int i = 0; i < 10; ++i) {
      records.push_back(std::make_shared<Record>());
      engine->submit(request(3, 50), records.back());
    }
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      executor.set_open(true);
    });
    engine.reset();
    opener.join();
    for (auto& r : records) {
      EXPECT_EQ(r->num_last_ + r->num_refused_, 1) << "a sink that would wait for ever";
      EXPECT_EQ(r.use_count(), 1) << "a sink that is kept";
    }
  }
}

// After an exception every request is told once, and what comes next runs as on a new engine.
TEST_P(EngineOn, AnExecutorThatThrowsCostsItsRequestsAndNothingElse) {
  for (bool in_wait : {false, true}) {
    FakeExecutor own{step_number};
    (in_wait ? own.throw_in_wait : own.throw_in_launch) = 5;
    std::atomic<uint64_t> restarts{0};
    std::atomic<int> available{-1};
    Engine::Options options{GetParam(), {}};
    options.observer = [&](const StepReport& r, const auto&, const auto&, const auto&) {
      restarts = r.num_restarts;
      available = r.stats.available_blocks;
    };
    Engine engine(Scheduler(config(), nullptr), own, clock, options);
    std::vector<std::shared_ptr<Record>> records;
    for (int i = 0; i < 12; ++i) {
      records.push_back(std::make_shared<Record>());
      Request r = request(10, 40);
      r.n = i % 3 == 0 ? 2 : 1;
      engine.submit(std::move(r), records.back());
    }
    for (auto& r : records) {
      ASSERT_TRUE(r->ended());
      if (r->num_refused_ == 0) continue;  // submitted after the restart
      EXPECT_EQ(r->num_refused_, 1);
      EXPECT_EQ(r->refusal_, "internal error");
    }
    EXPECT_EQ(records[0]->num_refused_, 1);
    auto next = std::make_shared<Record>();
    engine.submit(request(10, 3), next);
    ASSERT_TRUE(next->ended());
    EXPECT_EQ(next->tokens_.size(), 3u);
    EXPECT_EQ(restarts, 1u);
    for (int i = 0; i < 2000 && available != 64; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(available, 64);
  }
}

// Throws for one event and then for so many refusals.
class Clumsy final : public Sink {
 public:
  Clumsy(int at, int refusals) : at_(at), refusals_(refusals) {}
  void on_event(const Event&, std::span<const TopLogprob>) override {
    EXPECT_EQ(record.num_refused_, 0) << "an event after the end";
    EXPECT_FALSE(lost_) << "an event behind one that was lost";
    lost_ = num_events_++ == at_;
    if (lost_) throw std::bad_alloc();
  }
  void on_refused(const Error& error) override {
    if (refusals_-- > 0) throw std::bad_alloc();
    record.on_refused(error);
  }
  Record record;

 private:
  int at_, refusals_, num_events_ = 0;
  bool lost_ = false;
};

TEST_P(EngineOn, ASinkThatThrowsEndsItsRequestOnceAndHarmsNobody) {
  auto engine = start();
  for (int at : {0, 1, 4}) {  // the first token, one in the middle, the last
    auto clumsy = std::make_shared<Clumsy>(at, at);
    auto good = std::make_shared<Record>();
    engine->submit(request(3, 5), clumsy);
    engine->submit(request(3, 20), good);
    ASSERT_TRUE(clumsy->record.ended());
    ASSERT_TRUE(good->ended());
    EXPECT_EQ(good->tokens_.size(), 20u);
    EXPECT_EQ(clumsy->record.num_refused_, 1);
    EXPECT_NE(clumsy->record.refusal_.find("out of memory"), std::string::npos);
  }
}

TEST_P(EngineOn, AnObserverThatThrowsHarmsNobody) {
  Engine::Options options{GetParam(), {}};
  options.observer = [](const auto&, const auto&, const auto&, const auto&) {
    throw std::bad_alloc();
  };
  Engine engine(Scheduler(config(), nullptr), executor, clock, options);
  auto record = std::make_shared<Record>();
  engine.submit(request(3, 5), record);
  ASSERT_TRUE(record->ended());
  EXPECT_EQ(record->tokens_.size(), 5u);
}

TEST_P(EngineOn, AFlushFreesWhatNobodyHolds) {
  auto engine = start();
  auto flush = [&] {
    std::promise<int> num;
    engine->flush_prefixes([&](int n) { num.set_value(n); });
    return num.get_future().get();
  };
  EXPECT_EQ(flush(), 0);
  auto record = std::make_shared<Record>();
  engine->submit(request(9, 1), record);
  ASSERT_TRUE(record->ended());
  EXPECT_EQ(flush(), 2) << "two full blocks of four";
  EXPECT_EQ(flush(), 0);
}

// Requests that wait for others to fill a step are run in the end; until then the engine sleeps.
TEST_P(EngineOn, SleepsWhileABatchFills) {
  SchedulerConfig c = config();
  c.fill_wait = std::chrono::milliseconds(50);
  c.pipeline = GetParam();
  std::atomic<int> num_turns{0};
  Engine engine(Scheduler(c, nullptr), executor, clock,
                {GetParam(), [&](const StepReport&, const StepPlan&, const Events&,
                                 const Scheduler&) { ++num_turns; }});
  auto first = std::make_shared<Record>(), second = std::make_shared<Record>();
  engine.submit(request(3, 2), first);
  engine.submit(request(3, 2), second);
  ASSERT_TRUE(first->ended() && second->ended());
  EXPECT_EQ(first->tokens_.size() + second->tokens_.size(), 4u);
  EXPECT_LT(num_turns, 60);  // thousands, if it asked again and again
}

INSTANTIATE_TEST_SUITE_P(Pipelines,
                         EngineOn,
                         testing::Values(Pipeline::sync,
                                         Pipeline::simple_async,
                                         Pipeline::double_buffer,
                                         Pipeline::overlap),
                         [](const auto& test) {
                           std::string name = name_of(kPipelines, test.param);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace sluice
