// The production scheduler and loop in virtual time, with everything going wrong at once: steps
// fail on the device, launches and waits throw and the engine starts again, clients hang up, read
// slowly or not at all, deadlines pass, the queue is full. After every step blocks are conserved;
// no query reads what is not its own; a request has one terminal event and nothing behind it; one
// that was cancelled or whose deadline passed is gone at once; in the end everything is free.
//
// A case is its seed: a failure names it, and SLUICE_FAULT_SEED=SEED runs that one again, step by
// step the same. 10 seeds of 1,000, other ones for each SLUICE_TEST_SEED; all with
// SLUICE_TEST_FULL=1.
#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "base/keyed_hash.h"
#include "base/str.h"
#include "base/test_slice.h"
#include "core/plan_codec.h"
#include "core/policy.h"
#include "core/shadow_cache.h"
#include "engine/loop.h"

namespace sluice {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr uint64_t kNumSeeds = 1000, kNumSteps = 1000;
constexpr uint64_t kFewer = 100;  // one seed in so many runs without SLUICE_TEST_FULL
// Always run. 25: a read that was planned before its place's write was known to be lost; 432: an
// aged sequence and one of higher priority that put each other back for ever; 701: transfers of a
// step behind a failed one.
constexpr uint64_t kFoundFaults[] = {25, 432, 701};

class Luck {
 public:
  explicit Luck(uint64_t seed) : rng_(seed) {}
  int pick(int lo, int hi) {
    return lo + static_cast<int>(rng_() % static_cast<uint64_t>(hi - lo + 1));
  }
  bool chance(int percent) { return pick(1, 100) <= percent; }
  bool rare(int of) { return pick(1, of) == 1; }

 private:
  std::mt19937_64 rng_;
};

// Steps take virtual time; some fail, and with them those launched before that is known; now and
// then a call throws.
class FaultyExecutor final : public Executor {
 public:
  FaultyExecutor(SimClock& clock, ShadowCache& cache, Luck& luck)
      : clock_(clock), cache_(cache), luck_(luck) {}

  void launch(const StepPlan& plan) override {
    if (faulty && luck_.rare(400)) throw std::runtime_error("no room for the step");
    const bool lost = std::ranges::any_of(flights_, &Flight::broke);
    Flight f;
    f.broke = !lost && faulty && luck_.rare(150);
    if (lost || f.broke) {
      f.result.step = plan.step;
      f.result.failure = "the fan fell off";
      cache_.lose(plan.transfers);
      ++num_failed;
    } else {
      cache_.map(plan);
      f.result = cache_.run(plan);
    }
    f.result.begin = std::max(clock_.now(), free_at_);
    f.result.end = f.result.begin + milliseconds(luck_.pick(1, 4)) +
                   plan.num_tokens * microseconds(luck_.pick(5, 50));
    free_at_ = f.result.end;
    flights_.push_back(std::move(f));
  }
  void masks(StepMasks) override { ADD_FAILURE() << "nothing here has a constraint"; }
  const StepResult& wait() override {
    last_ = std::move(flights_.front());
    flights_.pop_front();
    clock_.advance_to(last_.result.end);
    if (faulty && luck_.rare(500)) throw std::runtime_error("the result was lost");
    return last_.result;
  }

  bool faulty = true;
  uint64_t num_failed = 0;

 private:
  struct Flight {
    StepResult result;
    bool broke = false;  // with it the device
  };
  SimClock& clock_;
  ShadowCache& cache_;
  Luck& luck_;
  std::deque<Flight> flights_;
  Flight last_;
  Time free_at_{0};
};

struct FaultCounts {
  uint64_t requests = 0, refused = 0, restarts = 0, failed = 0, cancelled = 0, slow = 0;
  uint64_t expired = 0, answered = 0, preemptions = 0;
};

class FaultRun {
 public:
  FaultRun(uint64_t seed, FaultCounts& counts)
      : luck_(seed), counts_(counts), config_(make_config()) {}

  bool windowed() const {
    return std::ranges::any_of(config_.group_windows, [](int w) { return w > 0; });
  }

  // A hash of all plans and events.
  uint64_t run() {
    Scheduler scheduler(config_, nullptr);
    config_.max_seqs = scheduler.config().max_seqs;
    config_.pages = scheduler.config().pages;
    ShadowCache cache(config_, requests_);
    FaultyExecutor executor(clock_, cache, luck_);
    Loop loop(scheduler, executor, clock_, config_.pipeline);
    const uint64_t most = 20 * kNumSteps;
    for (uint64_t turn = 0; num_steps_ < kNumSteps || loop.busy(); ++turn) {
      const bool arriving = num_steps_ < kNumSteps;
      executor.faulty = arriving;
      if (turn >= most) return ADD_FAILURE() << "no progress: " << describe(scheduler), digest_;
      if (arriving) arrive(scheduler);
      visit_clients(scheduler);
      iterate(scheduler, loop);
      cache.poison(scheduler);
      check(scheduler);
      if (testing::Test::HasFailure()) return digest_;
      if (loop.idle()) sleep(scheduler);
    }
    finish(scheduler);
    counts_.failed += executor.num_failed;
    return digest_;
  }

 private:
  // Somebody who asked: reads a token per `pace`, hangs up at `leaves`, and is dropped when more
  // than `patience` tokens are unread.
  struct Client {
    Time pace{0}, leaves = kNever, read_until{0}, deadline = kNever;
    int unread = 0, patience = 8;
    bool ended = false;
  };

  SchedulerConfig make_config() {
    SchedulerConfig c;
    static const std::vector<std::string> kPresets = preset_names();
    const auto last = static_cast<int>(kPresets.size()) - 1;
    apply_preset(luck_.chance(50) ? "sarathi" : kPresets[static_cast<size_t>(luck_.pick(0, last))],
                 c)
        .value();
    c.group_windows.clear();
    const int groups = luck_.pick(1, 3);
    for (int g = 0; g < groups; ++g)
      c.group_windows.push_back(luck_.chance(60) ? 0 : luck_.pick(1, 40));
    c.block_size = 1 << luck_.pick(0, 4);
    c.max_len = 96;
    c.budget = luck_.chance(40) ? luck_.pick(1, 8) : luck_.pick(8, 64);
    c.chunk = luck_.chance(30) ? luck_.pick(1, 16) : 0;
    c.max_seqs = luck_.pick(1, 8);
    c.max_queued = luck_.chance(30) ? luck_.pick(1, 6) : 64;
    c.prefix_cache = luck_.chance(70);
    c.watermark = luck_.chance(50) ? 0.0f : 0.1f;
    if (luck_.chance(50)) {
      c.order =
          kOrders[static_cast<size_t>(luck_.pick(0, static_cast<int>(std::size(kOrders)) - 1))]
              .value;
    }
    if (luck_.chance(30)) c.admission = kAdmissions[luck_.pick(0, 2)].value;
    if (luck_.chance(30)) c.aging = milliseconds(luck_.pick(1, 60));
    if (luck_.chance(20)) c.fill_wait = milliseconds(luck_.pick(1, 20));
    if (luck_.chance(20)) c.slo = parse_slo_target("itl_p99=20ms").value();
    constexpr Pipeline kDepths[] = {Pipeline::sync, Pipeline::simple_async, Pipeline::overlap,
                                    Pipeline{3, true, 1}};
    c.pipeline = kDepths[luck_.pick(0, 3)];
    const int kind = luck_.pick(0, 9);
    if (kind <= 2) {
      constexpr KvAllocator kKinds[] = {KvAllocator::reserve, KvAllocator::range,
                                        KvAllocator::virtual_};
      c.allocator = kKinds[kind];
      c.prefix_cache = false;
      c.preempt = Preempt::recompute;
      if (c.mapped() && c.admission == Admission::predicted_peak)
        c.admission = Admission::watermark;
      if (c.mapped()) c.pages = {luck_.pick(1, 12), luck_.pick(1, 40), 0};
    } else if (kind <= 6) {
      c.preempt = luck_.chance(70) ? Preempt::swap : Preempt::recompute;
      c.tiers.swap = luck_.chance(70) ? luck_.pick(1, 60) : 0;
      c.tiers.host = luck_.chance(70) ? luck_.pick(1, 60) : 0;
      if (c.prefix_cache && luck_.chance(40)) c.tiers.disk = luck_.pick(1, 80);
    }
    // Room for the longest request, and a little more.
    const int64_t positions = c.allocator == KvAllocator::reserve ? c.max_len : kLongest;
    c.num_blocks = static_cast<int>(Scheduler::most_blocks(positions, c)) +
                   luck_.pick(0, luck_.chance(70) ? 6 * groups : 200);
    return c;
  }

  Request make_request() {
    Request r;
    r.id = ++last_id_;
    auto prompt = std::make_shared<std::vector<Token>>();
    const int len = luck_.pick(1, kLongest / 2), shared = luck_.chance(60) ? luck_.pick(0, len) : 0;
    for (int p = 0; p < len; ++p) prompt->push_back(p < shared ? p / 3 % 2 : luck_.pick(0, 1));
    r.prompt = prompt;
    auto spec = std::make_shared<SamplingSpec>();
    if (luck_.chance(10)) spec->prompt_logprobs = 0;
    r.sampling = spec;
    r.max_new = luck_.pick(1, kLongest / 2);
    r.n = !config_.contiguous() && luck_.chance(15) ? luck_.pick(2, 3) : 1;
    r.priority = luck_.pick(0, 2);
    r.tenant = luck_.chance(20) ? 1 : 0;
    r.account = static_cast<TenantId>(luck_.pick(0, 3));
    r.arrival = clock_.now();
    if (luck_.chance(20)) r.deadline = clock_.now() + milliseconds(luck_.pick(0, 200));
    return r;
  }

  void arrive(Scheduler& scheduler) {
    while (luck_.chance(scheduler.has_work() ? 15 : 60)) {
      Request r = make_request();
      const RequestId id = r.id;
      requests_[id] = r;
      ++counts_.requests;
      if (Result<void> ok = scheduler.add(std::move(r), clock_.now()); !ok) {
        EXPECT_EQ(ok.error().code, 429) << ok.error().message;
        ++counts_.refused;
        continue;
      }
      Client& c = clients_[id];
      c.read_until = clock_.now();
      c.deadline = requests_[id].deadline;
      if (luck_.chance(25)) c.pace = luck_.chance(30) ? kNever : milliseconds(luck_.pick(1, 40));
      if (luck_.chance(25)) c.leaves = clock_.now() + milliseconds(luck_.pick(0, 150));
    }
  }

  // Those that leave, and those that do not read what they are sent.
  void visit_clients(Scheduler& scheduler) {
    const Time now = clock_.now();
    for (auto& [id, c] : clients_) {
      if (c.ended) continue;
      while (c.unread > 0 && c.pace != kNever && c.read_until + c.pace <= now)
        --c.unread, c.read_until += c.pace;
      if (c.unread == 0) c.read_until = now;
      const bool slow = c.unread > c.patience;
      if (!slow && c.leaves > now) continue;
      counts_.slow += slow;
      ++counts_.cancelled;
      Events events;
      scheduler.cancel(id, now, events);
      take(events);
      EXPECT_TRUE(c.ended) << "request " << id << " outlives its cancellation";
    }
  }

  // As Engine::turn() and Engine::restart() do.
  void iterate(Scheduler& scheduler, Loop& loop) {
    Events events;
    const Time before = clock_.now();
    try {
      StepReport report = loop.iterate(events);
      if (report.launched) {
        ++num_steps_;
        bytes_.clear();
        encode(loop.last_plan(), bytes_);
        digest(bytes_);
      }
    } catch (const std::runtime_error&) {
      loop.abandon();
      scheduler.reset();
      for (auto& [id, c] : clients_) c.ended = true;
      ++counts_.restarts;
      return;
    }
    take(events);
    for (const auto& [id, c] : clients_) {
      EXPECT_TRUE(c.ended || c.deadline > before) << "request " << id << " outlives its deadline";
    }
  }

  void take(const Events& events) {
    for (const Event& e : events.list) {
      Client& c = clients_.at(e.req);
      EXPECT_FALSE(c.ended) << "request " << e.req << " has an event after its terminal one";
      if (e.token != kNoToken) ++c.unread;
      if (config_.order == Order::fcfs && !windowed()) {
        EXPECT_LE(e.timing.num_preemptions, 3) << "request " << e.req;
      }
      counts_.expired += e.last && e.finish == Finish::deadline;
      counts_.answered += e.last && e.finish == Finish::length;
      c.ended = e.last;
      const uint64_t words[] = {e.req, e.choice, static_cast<uint64_t>(e.token),
                                static_cast<uint64_t>(e.finish),
                                static_cast<uint64_t>(clock_.now().count())};
      digest(std::as_bytes(std::span(words)));
    }
  }

  void check(const Scheduler& scheduler) {
    EXPECT_TRUE(scheduler.count_blocks().conserved());
    std::erase_if(clients_, [&](const auto& entry) {
      EXPECT_EQ(scheduler.find(entry.first) == nullptr, entry.second.ended) << entry.first;
      return entry.second.ended;
    });
  }

  std::string describe(const Scheduler& scheduler) const {
    const SchedulerStats s = scheduler.stats();
    const BlockCounts b = scheduler.count_blocks();
    return strf(
        "%llu steps, %d waiting, %d running, %d in flight, blocks %d free %d cached %d owned "
        "%d pending; allocator %d, order %d, admission %d, max_seqs %d, budget %d, tiers %d",
        static_cast<unsigned long long>(num_steps_), s.num_waiting, s.num_running, s.num_in_flight,
        b.free, b.cached, b.owned, b.pending, static_cast<int>(config_.allocator),
        static_cast<int>(config_.order), static_cast<int>(config_.admission), config_.max_seqs,
        config_.budget, config_.tiers.total());
  }

  // Nothing runs: to the next moment at which something happens.
  void sleep(Scheduler& scheduler) {
    Time next = clock_.now() + milliseconds(luck_.pick(1, 10));
    if (scheduler.has_work()) next = std::min(next, scheduler.next_wakeup());
    clock_.advance_to(next);
  }

  void finish(const Scheduler& scheduler) {
    EXPECT_TRUE(clients_.empty()) << "a request never ended";
    EXPECT_TRUE(scheduler.idle());
    BlockCounts blocks = scheduler.count_blocks();
    EXPECT_EQ(blocks.free + blocks.cached, blocks.total) << "blocks left behind";
    EXPECT_EQ(scheduler.num_held_places(), 0) << "places left behind";
    counts_.preemptions += scheduler.stats().num_preemptions;
  }

  void digest(std::span<const std::byte> bytes) {
    digest_ = keyed_hash({digest_, 1}, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }

  static constexpr int kLongest = 90;  // positions of a request

  Luck luck_;
  FaultCounts& counts_;
  SchedulerConfig config_;
  SimClock clock_;
  std::map<RequestId, Request> requests_;
  std::map<RequestId, Client> clients_;  // of those that have not ended
  RequestId last_id_ = 0;
  uint64_t num_steps_ = 0, digest_ = 0;
  Bytes bytes_;
};

uint64_t number_from(const char* name) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : 0;
}

TEST(SimulatedFaults, NothingIsLostLeakedOrSentTwice) {
  const uint64_t only = number_from("SLUICE_FAULT_SEED");
  const bool full = number_from("SLUICE_TEST_FULL") == 1;
  TestSlice slice(full || only ? 1 : kFewer, number_from("SLUICE_TEST_SEED"));
  FaultCounts counts;
  for (uint64_t seed = only ? only : 1; seed <= (only ? only : kNumSeeds); ++seed) {
    if (!slice.take() && std::ranges::find(kFoundFaults, seed) == std::end(kFoundFaults)) continue;
    SCOPED_TRACE("replay with SLUICE_FAULT_SEED=" + std::to_string(seed));
    const uint64_t first = FaultRun(seed, counts).run();
    if (HasFailure()) return;
    if (seed % 50 > 1) continue;
    FaultCounts again;
    EXPECT_EQ(FaultRun(seed, again).run(), first) << "a seed does not give one run";
  }
  if (!full) return;  // a few seeds may leave out a kind of fault
  EXPECT_GT(counts.answered, counts.requests / 5) << "hardly anything succeeds";
  EXPECT_GT(counts.preemptions, 0u);
  EXPECT_GT(counts.restarts, 0u);
  EXPECT_GT(counts.failed, 0u);
  EXPECT_GT(counts.cancelled, counts.slow);
  EXPECT_GT(counts.slow, 0u);
  EXPECT_GT(counts.expired, 0u);
  EXPECT_GT(counts.refused, 0u);
}

}  // namespace
}  // namespace sluice
