// How many sequences each allocator holds, as counts.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <map>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "core/fake_executor.h"
#include "core/policy.h"
#include "core/scheduler.h"

namespace sluice {
namespace {

constexpr Token kEnd = 2;

struct Lengths {
  int prompt, output;
};

struct Held {
  int most = 0;     // sequences at once
  double mean = 0;  // over the steps in which somebody waits
  uint64_t preemptions = 0;
  double internal = 0, external = 0, idle = 0;  // fragmentation and free share, likewise
};

class Pool {
 public:
  explicit Pool(KvAllocator allocator, int page_blocks = 1) {
    config_.pages.page_bytes = page_blocks;
    config_.allocator = allocator;
    config_.budget = 4096;
    config_.max_seqs = 256;
    config_.max_len = 2048;
    config_.num_blocks = 2 * config_.max_len / config_.block_size;
    config_.prefix_cache = false;
    config_.watermark = 0;
  }

  // Every output ends where it was predicted to; max_tokens allows as much as there is.
  Held run(const std::vector<Lengths>& list) {
    Scheduler scheduler(config_, nullptr);
    RequestId id = 0;
    for (const Lengths& l : list) {
      Request r;
      r.id = ++id;
      r.prompt = std::make_shared<std::vector<Token>>(static_cast<size_t>(l.prompt), Token{1});
      r.sampling = std::make_shared<SamplingSpec>();
      r.max_new = config_.max_len - l.prompt;
      r.stop.tokens = {kEnd};
      r.predicted_output = l.output;
      EXPECT_TRUE(scheduler.add(std::move(r), Time{0}));
    }
    Held held;
    int steps = 0;
    StepPlan plan;
    std::map<Slot, RequestId> rows;
    std::deque<StepResult> flights;  // a step ahead, as the overlapping pipeline runs
    Events events;
    while (scheduler.has_work()) {
      scheduler.plan(Time{0}, plan, events);
      SchedulerStats st = scheduler.stats();
      held.most = std::max(held.most, st.num_running);
      if (st.num_waiting > 0) {
        KvUse use = scheduler.kv_use();
        held.mean += st.num_running;
        held.internal += use.internal_fragmentation();
        held.external += use.external_fragmentation();
        held.idle += KvUse::ratio(use.free, use.total);
        ++steps;
      }
      if (plan.empty()) {
        if (flights.empty()) {
          ADD_FAILURE() << "no progress";
          break;
        }
        scheduler.complete(flights.front(), Time{0}, events);
        flights.pop_front();
        continue;
      }
      for (const RowOp& op : plan.rows) {
        if (op.kind == RowOp::open) rows[op.slot] = op.id.req;
      }
      auto draw = [&](const StepPlan&, const Slice& s) {
        const Lengths& l = list[rows[s.slot] - 1];
        return s.pos + s.count >= l.prompt + l.output - 1 ? kEnd : Token{7};
      };
      flights.emplace_back();
      FakeExecutor::answer(plan, draw, flights.back());
      if (flights.size() > 1) {
        scheduler.complete(flights.front(), Time{0}, events);
        flights.pop_front();
      }
      EXPECT_TRUE(scheduler.count_blocks().conserved());
    }
    held.preemptions = scheduler.stats().num_preemptions;
    for (double* mean : {&held.mean, &held.internal, &held.external, &held.idle})
      *mean /= std::max(steps, 1);
    return held;
  }

 private:
  SchedulerConfig config_;
};

TEST(KvAllocators, PagedHoldsSixteenWhereReserveHoldsTwo) {
  std::vector<Lengths> list(40, {128, 128});
  Held reserve = Pool(KvAllocator::reserve).run(list);
  Held paged = Pool(KvAllocator::paged).run(list);
  EXPECT_EQ(reserve.most, 2);
  EXPECT_GE(paged.most, 16);
  EXPECT_GT(reserve.internal, 0.8) << "of 2048 positions at most 256 are used";
  EXPECT_LT(paged.internal, 0.1);
  EXPECT_EQ(paged.external, 0);
}

TEST(KvAllocators, RangeWithOracleLengthsHoldsWhatTheLengthsAllow) {
  for (Lengths l : {Lengths{64, 64}, {100, 100}, {300, 40}, {17, 200}, {500, 500}}) {
    SCOPED_TRACE(std::to_string(l.prompt) + " + " + std::to_string(l.output));
    std::vector<Lengths> list(120, l);
    Held reserve = Pool(KvAllocator::reserve).run(list);
    Held range = Pool(KvAllocator::range).run(list);
    EXPECT_EQ(reserve.most, 2);
    EXPECT_GE(range.most, std::floor(0.9 * 2048 / (l.prompt + l.output) * reserve.most));
    EXPECT_EQ(range.preemptions, 0u);
  }
}

// Lengths that differ leave holes. Best fit and joining keep them small: while somebody waits, most
// of the pool is held.
TEST(KvAllocators, RangeKeepsItsHolesSmall) {
  std::mt19937_64 rng(3);
  std::vector<Lengths> list;
  for (int i = 0; i < 400; ++i)
    list.push_back({16 + static_cast<int>(rng() % 100), 8 + static_cast<int>(rng() % 100)});
  // The table in docs/performance.md: --gtest_output=xml.
  struct Kind {
    KvAllocator allocator;
    int page = 1;  // in blocks
  };
  for (auto [a, page] :
       {Kind{KvAllocator::reserve}, Kind{KvAllocator::range}, Kind{KvAllocator::paged},
        Kind{KvAllocator::virtual_}, Kind{KvAllocator::virtual_, 8}}) {
    Held held = Pool(a, page).run(list);
    std::string name = name_of(kAllocators, a) + std::string(page > 1 ? "_8" : "");
    RecordProperty(name + "_most", held.most);
    RecordProperty(name + "_mean_tenths", std::lround(held.mean * 10));
    RecordProperty(name + "_internal_permille", std::lround(held.internal * 1000));
    RecordProperty(name + "_external_permille", std::lround(held.external * 1000));
    RecordProperty(name + "_idle_permille", std::lround(held.idle * 1000));
    RecordProperty(name + "_preemptions", static_cast<int>(held.preemptions));
    if (a == KvAllocator::virtual_) {
      EXPECT_EQ(held.external, 0);
      EXPECT_GE(held.most, page == 1 ? 50 : 20);
    }
    if (a != KvAllocator::range) continue;
    EXPECT_LT(held.idle, 0.15);
    EXPECT_EQ(held.preemptions, 0u);
  }
}

// A prediction that is too short costs preemptions, never a token; three at most.
TEST(KvAllocators, OutputsLongerThanPredictedGrowOrComeBack) {
  SchedulerConfig c;
  c.allocator = KvAllocator::range;
  c.prefix_cache = false;
  c.max_len = 512;
  c.num_blocks = 64;
  Scheduler scheduler(c, nullptr);
  for (RequestId id = 1; id <= 20; ++id) {
    Request r;
    r.id = id;
    r.prompt = std::make_shared<std::vector<Token>>(20, Token{1});
    r.sampling = std::make_shared<SamplingSpec>();
    r.max_new = 100 + static_cast<int>(id);
    r.predicted_output = 4;
    ASSERT_TRUE(scheduler.add(std::move(r), Time{0}));
  }
  StepPlan plan;
  StepResult result;
  Events events;
  std::vector<int> tokens(21);
  int ended = 0;
  while (scheduler.has_work()) {
    scheduler.plan(Time{0}, plan, events);
    ASSERT_FALSE(plan.empty());
    FakeExecutor::answer(
        plan, [](const StepPlan&, const Slice&) { return Token{7}; }, result);
    scheduler.complete(result, Time{0}, events);
    for (const Event& e : events.list) {
      if (e.token != kNoToken) ++tokens[e.req];
      EXPECT_LE(e.timing.num_preemptions, 3);
      ended += e.last;
    }
    events.clear();
  }
  EXPECT_EQ(ended, 20);
  for (size_t id = 1; id <= 20; ++id) EXPECT_EQ(tokens[id], 100 + static_cast<int>(id));
  EXPECT_GT(scheduler.stats().num_preemptions, 0u);
}

TEST(KvAllocators, RefuseThePrefixCache) {
  for (KvAllocator a : {KvAllocator::reserve, KvAllocator::range, KvAllocator::virtual_}) {
    SchedulerConfig c;
    c.allocator = a;
    auto ok = check_allocator(c);
    ASSERT_FALSE(ok);
    EXPECT_NE(ok.error().message.find("prefix cache"), std::string::npos);
    c.prefix_cache = false;
    EXPECT_TRUE(check_allocator(c));
  }
  EXPECT_TRUE(check_allocator(SchedulerConfig{}));
}

}  // namespace
}  // namespace sluice
