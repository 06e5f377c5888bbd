// Nothing allocates on the hot path: every operator new of the process is counted over hundreds of
// decode steps, on all threads, after a warm-up in which buffers find their size.
#include <condition_variable>
#include <mutex>

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "core/fake_executor.h"
#include "core/policy.h"
#include "engine/engine.h"
#include "exec/model_executor.h"
#include "model/model.h"
#include "operator_new.h"
#include "tensor/gguf.h"

namespace sluice {
namespace {

using alloc::counting;
using alloc::num_counted;

constexpr int kWarmUp = 100, kCounted = 500;

Request make_request(RequestId id, int prompt_len, int max_new) {
  auto prompt = std::make_shared<std::vector<Token>>(static_cast<size_t>(prompt_len));
  for (size_t i = 0; i < prompt->size(); ++i) (*prompt)[i] = static_cast<Token>((i * 7 + id) % 90);
  auto sampling = std::make_shared<SamplingSpec>();
  sampling->temperature = 0;
  Request r;
  r.id = id;
  r.prompt = prompt;
  r.sampling = sampling;
  r.max_new = max_new;
  return r;
}

TEST(HostAlloc, CountsAllocations) {
  num_counted = 0;
  counting = true;
  std::vector<int> v(100);
  counting = false;
  EXPECT_EQ(num_counted, v.empty() ? 0u : 1u);
}

// Scheduler and loop alone; prompts of different lengths, so that rows take blocks at different
// steps.
void expect_no_allocations(const std::vector<int>& windows) {
  for (bool cache : {false, true}) {
    for (const auto& [name, pipeline] : kPipelines) {
      SCOPED_TRACE(testing::Message() << "prefix cache " << cache << ", pipeline " << name);
      SchedulerConfig c;
      c.group_windows = windows;
      c.num_blocks = 64 * 128;
      c.max_seqs = 64;
      c.max_len = 2048;
      c.budget = 4096;
      c.prefix_cache = cache;
      c.pipeline = pipeline;
      Scheduler scheduler(c, nullptr);
      FakeExecutor executor([](const StepPlan&, const Slice&) { return Token{7}; }, pipeline);
      RealClock clock;
      Loop loop(scheduler, executor, clock, pipeline);
      Events events;
      for (int i = 0; i < c.max_seqs; ++i) {
        ASSERT_TRUE(scheduler.add(make_request(static_cast<RequestId>(i + 1), 40 + 5 * i, 1000),
                                  clock.now()));
      }
      size_t num_events = 0;
      num_counted = 0;
      for (int step = 0; step < kWarmUp + kCounted; ++step) {
        counting = step >= kWarmUp;
        events.clear();
        loop.iterate(events);
        if (step >= kWarmUp) num_events += events.list.size();
      }
      counting = false;
      EXPECT_EQ(num_counted, 0u);
      // Steps in flight share the sequences out, unless they are chained.
      size_t batches = pipeline.chained ? 1 : static_cast<size_t>(pipeline.max_in_flight());
      EXPECT_GE(num_events, 64 * (kCounted / batches - 1));
    }
  }
}

TEST(HostAlloc, LoopAllocatesNothingWhileDecoding) { expect_no_allocations({0}); }

TEST(HostAlloc, LoopAllocatesNothingWhileWindowsSlide) { expect_no_allocations({0, 48, 48}); }

// Switches counting on after a warm-up and off again before sequences end.
class WindowSink final : public Sink {
 public:
  explicit WindowSink(bool leads) : leads_(leads) {}
  void on_event(const Event& e, std::span<const TopLogprob>) override {
    if (leads_ && ++num_events_ == kWarmUp) counting = true;
    if (leads_ && num_events_ == kWarmUp + kCounted) counting = false;
    if (!e.last) return;
    std::lock_guard lock(mutex_);
    done_ = true;
    ended_.notify_one();
  }
  void on_refused(const Error& error) override { ADD_FAILURE() << error.message; }
  void wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return done_; });
  }

 private:
  bool leads_;
  int num_events_ = 0;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
};

// The whole engine on a model: engine thread, device thread and workers. Rows are greedy, seeded
// with every filter, penalised, and with log-probabilities.
TEST(HostAlloc, EngineAllocatesNothingWhileDecoding) {
  auto file = open_gguf(SLUICE_SOURCE_DIR "/tests/golden/models/llama.gguf");
  ASSERT_TRUE(file) << file.error().message;
  std::unique_ptr<Backend> backend = make_cpu_backend({.threads = 2, .pin = false});
  auto model = load_model(**file, *backend, {});
  ASSERT_TRUE(model) << model.error().message;
  RealClock clock;
  SchedulerConfig c;
  c.num_blocks = 512;
  c.max_seqs = 8;
  c.max_len = 1024;
  Scheduler scheduler(c, nullptr);
  ExecutorConfig e;
  e.num_blocks = c.num_blocks;
  e.block_size = c.block_size;
  e.max_seqs = c.max_seqs;
  e.max_len = c.max_len;
  e.max_step_tokens = scheduler.max_step_tokens();
  ModelExecutor executor(*backend, **model, e, clock);
  num_counted = 0;
  {
    Engine engine(std::move(scheduler), executor, clock, {});
    std::vector<std::shared_ptr<WindowSink>> sinks;
    for (int i = 0; i < c.max_seqs; ++i) {
      Request r = make_request(0, 9 + 5 * i, kWarmUp + kCounted + 300);
      auto s = std::make_shared<SamplingSpec>();
      s->temperature = i % 4 == 0 ? 0.0f : 0.9f;
      s->seed = static_cast<uint64_t>(i);
      if (i % 4 == 1) s->top_k = 20, s->top_p = 0.9f, s->min_p = 0.01f;
      if (i % 4 == 2) {
        s->repetition_penalty = 1.1f, s->frequency_penalty = 0.2f;
        // A penalised row's table doubles with its distinct tokens: these it holds from the start.
        for (Token t = 0; t < 100; ++t) s->allowed.push_back(t);
      }
      if (i % 4 == 3) s->num_logprobs = 5;
      r.sampling = s;
      // The last one leads: while it counts, this thread submits nothing.
      sinks.push_back(std::make_shared<WindowSink>(i == c.max_seqs - 1));
      engine.submit(std::move(r), sinks.back());
    }
    for (auto& sink : sinks) sink->wait();
  }
  EXPECT_FALSE(counting);
  EXPECT_EQ(num_counted, 0u);
}

}  // namespace
}  // namespace sluice
