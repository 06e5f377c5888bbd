#include "pd_run.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "core/prefix_index.h"
#include "cutting_relay.h"
#include "net/stream_socket.h"
#include "pd_side.h"

namespace sluice {

namespace {

using Way = PdRequest::Way;
using Loss = PdWorkload::Loss;
using std::chrono::milliseconds;

// One request on its way through both engines.
struct Task {
  const PdRequest* drawn = nullptr;
  PromptBlocks blocks;
  LeaseId lease = 0;
  LeaseName name{};
  Output prefill, output;
  std::optional<KvFetcher::Outcome> fetched;
  int num_cached = 0, num_preemptions = 0;  // of the answer's sequences: the most, the sum
};

// Takes what comes of a request on one engine.
class TaskSink final : public Sink {
 public:
  using OnEvent = std::function<void(const Event&)>;
  TaskSink(Output& output, OnEvent then) : output_(output), then_(std::move(then)) {}
  void on_event(const Event& e, std::span<const TopLogprob> top) override {
    output_.take(e, top);
    then_(e);
  }
  void on_refused(const Error& error) override {
    ADD_FAILURE() << error.message;
    Event end;
    end.last = true;
    then_(end);
  }

 private:
  Output& output_;
  OnEvent then_;
};

class PdRun {
 public:
  PdRun(Subject& subject, const PdWorkload& w);
  ~PdRun() { stop(); }
  void expect_transport();
  void run();
  void expect_nothing_held();
  std::vector<Output> outputs();
  void count(PdTally* tally);

 private:
  void stop();
  void begin(Task& task);
  void begin_prefill(Task& task);
  void await_places(const Task& task) const;
  void prefilled(Task& task, const Event& last);
  void fetch(Task& task, std::optional<LeaseName> lease, bool pending);
  void answer(Task& task, ModelSide& side);
  void ended();
  void await(size_t most);
  void maybe_cut(size_t num_begun);

  const PdWorkload& w_;
  std::vector<Task> tasks_;
  ModelSide from_, to_;
  std::unique_ptr<KvPort> port_;
  uint16_t port_number_;
  std::unique_ptr<CuttingRelay> relay_;
  std::unique_ptr<KvFetcher> fetcher_;
  std::mutex mutex_;  // of num_running_
  std::condition_variable changed_;
  size_t num_running_ = 0;  // on either engine, or on the way
};

milliseconds lease_time(const PdWorkload& w) {
  return milliseconds(w.loss == Loss::expired ? 0 : 600'000);
}

// Whoever asks for a lease that is over already waits so long for somebody to open it.
milliseconds await_time(const PdWorkload& w) {
  return milliseconds(w.loss == Loss::expired ? 200 : 600'000);
}

PdRun::PdRun(Subject& subject, const PdWorkload& w)
    : w_(w),
      tasks_(w.requests.size()),
      from_(subject, w.from, w.keyed ? kSharedKey : "", w.by_layers, lease_time(w)),
      to_(subject, w.to, w.keyed ? kSharedKey : "", false, lease_time(w)),
      port_(open_port(from_, w.transport, 3)),
      port_number_(port_->port()),
      fetcher_(open_fetcher(to_, w.transport, await_time(w))) {
  if (w.loss == Loss::cut && w.transport == Transport::tcp)
    relay_ = std::make_unique<CuttingRelay>(port_->port(), w.cut_after);
  for (size_t k = 0; k < tasks_.size(); ++k) {
    Task& t = tasks_[k];
    t.drawn = &w.requests[k];
    const Request& r = t.drawn->request;
    t.blocks = {r.prompt, hash_blocks(*r.prompt, w.to.scheduler.block_size, r.tenant), r.tenant};
    t.name = room_lease(k + 1);
    t.prefill = Output(prefill_request(r));
    t.output = Output(r);
  }
}

// Those who fetch end before the engines.
void PdRun::stop() {
  fetcher_.reset();
  port_.reset();
  relay_.reset();
  to_.engine.reset(), from_.engine.reset();
}

void PdRun::run() {
  for (size_t k = 0; k < tasks_.size(); ++k) {
    const PdRequest& r = *tasks_[k].drawn;
    await(r.prefill_cancelled || r.way == Way::prefix ? 0 : w_.width - 1);
    if (testing::Test::HasFatalFailure()) return;
    begin(tasks_[k]);
    maybe_cut(k + 1);
  }
  await(0);
}

// By shared memory there is no relay: the port ends all connections, wherever they are.
void PdRun::maybe_cut(size_t num_begun) {
  if (w_.loss == Loss::cut && w_.transport == Transport::shm && num_begun == w_.cut_after)
    port_.reset();
}

void PdRun::await(size_t most) {
  std::unique_lock lock(mutex_);
  const bool in_time =
      changed_.wait_for(lock, std::chrono::minutes(5), [&] { return num_running_ <= most; });
  ASSERT_TRUE(in_time) << "no progress";
}

void PdRun::ended() {
  std::lock_guard lock(mutex_);
  --num_running_;
  changed_.notify_all();
}

void PdRun::begin(Task& task) {
  const bool handed_over = task.drawn->way == Way::handed_over;
  {
    std::lock_guard lock(mutex_);
    num_running_ += handed_over ? 2 : 1;
  }
  switch (task.drawn->way) {
    case Way::prefill_side:
      return answer(task, from_);
    case Way::decode_side:
      return answer(task, to_);
    case Way::prefix:
      return fetch(task, std::nullopt, false);
    case Way::handed_over:
      return begin_prefill(task);
  }
}

void PdRun::begin_prefill(Task& task) {
  const Request& r = task.drawn->request;
  const LeaseStore::Opened lease = *from_.leases.open(
      prompt_keys(*r.prompt, w_.from.scheduler.block_size), from_.identity.num_groups, task.name);
  task.lease = lease.id;
  if (task.drawn->pending) fetch(task, task.name, true);
  Request prefill = prefill_request(r);
  prefill.block_hashes = task.blocks.hashes;
  prefill.lease = lease.id;
  const RequestId id = from_.engine->submit(
      std::move(prefill), std::make_shared<TaskSink>(task.prefill, [this, &task](const Event& e) {
        if (e.last) prefilled(task, e);
      }));
  if (!task.drawn->prefill_cancelled) return;
  if (task.drawn->pending) await_places(task);
  from_.engine->cancel(id);
}

// So that the prompt is cancelled while its blocks are fetched, if there is any to fetch.
void PdRun::await_places(const Task& task) const {
  const auto has_begun = [&] {
    return fetcher_->stats().places > 0 || !from_.leases.is_open(task.lease);
  };
  for (int k = 0; !has_begun() && k < 1000; ++k) std::this_thread::sleep_for(milliseconds(1));
}

// On the engine thread of the side that computed the prompt.
void PdRun::prefilled(Task& task, const Event& last) {
  if (last.finish == Finish::stop || last.finish == Finish::length) {
    from_.leases.seal(task.lease);
    if (w_.loss == Loss::expired && !task.drawn->pending) from_.leases.tend();
  } else {
    from_.leases.drop(task.lease);
  }
  if (!task.drawn->pending) fetch(task, task.name, false);
  ended();
}

void PdRun::fetch(Task& task, std::optional<LeaseName> lease, bool pending) {
  KvFetcher::Job job;
  job.peer = {"127.0.0.1", relay_ ? relay_->port() : port_number_};
  job.lease = lease;
  job.pending = pending;
  job.prompt = task.blocks;
  job.done = [this, &task](const KvFetcher::Outcome& o) {
    task.fetched = o;
    // Nobody will give it back: its time would end it.
    if (!o.error.empty() && task.lease != 0) from_.leases.drop(task.lease);
    answer(task, to_);
  };
  ASSERT_TRUE(fetcher_->push(std::move(job)));
}

void PdRun::answer(Task& task, ModelSide& side) {
  const auto on_event = [this, &task, &side, num = 0](const Event& e) mutable {
    if (++num == task.drawn->cancel_after) side.engine->cancel(e.req);
    if (e.finish != Finish::none) {
      task.num_cached = std::max(task.num_cached, e.timing.num_cached);
      task.num_preemptions += e.timing.num_preemptions;
    }
    if (e.last) ended();
  };
  side.engine->submit(task.drawn->request, std::make_shared<TaskSink>(task.output, on_event));
}

void PdRun::expect_nothing_held() {
  // The last word of a connection may have been cut off: the lease's time would end it.
  if (w_.loss == Loss::cut)
    for (const Task& t : tasks_)
      if (t.lease != 0) from_.leases.drop(t.lease);
  expect_freed(from_);
  from_.expect_idle();
  to_.expect_idle();
  EXPECT_EQ(fetcher_->stats().places, 0);
}

// A prompt of which every full block was here when its request began, and of which some had come.
bool began_behind(const Task& t, int block_size) {
  const int full = static_cast<int>(t.blocks.prompt->size() - 1) / block_size * block_size;
  return t.fetched && t.fetched->num_came > 0 && t.fetched->error.empty() && t.num_cached == full;
}

void count_task(const Task& t, const PdWorkload& w, bool windowed, PdTally* tally) {
  const bool fetched = began_behind(t, w.to.scheduler.block_size);
  if (t.drawn->way == Way::prefix)
    tally->prefixes += t.fetched && t.fetched->num_came > 0 && t.num_cached > 0;
  if (t.drawn->way != Way::handed_over) return;
  ++tally->handed_over;
  if (t.fetched && !t.fetched->error.empty()) {
    ++tally->lost;
    tally->lost_in_middle += t.fetched->num_came > 0;
  }
  if (!fetched) return;
  ++(!t.drawn->pending ? tally->fetched_at_end
     : w.by_layers     ? tally->fetched_by_layers
                       : tally->fetched_by_steps);
  ++(w.transport == Transport::shm ? tally->fetched_shm : tally->fetched_tcp);
  tally->fetched_keyed += w.keyed;
  tally->fetched_windowed += windowed;
  tally->preempted += static_cast<uint64_t>(t.num_preemptions);
}

// When all has ended.
void PdRun::count(PdTally* tally) {
  for (const Task& t : tasks_) count_task(t, w_, from_.identity.windowed, tally);
  tally->sent_by_layers += from_.num_sent_by_layers();
  tally->expired += from_.leases.stats().expired;
  for (ModelSide* side : {&from_, &to_}) {
    const SchedulerStats stats = side->ask([](Scheduler& s) { return s.stats(); });
    tally->preemptions += stats.num_preemptions;
    tally->restored += stats.tiers.num_restored;
  }
}

// When the engines are gone: nothing follows.
std::vector<Output> PdRun::outputs() {
  stop();
  std::vector<Output> out;
  for (Task& t : tasks_) {
    EXPECT_EQ(t.prefill.num_terminal, t.drawn->way == Way::handed_over ? 1 : 0);
    out.push_back(std::move(t.output));
  }
  return out;
}

// TCP would be taken without a word.
void PdRun::expect_transport() {
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  const auto stream = connect_bytes(w_.transport, "127.0.0.1", port_->port(), until).value();
  const bool is_tcp = dynamic_cast<const StreamSocket*>(stream.get()) != nullptr;
  EXPECT_EQ(is_tcp, w_.transport == Transport::tcp);
}

}  // namespace

std::vector<Output> run_pd(Subject& subject, const PdWorkload& w, PdTally* tally) {
  PdRun run(subject, w);
  run.expect_transport();
  run.run();
  if (testing::Test::HasFailure()) return {};
  run.expect_nothing_held();
  run.count(tally);
  return run.outputs();
}

}  // namespace sluice
