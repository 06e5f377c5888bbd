// Blocks outside the pool: preempted sequences that come back, prefixes that the pool has no room
// for, and what becomes of both when requests are cancelled or a step fails.
#include <deque>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "core/fake_executor.h"
#include "core/scheduler.h"
#include "core/swap_cost.h"
#include "core/tier_cache.h"

namespace sluice {
namespace {

constexpr int kTierBlock = 4;

SchedulerConfig small_pool(int num_blocks) {
  SchedulerConfig c;
  c.block_size = kTierBlock;
  c.num_blocks = num_blocks;
  c.max_len = 64;
  c.budget = 64;
  c.watermark = 0;
  c.prefix_cache = false;
  c.pipeline = Pipeline::sync;
  return c;
}

// Prompts of different `first` share nothing.
Request prompt_of(RequestId id, int len, int max_new, Token first = 0) {
  Request r;
  r.id = id;
  auto prompt = std::make_shared<std::vector<Token>>();
  for (int k = 0; k < len; ++k) prompt->push_back(first + k);
  r.prompt = prompt;
  r.sampling = std::make_shared<const SamplingSpec>();
  r.max_new = max_new;
  return r;
}

// A scheduler with as many steps in flight as its pipeline allows.
class Bench {
 public:
  explicit Bench(const SchedulerConfig& c) : scheduler(c, nullptr) {}

  // One turn; false: there was nothing to do.
  bool step(bool fail = false) {
    StepPlan plan;
    scheduler.plan(Time{++now_}, plan, events);
    if (!plan.empty()) {
      num_tokens += plan.num_tokens;
      FakeExecutor::answer(
          plan, [](const StepPlan&, const Slice& s) { return 100 + s.pos; },
          flights_.emplace_back());
    }
    if (flights_.empty()) return false;
    int depth = scheduler.config().pipeline.depth;
    if (static_cast<int>(flights_.size()) <= depth && !plan.empty()) return true;
    StepResult result = std::move(flights_.front());
    flights_.pop_front();
    if (fail) {
      result.rows.clear(), result.tokens.clear(), result.transfers.clear();
      result.failure = "lost";
    }
    scheduler.complete(result, Time{now_}, events);
    EXPECT_TRUE(scheduler.count_blocks().conserved());
    return true;
  }
  void finish() {
    for (int k = 0; scheduler.has_work() || !flights_.empty(); ++k) {
      ASSERT_LT(k, 1000) << "no progress";
      step();
    }
    EXPECT_TRUE(scheduler.idle());
    EXPECT_EQ(scheduler.num_held_places(), 0);
  }
  void add(Request r) { ASSERT_TRUE(scheduler.add(std::move(r), Time{now_})); }
  // Until somebody's blocks have gone out.
  void until_swapped() {
    for (int k = 0; scheduler.stats().tiers.num_swapped == 0; ++k) {
      ASSERT_LT(k, 100);
      ASSERT_TRUE(step());
    }
  }
  int cached_of(RequestId id) const {
    for (const Event& e : events.list) {
      if (e.req == id && e.last) return e.timing.num_cached;
    }
    return -1;
  }
  TierStats tiers() const { return scheduler.stats().tiers; }
  size_t num_moving_in_flight() const {
    size_t num = 0;
    for (const StepResult& r : flights_) num += r.transfers.size();
    return num;
  }

  Scheduler scheduler;
  Events events;
  int num_tokens = 0;

 private:
  int64_t now_ = 0;
  std::deque<StepResult> flights_;
};

// Two sequences of 8 + 16 positions each in a pool of 8 blocks: one of them must leave.
int tokens_of_two(const SchedulerConfig& c, TierStats* tiers, uint64_t* preemptions) {
  Bench b(c);
  b.add(prompt_of(1, 8, 16)), b.add(prompt_of(2, 8, 16, 50));
  b.finish();
  *tiers = b.tiers();
  *preemptions = b.scheduler.stats().num_preemptions;
  return b.num_tokens;
}

TEST(SchedulerTiers, ASwappedSequenceComputesNothingAgain) {
  constexpr int kLeast = 2 * (8 + 16 - 1);  // the last token needs no K and V
  SchedulerConfig c = small_pool(8);
  TierStats tiers;
  uint64_t preemptions = 0;
  EXPECT_GT(tokens_of_two(c, &tiers, &preemptions), kLeast);
  EXPECT_GT(preemptions, 0u);
  EXPECT_EQ(tiers.blocks_out, 0u);

  c.preempt = Preempt::swap;
  c.tiers.swap = 8;
  EXPECT_EQ(tokens_of_two(c, &tiers, &preemptions), kLeast);
  EXPECT_GT(preemptions, 0u);
  EXPECT_EQ(tiers.num_swapped, preemptions);
  EXPECT_EQ(tiers.num_restored, preemptions);
  EXPECT_GT(tiers.blocks_out, 0u);
  EXPECT_EQ(tiers.blocks_in, tiers.blocks_out);
}

// Steps that run ahead: only the token whose sample was dropped runs again.
TEST(SchedulerTiers, AStepInFlightIsSwappedToo) {
  SchedulerConfig c = small_pool(8);
  c.pipeline = Pipeline::overlap;
  c.preempt = Preempt::swap;
  c.tiers.swap = 8;
  TierStats tiers;
  uint64_t preemptions = 0;
  int tokens = tokens_of_two(c, &tiers, &preemptions);
  EXPECT_EQ(tiers.num_restored, preemptions);
  EXPECT_LE(tokens, 2 * (8 + 16 - 1) + static_cast<int>(preemptions));
}

TEST(SchedulerTiers, WithoutRoomOrWhereItCostsMoreItIsComputedAgain) {
  SchedulerConfig c = small_pool(8);
  TierStats tiers;
  uint64_t preemptions = 0;
  int recomputed = tokens_of_two(c, &tiers, &preemptions);
  c.preempt = Preempt::swap;
  c.tiers.swap = 1;
  EXPECT_EQ(tokens_of_two(c, &tiers, &preemptions), recomputed);
  EXPECT_EQ(tiers.num_swapped, 0u);
  c.tiers.swap = 8;
  c.swap_cost = {10, 1, 0};
  EXPECT_EQ(tokens_of_two(c, &tiers, &preemptions), recomputed);
  EXPECT_EQ(tiers.num_swapped, 0u);
  c.swap_cost = {1, 1, 0};
  EXPECT_LT(tokens_of_two(c, &tiers, &preemptions), recomputed);
}

TEST(SchedulerTiers, MovingPaysWhereItIsFasterThanComputing) {
  // 100 blocks both ways in 0.02 s, 1,600 tokens in 0.16 s.
  EXPECT_TRUE(swap_pays(100, 1600, {1e-4, 1e-4, 0}));
  EXPECT_FALSE(swap_pays(100, 1600, {1e-3, 1e-4, 0}));
  EXPECT_FALSE(swap_pays(1, 16, {1e-4, 1e-4, 0.01})) << "a short one is done before the next step";
  EXPECT_TRUE(swap_pays(1, 16, {}));
}

TEST(SchedulerTiers, CancelGivesPlacesBack) {
  SchedulerConfig c = small_pool(8);
  c.preempt = Preempt::swap;
  c.tiers.swap = 8;
  for (bool coming_back : {false, true}) {
    Bench b(c);
    b.add(prompt_of(1, 8, 16)), b.add(prompt_of(2, 8, 16, 50));
    b.until_swapped();
    EXPECT_GT(b.scheduler.num_held_places(), 0);
    StepPlan plan;
    if (coming_back) {
      // The first one ends; the step that brings the second one back is in flight.
      b.scheduler.cancel(1, Time{900}, b.events);
      b.scheduler.plan(Time{901}, plan, b.events);
      ASSERT_FALSE(plan.transfers.empty());
      EXPECT_EQ(plan.transfers[0].kind, Transfer::in);
      EXPECT_TRUE(plan.slices.empty()) << "it runs when its blocks are there";
    }
    b.scheduler.cancel(2, Time{902}, b.events);
    EXPECT_TRUE(b.scheduler.count_blocks().conserved());
    if (coming_back) {
      StepResult result;
      FakeExecutor::answer(
          plan, [](const StepPlan&, const Slice&) { return Token{1}; }, result);
      b.scheduler.complete(result, Time{903}, b.events);
    }
    EXPECT_EQ(b.scheduler.num_held_places(), 0);
    b.finish();
    BlockCounts blocks = b.scheduler.count_blocks();
    EXPECT_EQ(blocks.free, blocks.total);
  }
}

TEST(SchedulerTiers, AFailedStepLosesWhatWasOnItsWay) {
  SchedulerConfig c = small_pool(8);
  c.prefix_cache = true;
  c.preempt = Preempt::swap;
  c.tiers = {8, 8};
  for (int at = 1; at < 30; ++at) {
    Bench b(c);
    b.add(prompt_of(1, 8, 16)), b.add(prompt_of(2, 8, 16, 50));
    for (int k = 0; k < at; ++k) b.step();
    b.step(/*fail=*/true);
    EXPECT_EQ(b.scheduler.num_held_places(), 0) << at;
    b.add(prompt_of(3, 8, 16, 90));
    b.finish();
  }
}

// Steps behind the failed one may succeed all the same, and then name transfers that are forgotten.
TEST(SchedulerTiers, StepsBehindAFailedOneAreLostThoughTheySucceed) {
  for (Pipeline pipeline : {Pipeline::overlap, Pipeline::double_buffer}) {
    SchedulerConfig c = small_pool(8);
    c.prefix_cache = true;
    c.preempt = Preempt::swap;
    c.tiers = {8, 8};
    c.pipeline = pipeline;
    int num_moving = 0;  // failures with transfers in the steps behind
    for (int at = 1; at < 40; ++at) {
      Bench b(c);
      b.add(prompt_of(1, 8, 16)), b.add(prompt_of(2, 8, 16, 50));
      for (int k = 0; k < at; ++k) b.step();
      b.step(/*fail=*/true);
      num_moving += b.num_moving_in_flight() > 0;
      b.add(prompt_of(3, 8, 16, 90));
      b.finish();
      int tokens = 0, failed = 0;
      for (const Event& e : b.events.list) {
        tokens += e.req == 3 && e.token != kNoToken;
        failed += e.finish == Finish::failed && e.last;
      }
      EXPECT_EQ(tokens, 16) << at;
      EXPECT_LE(failed, 2) << at;
    }
    EXPECT_GT(num_moving, 0) << "nothing was on its way";
  }
}

TEST(SchedulerTiers, AnEvictedPrefixComesBackFromHostMemory) {
  SchedulerConfig c = small_pool(6);
  c.prefix_cache = true;
  c.tiers.host = 16;
  Bench b(c);
  b.add(prompt_of(1, 17, 1));
  b.finish();
  b.add(prompt_of(2, 21, 1, 50));  // takes the pool
  b.finish();
  EXPECT_GT(b.tiers().blocks_out, 0u);
  EXPECT_EQ(b.tiers().prefix_hits, 0u);
  int before = b.num_tokens;
  b.add(prompt_of(3, 17, 1));
  b.finish();
  EXPECT_EQ(b.cached_of(3), 16);
  EXPECT_EQ(b.num_tokens - before, 1) << "only the last token is computed";
  EXPECT_GT(b.tiers().prefix_hits, 0u);
  EXPECT_EQ(b.tiers().prefix_hits, b.tiers().blocks_in * kTierBlock);

  // What came in is in the pool again: the next one shares it.
  uint64_t blocks_in = b.tiers().blocks_in;
  b.add(prompt_of(4, 17, 1));
  b.finish();
  EXPECT_EQ(b.cached_of(4), 16);
  EXPECT_EQ(b.tiers().blocks_in, blocks_in);
}

TEST(SchedulerTiers, TenantsDoNotSeeEachOthersPrefixes) {
  SchedulerConfig c = small_pool(6);
  c.prefix_cache = true;
  c.tiers.host = 16;
  Bench b(c);
  b.add(prompt_of(1, 17, 1));
  b.finish();
  b.add(prompt_of(2, 21, 1, 50));
  b.finish();
  Request other = prompt_of(3, 17, 1);
  other.tenant = 7;
  b.add(std::move(other));
  b.finish();
  EXPECT_EQ(b.cached_of(3), 0);
  EXPECT_EQ(b.tiers().prefix_hits, 0u);
}

TEST(SchedulerTiers, HostMemoryIsBounded) {
  SchedulerConfig c = small_pool(6);
  c.prefix_cache = true;
  c.tiers.host = 3;
  Bench b(c);
  for (int k = 0; k < 20; ++k) {
    b.add(prompt_of(static_cast<RequestId>(k + 1), 17, 1, 100 * k));
    b.finish();
    EXPECT_LE(b.tiers().used_places, 3);
  }
  EXPECT_EQ(b.tiers().used_places, 3);
}

TEST(TierCache, TheOldestPrefixMakesRoom) {
  TierCache tiers({2, 2}, 2);
  std::vector<Token> text = {1, 2};
  auto key = [](uint64_t k) { return PrefixKey{{k, k}, 0, 0}; };
  PlaceId a = tiers.insert(key(1), text), b = tiers.insert(key(2), text);
  EXPECT_EQ(a, 3);
  EXPECT_EQ(b, 4);
  EXPECT_EQ(tiers.insert(key(3), text), kNullBlock) << "both are still being written";
  tiers.release(a), tiers.release(b);
  EXPECT_EQ(tiers.insert(key(1), text), kNullBlock) << "it is here, and used now";
  EXPECT_EQ(tiers.insert(key(3), text), b);
  tiers.release(b);
  EXPECT_EQ(tiers.find(key(1), text), a);
  EXPECT_EQ(tiers.find(key(2), text), kNullBlock);
  tiers.forget(a);
  EXPECT_EQ(tiers.find(key(1), text), kNullBlock);
  EXPECT_EQ(tiers.num_used_memory(), 1);

  EXPECT_EQ(tiers.num_swap_free(), 2);
  PlaceId mine = tiers.take_swap();
  EXPECT_TRUE(tiers.is_swap(mine));
  EXPECT_EQ(tiers.num_held(), 1);
  tiers.release(mine);
  EXPECT_EQ(tiers.num_held(), 0);
}

}  // namespace
}  // namespace sluice
