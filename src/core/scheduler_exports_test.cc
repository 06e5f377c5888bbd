// Blocks for other processes: when they are offered, who holds their places, and that what comes
// from elsewhere is found like any prefix.
#include <deque>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "core/fake_executor.h"
#include "core/scheduler.h"

namespace sluice {
namespace {

constexpr int kExportBlock = 4;

SchedulerConfig export_config(int host, std::vector<int> windows) {
  SchedulerConfig c;
  c.block_size = kExportBlock;
  c.num_blocks = 32;
  c.max_len = 64;
  c.budget = 8;
  c.watermark = 0;
  c.pipeline = Pipeline::sync;
  c.tiers.host = host;
  c.group_windows = std::move(windows);
  return c;
}

Request leased(RequestId id, int len, LeaseId lease, Token first = 0) {
  Request r;
  r.id = id;
  auto prompt = std::make_shared<std::vector<Token>>();
  for (int k = 0; k < len; ++k) prompt->push_back(first + k);
  r.prompt = prompt;
  r.block_hashes = hash_blocks(*prompt, kExportBlock, 0);
  r.sampling = std::make_shared<const SamplingSpec>();
  r.max_new = 1;
  r.lease = lease;
  return r;
}

struct Exports final : KvExporter {
  void offered(LeaseId) noexcept override { ++num_offered; }
  bool exported(LeaseId lease, const PlacedBlock& b) noexcept override {
    if (lease == unwanted) return false;
    list.push_back(b);
    return true;
  }
  void lost(LeaseId, const PlacedBlock&) noexcept override { ++num_lost; }
  void leaving(LeaseId, const PlacedBlock& b, uint64_t step) noexcept override {
    left.push_back(b);
    left_in = step;
  }
  void written(uint64_t, size_t) noexcept override {}
  void cleared() noexcept override { ++num_cleared; }
  std::vector<PlacedBlock> list, left;
  uint64_t left_in = 0;
  LeaseId unwanted = 0;
  int num_offered = 0, num_lost = 0, num_cleared = 0;
};

class ExportBench {
 public:
  explicit ExportBench(int host, std::vector<int> windows = {0}, bool sends = false)
      : scheduler(export_config(host, std::move(windows)), nullptr) {
    scheduler.export_to(&exports, sends);
  }
  bool step(bool fail = false) {
    StepPlan plan;
    scheduler.plan(Time{++now_}, plan, events);
    if (plan.empty()) return false;
    transfers = plan.transfers;
    StepResult result;
    FakeExecutor::answer(
        plan, [](const StepPlan&, const Slice&) { return 1; }, result);
    if (fail) {
      result.rows.clear(), result.tokens.clear(), result.transfers.clear();
      result.failure = "lost";
    }
    scheduler.complete(result, Time{now_}, events);
    return true;
  }
  void finish() {
    for (int k = 0; step(); ++k) ASSERT_LT(k, 100);
    EXPECT_TRUE(scheduler.idle());
  }
  void add(Request r) { ASSERT_TRUE(scheduler.add(std::move(r), Time{now_})); }
  int cached() const { return events.list.back().timing.num_cached; }

  Scheduler scheduler;
  std::vector<Transfer> transfers;  // of the last step
  Exports exports;
  Events events;

 private:
  int64_t now_ = 0;
};

// 17 positions: four full blocks before the last position, in steps of two.
TEST(SchedulerExports, BlocksLeaveWhileTheRestIsComputed) {
  ExportBench b(16);
  b.add(leased(1, 17, 5));
  b.step();
  EXPECT_EQ(b.exports.num_offered, 2);
  EXPECT_TRUE(b.exports.list.empty());  // the copy is of the next step
  b.step();
  EXPECT_EQ(b.exports.list.size(), 2u);
  b.finish();
  ASSERT_EQ(b.exports.list.size(), 4u);
  for (int k = 0; k < 4; ++k) EXPECT_EQ(b.exports.list[static_cast<size_t>(k)].index, k);
  EXPECT_EQ(b.scheduler.num_held_places(), 4);
  b.scheduler.release_places(b.exports.list);
  EXPECT_EQ(b.scheduler.num_held_places(), 0);
}

// With layers that are sent, blocks leave in the step that fills them.
TEST(SchedulerExports, BlocksLeaveInTheStepThatFillsThem) {
  ExportBench b(16, {0}, true);
  b.add(leased(1, 17, 5));
  b.step();
  ASSERT_EQ(b.exports.left.size(), 2u);
  EXPECT_EQ(b.exports.left_in, 1u);
  EXPECT_EQ(b.exports.list, b.exports.left);
  ASSERT_EQ(b.transfers.size(), 2u);
  EXPECT_EQ(b.transfers[1].kind, Transfer::send);
  EXPECT_EQ(b.transfers[1].to, b.exports.left[1].place);
  b.finish();
  ASSERT_EQ(b.exports.list.size(), 4u);
  for (int k = 0; k < 4; ++k) EXPECT_EQ(b.exports.list[static_cast<size_t>(k)].index, k);
  EXPECT_EQ(b.exports.num_offered, 0);
  EXPECT_EQ(b.scheduler.num_held_places(), 4);
  b.scheduler.release_places(b.exports.list);
  EXPECT_EQ(b.scheduler.num_held_places(), 0);
}

// Hits of the prefix cache are copied at once, what follows is sent.
TEST(SchedulerExports, HitsLeaveWithTheFirstStepThatSends) {
  ExportBench b(16, {0}, true);
  b.add(leased(1, 9, 0));
  b.finish();
  b.add(leased(2, 17, 6));  // its first two blocks are those
  b.step();
  EXPECT_EQ(b.exports.num_offered, 2);
  EXPECT_EQ(b.exports.left.size(), 2u);
  b.finish();
  ASSERT_EQ(b.exports.list.size(), 4u);
  for (int k = 0; k < 4; ++k) EXPECT_EQ(b.exports.list[static_cast<size_t>(k)].index, k);
  b.scheduler.release_places(b.exports.list);
  EXPECT_EQ(b.scheduler.num_held_places(), 0);
}

TEST(SchedulerExports, AFailedStepLosesWhatItSends) {
  ExportBench b(16, {0}, true);
  b.add(leased(1, 17, 5));
  b.step(true);
  EXPECT_EQ(b.exports.left.size(), 2u);
  EXPECT_EQ(b.exports.num_lost, 2);
  EXPECT_TRUE(b.exports.list.empty());
  EXPECT_EQ(b.scheduler.num_held_places(), 0);
}

// A request that is cancelled while its step computes holds nothing afterwards.
TEST(SchedulerExports, WhatNobodyWantsAnyMoreIsFreed) {
  ExportBench b(16, {0}, true);
  b.exports.unwanted = 5;
  b.add(leased(1, 17, 5));
  b.finish();
  EXPECT_EQ(b.exports.left.size(), 4u);
  EXPECT_TRUE(b.exports.list.empty());
  EXPECT_EQ(b.scheduler.num_held_places(), 0);
}

// Groups of layers fill their blocks at different times: theirs leave by steps.
TEST(SchedulerExports, WindowsLeaveBySteps) {
  ExportBench b(16, {0, 8}, true);
  b.add(leased(1, 17, 5));
  b.finish();
  EXPECT_TRUE(b.exports.left.empty());
  EXPECT_FALSE(b.exports.list.empty());
}

// The last position is always the other side's to compute.
TEST(SchedulerExports, ABlockThatEndsThePromptStays) {
  ExportBench b(16);
  b.add(leased(1, 16, 5));
  b.finish();
  EXPECT_EQ(b.exports.list.size(), 3u);
}

TEST(SchedulerExports, PrefixHitsAreOfferedToo) {
  ExportBench b(16);
  b.add(leased(1, 17, 0));
  b.finish();
  EXPECT_EQ(b.exports.num_offered, 0);
  b.add(leased(2, 17, 6));  // finds all four in the pool
  b.finish();
  ASSERT_EQ(b.exports.list.size(), 4u);
  std::vector<PlacedBlock> first = b.exports.list;
  b.add(leased(3, 17, 7));  // in host memory they are already
  b.finish();
  ASSERT_EQ(b.exports.list.size(), 8u);
  EXPECT_EQ(b.exports.list[4].place, first[0].place);
  EXPECT_EQ(b.scheduler.stats().tiers.blocks_out, 4u);
  b.scheduler.release_places(b.exports.list);
  EXPECT_EQ(b.scheduler.num_held_places(), 0);
}

TEST(SchedulerExports, WithoutAPlaceABlockIsNotOffered) {
  ExportBench b(2);
  b.add(leased(1, 17, 5));
  b.finish();
  EXPECT_EQ(b.exports.list.size(), 2u);
  b.add(leased(2, 30, 6));  // held places are not taken from the first
  b.finish();
  EXPECT_EQ(b.exports.list.size(), 4u);  // its own first two blocks are those
  EXPECT_EQ(b.exports.list[2].place, b.exports.list[0].place);
  b.scheduler.release_places(b.exports.list);
  EXPECT_EQ(b.scheduler.num_held_places(), 0);
}

TEST(SchedulerExports, AFailedStepLosesWhatWasOnItsWay) {
  ExportBench b(16);
  b.add(leased(1, 17, 5));
  b.step();
  b.step(true);
  EXPECT_EQ(b.exports.num_lost, 2);
  b.finish();
  EXPECT_EQ(b.scheduler.num_held_places(), 0);
}

TEST(SchedulerExports, WhatNobodyWantsIsNotHeld) {
  ExportBench b(16);
  b.exports.unwanted = 5;
  b.add(leased(1, 17, 5));
  b.finish();
  EXPECT_EQ(b.exports.num_offered, 4);
  EXPECT_EQ(b.scheduler.num_held_places(), 0);
}

TEST(SchedulerExports, ARestartTellsTheExporter) {
  ExportBench b(16);
  b.add(leased(1, 17, 5));
  b.finish();
  b.scheduler.reset();
  EXPECT_EQ(b.exports.num_cleared, 1);
  EXPECT_EQ(b.scheduler.num_held_places(), 0);
}

PromptBlocks blocks_of(const Request& r) { return {r.prompt, r.block_hashes, r.tenant}; }

// Without a request: what is cached, from a block on, up to the first that is not.
TEST(SchedulerExports, ACachedPrefixIsOffered) {
  ExportBench b(16);
  b.add(leased(1, 17, 0));
  b.finish();
  const PromptBlocks longer = blocks_of(leased(0, 30, 0));
  EXPECT_EQ(b.scheduler.num_cached_blocks(longer), 4);
  EXPECT_EQ(b.scheduler.export_prefix(longer, 1, 99, 5), 7);  // that was all
  EXPECT_EQ(b.exports.num_offered, 3);
  EXPECT_TRUE(b.scheduler.has_work());  // a step of nothing but copies
  b.finish();
  ASSERT_EQ(b.exports.list.size(), 3u);
  EXPECT_EQ(b.exports.list[0].index, 1);
  EXPECT_EQ(b.scheduler.num_held_places(), 3);
  // In host memory they are there at once, and held twice.
  b.scheduler.export_prefix(longer, 1, 99, 6);
  EXPECT_EQ(b.exports.list.size(), 6u);
  b.scheduler.release_places(std::span(b.exports.list).first(3));
  EXPECT_EQ(b.scheduler.num_held_places(), 3);
  b.scheduler.release_places(std::span(b.exports.list).subspan(3));
  EXPECT_EQ(b.scheduler.num_held_places(), 0);
  // Other tokens, another tenant, nothing from here on.
  b.scheduler.export_prefix(longer, 4, 99, 7);
  PromptBlocks other = longer;
  other.hashes = hash_blocks(*other.prompt, kExportBlock, 9);
  other.tenant = 9;
  b.scheduler.export_prefix(other, 0, 99, 7);
  EXPECT_EQ(b.exports.list.size(), 6u);
  EXPECT_EQ(b.exports.num_offered, 6);
}

TEST(SchedulerExports, ALongPrefixIsOfferedInParts) {
  ExportBench b(16);
  b.add(leased(1, 17, 0));
  b.finish();
  const PromptBlocks prompt = blocks_of(leased(0, 17, 0));
  EXPECT_EQ(b.scheduler.export_prefix(prompt, 0, 3, 5), 3);
  EXPECT_EQ(b.exports.num_offered, 3);
  b.step();
  EXPECT_EQ(b.exports.list.size(), 3u);
  EXPECT_EQ(b.scheduler.export_prefix(prompt, 3, 3, 5), 4);
  b.finish();
  ASSERT_EQ(b.exports.list.size(), 4u);
  EXPECT_EQ(b.exports.list[3].index, 3);
  b.scheduler.release_places(b.exports.list);
  EXPECT_EQ(b.scheduler.num_held_places(), 0);
}

// What is behind a block that has no place is of no use to anybody.
TEST(SchedulerExports, NothingIsOfferedBehindAGap) {
  ExportBench b(3);
  b.add(leased(1, 17, 5));  // holds all three places
  b.finish();
  ASSERT_EQ(b.exports.list.size(), 3u);
  b.scheduler.release_places(std::span(b.exports.list).subspan(1));
  std::vector<PlacedBlock> taken;  // by what comes from elsewhere
  b.scheduler.reserve_blocks(blocks_of(leased(0, 9, 0, 100)), taken);
  ASSERT_EQ(taken.size(), 2u);
  b.exports.num_offered = 0;
  const PromptBlocks prompt = blocks_of(leased(0, 17, 0));
  EXPECT_EQ(b.scheduler.export_prefix(prompt, 0, 99, 6), 4);
  EXPECT_EQ(b.exports.num_offered, 1);
  b.scheduler.release_places(taken);
  EXPECT_EQ(b.scheduler.export_prefix(prompt, 1, 99, 6), 4);
  EXPECT_EQ(b.exports.num_offered, 3);
}

TEST(SchedulerExports, NoPrefixOfAModelWithWindowsIsOffered) {
  ExportBench b(16, {0, 8});
  b.add(leased(1, 17, 0));
  b.finish();
  const PromptBlocks prompt = blocks_of(leased(0, 17, 0));
  EXPECT_EQ(b.scheduler.num_cached_blocks(prompt), 4);
  b.scheduler.export_prefix(prompt, 0, 99, 5);
  EXPECT_EQ(b.exports.num_offered, 0);
  EXPECT_FALSE(b.scheduler.has_work());
}

// Evicted from the pool and gone from host memory.
TEST(SchedulerExports, AnEvictedPrefixIsNotOffered) {
  ExportBench b(16);
  b.add(leased(1, 17, 0));
  b.finish();
  b.scheduler.flush_prefixes();
  b.scheduler.export_prefix(blocks_of(leased(0, 17, 0)), 0, 99, 5);
  EXPECT_EQ(b.exports.num_offered, 0);
  EXPECT_FALSE(b.scheduler.has_work());
}

TEST(SchedulerExports, WhatComesFromElsewhereIsAPrefix) {
  ExportBench b(16);
  Request r = leased(1, 17, 0);
  PromptBlocks prompt{r.prompt, r.block_hashes, r.tenant};
  std::vector<PlacedBlock> places;
  b.scheduler.reserve_blocks(prompt, places);
  ASSERT_EQ(places.size(), 4u);
  EXPECT_EQ(b.scheduler.num_held_places(), 4);
  // Three come.
  b.scheduler.import_blocks(prompt, std::span(places).first(3));
  b.scheduler.release_places(std::span(places).subspan(3));
  EXPECT_EQ(b.scheduler.num_held_places(), 0);
  b.add(std::move(r));
  b.finish();
  EXPECT_EQ(b.cached(), 3 * kExportBlock);
  // What is cached is not asked for again.
  places.clear();
  b.scheduler.reserve_blocks(prompt, places);
  EXPECT_TRUE(places.empty());
}

// Twice at once: the second copy is dropped.
TEST(SchedulerExports, TheSameTwiceIsKeptOnce) {
  ExportBench b(16);
  Request r = leased(1, 17, 0);
  PromptBlocks prompt{r.prompt, r.block_hashes, r.tenant};
  std::vector<PlacedBlock> one, two;
  b.scheduler.reserve_blocks(prompt, one);
  b.scheduler.reserve_blocks(prompt, two);
  ASSERT_EQ(one.size() + two.size(), 8u);
  b.scheduler.import_blocks(prompt, one);
  b.scheduler.import_blocks(prompt, two);
  EXPECT_EQ(b.scheduler.num_held_places(), 0);
  EXPECT_EQ(b.scheduler.stats().tiers.used_places, 4);
}

}  // namespace
}  // namespace sluice
