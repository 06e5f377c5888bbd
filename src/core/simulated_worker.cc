#include "core/simulated_worker.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "core/fake_executor.h"

namespace sluice {

namespace {

// Virtual time ends there, so that no cost makes it overflow: later steps take none.
constexpr Time kEndOfTime{int64_t{4'000'000'000'000'000'000}};

Time later(Time from, double s) {
  const double room = seconds(kEndOfTime - from);
  return s < room ? from + Time(static_cast<int64_t>(s * 1e9)) : std::max(from, kEndOfTime);
}

Time token_time(const Event& e) { return e.timing.last_token; }

}  // namespace

SimulatedWorker::SimulatedWorker(const SimSetup& setup, bool tells)
    : setup_(setup),
      tells_(tells),
      scheduler_(setup.scheduler, nullptr),
      max_in_flight_(setup.scheduler.pipeline.max_in_flight()),
      sampling_(std::make_shared<const SamplingSpec>()) {}

size_t SimulatedWorker::push(const SimRequest& request, size_t index, int brought) {
  arrivals_.push_back({&request, index, brought});
  run_.answers.emplace_back();
  last_.emplace_back();
  return arrivals_.size() - 1;
}

void SimulatedWorker::run_until(Time end) {
  if (!begun_ && !arrivals_.empty()) {
    now_ = begin_ = arrivals_.front().request->at;
    begun_ = true;
  }
  while (now_ < end) {
    admit();
    if (!scheduler_.has_work() && flights_.empty()) {
      if (next_ == arrivals_.size()) break;
      now_ = std::max(now_, arrivals_[next_].request->at);
      continue;
    }
    iterate(end);
  }
}

void SimulatedWorker::admit() {
  for (; next_ < arrivals_.size() && arrivals_[next_].request->at <= now_; ++next_) {
    const SimRequest& w = *arrivals_[next_].request;
    SimAnswer& a = run_.answers[next_];
    a.arrival = w.at;
    a.input = w.input;
    // As the scheduler would, without the memory of the prompt.
    if (w.input >= setup_.scheduler.max_len) {
      refuse(next_);
      continue;
    }
    Request r;
    r.id = next_ + 1;
    r.prompt = std::make_shared<const std::vector<Token>>(sim_prompt(w, arrivals_[next_].index));
    r.sampling = sampling_;
    r.max_new = w.output;
    r.arrival = w.at;
    r.priority = w.priority;
    r.account = w.account;
    r.deadline = w.deadline;
    if (arrivals_[next_].brought > 0) import_prompt(r, arrivals_[next_].brought);
    if (!scheduler_.add(std::move(r), now_)) refuse(next_);
  }
}

int SimulatedWorker::num_cached(const SimRequest& w, size_t index) const {
  const int size = setup_.scheduler.block_size;
  PromptBlocks p;
  p.prompt = std::make_shared<const std::vector<Token>>(sim_prompt(w, index));
  p.hashes = hash_blocks(*p.prompt, size, 0);
  return scheduler_.num_cached_blocks(p) * size;
}

void SimulatedWorker::import_prompt(const Request& r, int tokens) {
  PromptBlocks p{r.prompt, hash_blocks(*r.prompt, setup_.scheduler.block_size, r.tenant), r.tenant};
  const auto most = static_cast<size_t>(tokens / setup_.scheduler.block_size);
  p.hashes.resize(std::min(p.hashes.size(), most));
  std::vector<PlacedBlock> blocks;
  scheduler_.reserve_blocks(p, blocks);
  scheduler_.import_blocks(p, blocks);
}

void SimulatedWorker::refuse(size_t number) {
  run_.answers[number].refused = true;
  ++run_.num_refused;
  if (tells_) notices_.push_back({number, now_, 0, true});
}

// As Loop::iterate() does.
void SimulatedWorker::iterate(Time end) {
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
    if (next_ < arrivals_.size()) next = std::min(next, arrivals_[next_].request->at);
    next = std::min(next, end);
    CHECK(next != kNever);
    now_ = std::max(now_ + Time(1), next);
  }
  for (const Event& e : events_.list) note(e);
}

void SimulatedWorker::launch() {
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
void SimulatedWorker::remember(const SimMoment& m) {
  if (num_moments_++ % moment_stride_ != 0) return;
  run_.moments.push_back(m);
  if (run_.moments.size() < 2 * kSimMoments) return;
  moment_stride_ *= 2;
  for (size_t i = 0; i < kSimMoments; ++i) run_.moments[i] = run_.moments[2 * i];
  run_.moments.resize(kSimMoments);
}

void SimulatedWorker::note(const Event& e) {
  SimAnswer& a = run_.answers[e.req - 1];
  if (e.token != kNoToken) {
    Time& last = last_[e.req - 1];
    if (a.num_tokens++ == 0) {
      a.first_token = token_time(e);
    } else {
      const Time gap = token_time(e) - last;
      a.longest_gap = std::max(a.longest_gap, gap);
      run_.gaps.push_back(static_cast<float>(seconds(gap)));
    }
    last = token_time(e);
    if (tells_) notices_.push_back({e.req - 1, last, 1, false});
  }
  if (e.finish == Finish::none) return;
  a.expired = e.finish == Finish::deadline;
  run_.num_expired += a.expired;
  a.finish = e.timing.finish;
  a.first_scheduled = e.timing.first_scheduled;
  a.num_cached = e.timing.num_cached;
  a.num_preemptions = e.timing.num_preemptions;
  end_ = std::max(end_, a.finish);
  if (tells_) notices_.push_back({e.req - 1, a.finish, 0, true});
}

SimRun SimulatedWorker::finish() {
  const SchedulerStats stats = scheduler_.stats();
  run_.num_preemptions = stats.num_preemptions;
  run_.prefix_queries = stats.prefix_queries;
  run_.prefix_hits = stats.prefix_hits;
  run_.elapsed = end_ > begin_ ? seconds(end_ - begin_) : 0;
  run_.mean_kv = run_.busy > 0 ? kv_seconds_ / run_.busy : 0;
  return std::move(run_);
}

}  // namespace sluice
