// What each pipeline does to throughput and latency, on a virtual clock: the engine's own loop and
// scheduler, and a device whose steps take as long as their tokens say.
#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "base/str.h"
#include "core/fake_executor.h"
#include "core/policy.h"
#include "engine/loop.h"

namespace sluice {
namespace {

// Seconds.
struct Cost {
  double step = 10e-3, token = 45e-6;
  double host = 0.3e-3;  // of planning, launching and completing a step
  double gain = 1.2;     // of two lanes that compute at once over one
};

// Steps of a lane run one after another. Advances the clock: by the host's time in launch(), to the
// end of the step in wait().
class VirtualDevice final : public Executor {
 public:
  VirtualDevice(SimClock& clock, Pipeline pipeline, Cost cost)
      : clock_(clock), pipeline_(pipeline), cost_(cost) {}

  void launch(const StepPlan& plan) override {
    clock_.advance_to(clock_.now() + time(cost_.host));
    run_until(seconds(clock_.now()));
    check_sequences(plan);
    Job job;
    job.lane = num_launched_++ % pipeline_.lanes;
    job.left = plan.slices.empty() ? 0 : cost_.step + plan.num_tokens * cost_.token;
    FakeExecutor::answer(
        plan, [](const StepPlan&, const Slice&) { return Token{7}; }, job.result);
    for (const Slice& s : plan.slices) job.slots.insert(s.slot), chained_ |= s.chained;
    jobs_.push_back(std::move(job));
    most_in_flight = std::max(most_in_flight, jobs_.size());
  }
  void masks(StepMasks) override {}
  const StepResult& wait() override {
    while (jobs_.front().left > 0) run_until(INFINITY);
    clock_.advance_to(time(jobs_.front().end));
    result_ = std::move(jobs_.front().result);
    jobs_.pop_front();
    return result_;
  }

  size_t most_in_flight = 0;
  bool met = false;  // a sequence was in two steps in flight
  bool chained() const { return chained_; }

 private:
  struct Job {
    int lane = 0;
    double left = 0, end = 0;  // seconds, were it alone; when it ended
    std::set<Slot> slots;
    StepResult result;
  };
  static Time time(double s) { return Time(std::llround(s * 1e9)); }

  void check_sequences(const StepPlan& plan) {
    for (const Job& job : jobs_) {
      for (const Slice& s : plan.slices) met |= job.slots.contains(s.slot);
    }
  }
  // Until then, or until the next step ends.
  void run_until(double until) {
    std::map<int, Job*> active;  // by lane, the oldest
    for (Job& job : jobs_) {
      if (job.left > 0) active.emplace(job.lane, &job);
    }
    if (active.empty()) {
      now_ = std::max(now_, std::isinf(until) ? now_ : until);
      return;
    }
    double num = static_cast<double>(active.size());
    double rate = active.size() > 1 ? cost_.gain / num : 1, least = until - now_;
    for (auto& [lane, job] : active) least = std::min(least, job->left / rate);
    now_ += least;
    for (auto& [lane, job] : active) {
      job->left -= least * rate;
      if (job->left < 1e-12) job->left = 0, job->end = now_;
    }
    if (now_ < until && !std::isinf(until)) run_until(until);
  }

  SimClock& clock_;
  Pipeline pipeline_;
  Cost cost_;
  std::deque<Job> jobs_;  // oldest first
  StepResult result_;
  double now_ = 0;
  int num_launched_ = 0;
  bool chained_ = false;
};

struct Outcome {
  double tokens_per_s = 0;
  double gap = 0;  // mean time between two tokens of a request
  size_t most_in_flight = 0;
  bool chained = false, met = false;
};

// The workload of the figures in docs/scheduling.md: 256 tokens in, 16 out, all there from the
// start.
Outcome run(Pipeline pipeline, int budget, Cost cost = {}, int num_requests = 1000) {
  SchedulerConfig c;
  c.budget = c.max_seqs = budget;
  c.num_blocks = 100'000;
  c.max_len = 512;
  c.prefix_cache = false;
  c.pipeline = pipeline;
  Scheduler scheduler(c, nullptr);
  SimClock clock;
  VirtualDevice device(clock, pipeline, cost);
  Loop loop(scheduler, device, clock, pipeline);
  for (int i = 1; i <= num_requests; ++i) {
    Request r;
    r.id = static_cast<RequestId>(i);
    r.prompt = std::make_shared<const std::vector<Token>>(256, 5);
    r.sampling = std::make_shared<const SamplingSpec>();
    r.max_new = 16;
    scheduler.add(std::move(r), clock.now()).value();
  }
  Events events;
  double gaps = 0;
  while (loop.busy()) {
    loop.iterate(events);
    for (const Event& e : events.list) {
      if (e.last) gaps += seconds(e.timing.last_token - e.timing.first_token) / 15;
    }
    events.clear();
  }
  return {num_requests * 16 / seconds(clock.now()), gaps / num_requests, device.most_in_flight,
          device.chained(), device.met};
}

// Steps in flight of different requests: each request has a token from every second (third) step.
// Chained: from every step. Larger budgets agree less: of their few steps many drain the queue.
TEST(Pipeline, LatencyIsStepsInFlightOverGain) {
  for (int budget : {32, 256}) {
    Outcome sync = run(Pipeline::sync, budget);
    for (const auto& [name, pipeline] : kPipelines) {
      SCOPED_TRACE(testing::Message() << name << ", budget " << budget);
      Outcome o = run(pipeline, budget);
      double gain = o.tokens_per_s / sync.tokens_per_s, latency = o.gap / sync.gap;
      RecordProperty(strf("%s_%d", name, budget), strf("gain %.3f latency %.3f", gain, latency));
      EXPECT_EQ(o.most_in_flight, static_cast<size_t>(pipeline.max_in_flight()));
      EXPECT_EQ(o.chained, pipeline.chained);
      EXPECT_EQ(o.met, pipeline.chained);
      double batches = pipeline.chained ? 1 : pipeline.max_in_flight();
      EXPECT_NEAR(gain * latency, batches, 0.03 * batches);
    }
  }
}

// What is hidden is the host's time, and what lanes add is theirs: without either nothing is
// gained, and latency is the number of steps in flight.
TEST(Pipeline, NothingIsGainedWhereNothingIsIdle) {
  Cost cost;
  cost.host = 0;
  cost.gain = 1;
  Outcome sync = run(Pipeline::sync, 64, cost);
  for (const auto& [name, pipeline] : kPipelines) {
    SCOPED_TRACE(name);
    Outcome o = run(pipeline, 64, cost);
    double batches = pipeline.chained ? 1 : pipeline.max_in_flight();
    EXPECT_NEAR(o.tokens_per_s / sync.tokens_per_s, 1, 0.02);
    EXPECT_NEAR(o.gap / sync.gap, batches, 0.03 * batches);
  }
}

}  // namespace
}  // namespace sluice
