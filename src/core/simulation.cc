#include "core/simulation.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "core/fake_executor.h"

namespace sluice {

namespace {

// Virtual time ends there, so that no cost makes it overflow: later steps take none.
constexpr Time kEndOfTime{int64_t{4'000'000'000'000'000'000}};

Time later(Time from, double s) {
  const double room = seconds(kEndOfTime - from);
  return s < room ? from + Time(static_cast<int64_t>(s * 1e9)) : std::max(from, kEndOfTime);
}

// A run in progress.
class Simulation {
 public:
  Simulation(const SimSetup& setup, std::span<const SimRequest> workload)
      : setup_(setup),
        workload_(workload),
        scheduler_(setup.scheduler, nullptr),
        max_in_flight_(setup.scheduler.pipeline.max_in_flight()),
        sampling_(std::make_shared<const SamplingSpec>()) {
    run_.answers.resize(workload.size());
    last_.resize(workload.size());
  }

  SimRun run() {
    if (!workload_.empty()) now_ = begin_ = workload_.front().at;
    for (;;) {
      admit();
      if (!scheduler_.has_work() && flights_.empty()) {
        if (next_ == workload_.size()) break;
        now_ = std::max(now_, workload_[next_].at);
        continue;
      }
      iterate();
    }
    return finish();
  }

 private:
  struct Flight {
    StepResult result;
    Time end{0};
  };

  void admit() {
    for (; next_ < workload_.size() && workload_[next_].at <= now_; ++next_) {
      const SimRequest& w = workload_[next_];
      SimAnswer& a = run_.answers[next_];
      a.arrival = w.at;
      a.input = w.input;
      // As the scheduler would, without the memory of the prompt.
      if (w.input >= setup_.scheduler.max_len) {
        refuse(a);
        continue;
      }
      Request r;
      r.id = next_ + 1;
      r.prompt = std::make_shared<const std::vector<Token>>(sim_prompt(w, next_));
      r.sampling = sampling_;
      r.max_new = w.output;
      r.arrival = w.at;
      r.priority = w.priority;
      r.account = w.account;
      r.deadline = w.deadline;
      if (!scheduler_.add(std::move(r), now_)) refuse(a);
    }
  }

  void refuse(SimAnswer& a) {
    a.refused = true;
    ++run_.num_refused;
  }

  // As Loop::iterate() does.
  void iterate() {
    events_.clear();
    scheduler_.plan(now_, plan_, events_);
    const bool launched = !plan_.empty();
    if (launched) launch();
    if (static_cast<int>(flights_.size()) >= max_in_flight_ || (!flights_.empty() && !launched)) {
      Flight f = std::move(flights_.front());
      flights_.pop_front();
      now_ = std::max(now_, f.end);
      scheduler_.complete(f.result, now_, events_);
      free_.push_back(std::move(f.result));
    } else if (!launched) {
      // Everything waits for others to fill a step.
      Time next = scheduler_.next_wakeup();
      if (next_ < workload_.size()) next = std::min(next, workload_[next_].at);
      CHECK(next != kNever);
      now_ = std::max(now_ + Time(1), next);
    }
    for (const Event& e : events_.list) note(e);
  }

  void launch() {
    now_ = later(now_, setup_.cost.host_seconds(static_cast<int>(plan_.slices.size())));
    const double s = setup_.step_seconds    ? setup_.step_seconds(plan_)
                     : plan_.slices.empty() ? 0.0  // rows close, blocks move
                                            : setup_.cost.seconds(step_load(plan_));
    // One after the other, also where lanes compute side by side: they share the device.
    const Time start = std::max(now_, device_free_);
    Flight& f = flights_.emplace_back();
    if (!free_.empty()) {
      f.result = std::move(free_.back());
      free_.pop_back();
    }
    static const FakeExecutor::Sample kAny = [](const StepPlan&, const Slice&) { return Token{7}; };
    FakeExecutor::answer(plan_, kAny, f.result);
    f.end = device_free_ = later(start, s);
    f.result.begin = start;
    f.result.end = f.end;
    run_.busy += seconds(f.end - start);
    run_.num_steps += !plan_.slices.empty();
    run_.num_computed += static_cast<uint64_t>(plan_.num_tokens);
    const SchedulerStats stats = scheduler_.stats();
    run_.most_running = std::max(run_.most_running, stats.num_running);
    const double kv = stats.total_blocks > 0
                          ? 1 - static_cast<double>(stats.available_blocks) / stats.total_blocks
                          : 0;
    run_.most_kv = std::max(run_.most_kv, kv);
    kv_seconds_ += kv * seconds(f.end - start);
    remember({seconds(start - begin_), stats.num_running, stats.num_waiting, kv});
  }

  // Every n-th step's, where n doubles whenever there are too many.
  void remember(const SimMoment& m) {
    if (num_moments_++ % moment_stride_ != 0) return;
    run_.moments.push_back(m);
    if (run_.moments.size() < 2 * kSimMoments) return;
    moment_stride_ *= 2;
    for (size_t i = 0; i < kSimMoments; ++i) run_.moments[i] = run_.moments[2 * i];
    run_.moments.resize(kSimMoments);
  }

  void note(const Event& e) {
    SimAnswer& a = run_.answers[e.req - 1];
    if (e.token != kNoToken) {
      Time& last = last_[e.req - 1];
      if (a.num_tokens++ == 0) {
        a.first_token = now_of(e);
      } else {
        const Time gap = now_of(e) - last;
        a.longest_gap = std::max(a.longest_gap, gap);
        run_.gaps.push_back(static_cast<float>(seconds(gap)));
      }
      last = now_of(e);
    }
    if (e.finish == Finish::none) return;
    a.expired = e.finish == Finish::deadline;
    run_.num_expired += a.expired;
    a.finish = e.timing.finish;
    a.first_scheduled = e.timing.first_scheduled;
    a.num_cached = e.timing.num_cached;
    a.num_preemptions = e.timing.num_preemptions;
    end_ = std::max(end_, a.finish);
  }
  static Time now_of(const Event& e) { return e.timing.last_token; }

  SimRun finish() {
    const SchedulerStats stats = scheduler_.stats();
    run_.num_preemptions = stats.num_preemptions;
    run_.prefix_queries = stats.prefix_queries;
    run_.prefix_hits = stats.prefix_hits;
    run_.elapsed = end_ > begin_ ? seconds(end_ - begin_) : 0;
    run_.mean_kv = run_.busy > 0 ? kv_seconds_ / run_.busy : 0;
    return std::move(run_);
  }

  const SimSetup& setup_;
  std::span<const SimRequest> workload_;
  Scheduler scheduler_;
  int max_in_flight_;
  std::shared_ptr<const SamplingSpec> sampling_;
  size_t next_ = 0;  // request to arrive
  Time now_{0}, begin_{0}, end_{0}, device_free_{0};
  std::deque<Flight> flights_;
  std::vector<StepResult> free_;  // their memory
  std::vector<Time> last_;        // token, by request
  StepPlan plan_;
  Events events_;
  double kv_seconds_ = 0;
  size_t num_moments_ = 0, moment_stride_ = 1;
  SimRun run_;
};

}  // namespace

std::vector<Token> sim_prompt(const SimRequest& r, size_t index) {
  constexpr uint64_t kMask = 0x3fffffff;
  const auto own = static_cast<Token>(mix_bits(index + 1) & kMask);
  std::vector<Token> out(static_cast<size_t>(std::max(r.input, 0)), own);
  const size_t size = static_cast<size_t>(std::max(r.block_tokens, 1));
  for (size_t b = 0; b < r.blocks.size() && b * size < out.size(); ++b) {
    const auto token = static_cast<Token>(mix_bits(~r.blocks[b]) & kMask);
    const size_t end = std::min(out.size(), (b + 1) * size);
    std::fill(out.begin() + static_cast<std::ptrdiff_t>(b * size),
              out.begin() + static_cast<std::ptrdiff_t>(end), token);
  }
  return out;
}

SimRun simulate(const SimSetup& setup, std::span<const SimRequest> workload) {
  return Simulation(setup, workload).run();
}

}  // namespace sluice
