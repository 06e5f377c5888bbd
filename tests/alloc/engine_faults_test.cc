// The nth allocation fails, for every n, on the engine thread, on the thread that submits, and in
// the scheduler alone. Every request ends exactly once, with all its tokens or with an error; then
// the engine answers as before, with all its blocks.
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>

#include <gtest/gtest.h>

#include "core/fake_executor.h"
#include "engine/engine.h"
#include "operator_new.h"

namespace sluice {
namespace {

using alloc::fail_in;
using alloc::may_fail;
using alloc::num_failed;

constexpr int kBlocks = 64;

// Samples the position for every row that wants a token. The thread that launches is the one whose
// allocations may fail.
struct EchoExecutor final : Executor {
  EchoExecutor() : fake([](const StepPlan&, const Slice& s) { return Token{s.pos + s.count}; }) {}
  void launch(const StepPlan& plan) override {
    may_fail = true;
    auto copy = std::make_unique<const StepPlan>(plan);  // takes memory in every step
    fake.launch(*copy);
  }
  const StepResult& wait() override { return fake.wait(); }
  void masks(StepMasks masks) override { fake.masks(std::move(masks)); }
  FakeExecutor fake;
};

class Record final : public Sink {
 public:
  void on_event(const Event& e, std::span<const TopLogprob>) override {
    auto copy = std::make_unique<Event>(e);  // as sinks do that pass events on
    std::lock_guard lock(mutex_);
    tokens.push_back(copy->token);
    ends += copy->last;
    changed_.notify_all();
  }
  void on_refused(const Error& error) override {
    auto copy = std::make_unique<Error>(error);
    std::lock_guard lock(mutex_);
    refused = true;
    ++ends;
    changed_.notify_all();
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return ends > 0; });
  }
  std::vector<Token> tokens;
  int ends = 0;
  bool refused = false;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

SchedulerConfig config() {
  SchedulerConfig c;
  c.num_blocks = kBlocks;
  c.block_size = 4;
  c.budget = 16;
  c.max_seqs = 4;
  c.max_len = 64;
  return c;
}

Request request(int prompt, int max_new, int n = 1) {
  Request r;
  r.prompt = std::make_shared<const std::vector<Token>>(static_cast<size_t>(prompt), 7);
  r.sampling = std::make_shared<const SamplingSpec>();
  r.stop.strings = {"a stop string that is longer than a small string"};
  r.max_new = max_new;
  r.n = n;
  return r;
}

class EngineFaults : public testing::TestWithParam<Pipeline> {
 protected:
  EngineFaults() {
    Engine::Options options{GetParam(), {}};
    options.observer = [this](const StepReport& r, const auto&, const auto&, const auto&) {
      available = r.stats.available_blocks;
      restarts = r.num_restarts;
    };
    engine = std::make_unique<Engine>(Scheduler(config(), nullptr), executor, clock, options);
    run_clean();
  }
  ~EngineFaults() override { fail_in = -1; }

  void run_clean() {
    fail_in = -1;
    auto record = std::make_shared<Record>();
    engine->submit(request(9, 6), record);
    ASSERT_TRUE(record->wait());
    EXPECT_EQ(record->tokens, (std::vector<Token>{9, 10, 11, 12, 13, 14}));
    EXPECT_FALSE(record->refused);
    for (int i = 0; i < 5000 && available != kBlocks; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(available, kBlocks);
  }

  RealClock clock;
  EchoExecutor executor;
  std::atomic<int> available{0};
  std::atomic<uint64_t> restarts{0};
  std::unique_ptr<Engine> engine;
};

TEST_P(EngineFaults, EveryAllocationOfTheEngineThread) {
  int64_t n = 0;
  for (bool failed = true; failed; ++n) {
    SCOPED_TRACE(testing::Message() << "allocation " << n);
    num_failed = 0;
    std::vector<std::shared_ptr<Record>> records;
    fail_in = n;
    for (int i = 0; i < 5; ++i) {
      records.push_back(std::make_shared<Record>());
      engine->submit(request(3 + 5 * i, 4, 1 + i % 2), records.back());
    }
    for (auto& r : records) ASSERT_TRUE(r->wait());
    failed = num_failed > 0;
    run_clean();
    for (size_t i = 0; i < records.size(); ++i) {
      EXPECT_EQ(records[i]->ends, 1);
      if (!records[i]->refused) {
        EXPECT_EQ(records[i]->tokens.size(), i % 2 == 0 ? 4u : 8u);
      }
    }
    if (HasFailure()) break;
  }
  EXPECT_GT(n, 50);
  EXPECT_GT(restarts, 0u);
  RecordProperty("allocations", static_cast<int>(n - 1));
}

INSTANTIATE_TEST_SUITE_P(Pipelines,
                         EngineFaults,
                         testing::Values(Pipeline::sync, Pipeline::overlap));

TEST(AllocationFaults, EveryAllocationOfASubmission) {
  RealClock clock;
  EchoExecutor executor;
  Engine engine(Scheduler(config(), nullptr), executor, clock, {});
  int64_t n = 0;
  for (bool failed = true; failed; ++n) {
    Request r = request(9, 2);
    auto record = std::make_shared<Record>();
    failed = false;
    may_fail = true;
    fail_in = n;
    try {
      engine.submit(std::move(r), record);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    may_fail = false;
    fail_in = -1;
    if (failed) {
      EXPECT_EQ(record.use_count(), 1) << "the sink of a request that was not submitted is kept";
    } else {
      ASSERT_TRUE(record->wait());
      EXPECT_EQ(record->ends, 1);
    }
  }
  EXPECT_GT(n, 1);
}

// add() that throws changes nothing, and reset() leaves a scheduler that plans like a new one.
TEST(AllocationFaults, EveryAllocationOfTheScheduler) {
  auto run = [](Scheduler& s, EchoExecutor& executor, std::vector<std::string>* plans) {
    StepPlan plan;
    Events events;
    RequestId id = 1000;
    for (int i = 0; i < 4; ++i) {
      Request r = request(3 + 7 * i, 4, 1 + i % 2);
      r.id = ++id;
      s.add(std::move(r), Time(1)).value();
    }
    for (int k = 0; k < 200 && s.has_work(); ++k) {
      s.plan(Time(k), plan, events);
      if (plan.empty()) continue;
      std::string text;
      for (const Slice& x : plan.slices)
        text += std::to_string(x.slot) + ":" + std::to_string(x.pos) + "+" +
                std::to_string(x.count) + " ";
      for (const TableEdit& e : plan.edits) text += "b" + std::to_string(e.block) + " ";
      if (plans) plans->push_back(text);
      executor.launch(plan);
      may_fail = plans == nullptr;
      s.complete(executor.wait(), Time(k), events);
    }
  };
  std::vector<std::string> fresh;
  {
    Scheduler s(config(), nullptr);
    EchoExecutor executor;
    run(s, executor, &fresh);
  }
  int64_t n = 0;
  for (bool failed = true; failed; ++n) {
    SCOPED_TRACE(testing::Message() << "allocation " << n);
    Scheduler s(config(), nullptr);
    EchoExecutor executor;
    failed = false;
    may_fail = true;
    fail_in = n;
    try {
      run(s, executor, nullptr);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    may_fail = false;
    fail_in = -1;
    s.reset();
    EXPECT_TRUE(s.idle());
    EXPECT_EQ(s.count_blocks().free, kBlocks);
    EchoExecutor second;
    std::vector<std::string> again;
    run(s, second, &again);
    ASSERT_EQ(again, fresh);
    EXPECT_TRUE(s.count_blocks().conserved());
  }
  EXPECT_GT(n, 50);
}

TEST(AllocationFaults, AddThatThrowsChangesNothing) {
  Scheduler s(config(), nullptr);
  int64_t n = 0;
  for (bool failed = true; failed; ++n) {
    Request r = request(9, 4, 3);
    r.id = 1;
    failed = false;
    may_fail = true;
    fail_in = n;
    try {
      s.add(r, Time(0)).value();
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    may_fail = false;
    fail_in = -1;
    EXPECT_EQ(s.has_work(), !failed);
    EXPECT_EQ(s.stats().num_waiting, failed ? 0 : 1);
  }
  EXPECT_GT(n, 10);
}

}  // namespace
}  // namespace sluice
