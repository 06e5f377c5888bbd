// Prefixes on disk: every full block goes there, comes back after a restart some steps later, and
// what is lost on its way is computed again.
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/fake_executor.h"
#include "core/scheduler.h"
#include "core/tier_cache.h"

namespace sluice {
namespace {

constexpr int kDiskBlock = 4;

SchedulerConfig with_disk(int num_disk) {
  SchedulerConfig c;
  c.block_size = kDiskBlock;
  c.num_blocks = 16;
  c.max_len = 64;
  c.budget = 64;
  c.watermark = 0;
  c.pipeline = Pipeline::sync;
  c.tiers.disk = num_disk;
  return c;
}

Request prompt_on_disk(RequestId id, int len, TenantId tenant = 0) {
  Request r;
  r.id = id;
  auto prompt = std::make_shared<std::vector<Token>>();
  for (int k = 0; k < len; ++k) prompt->push_back(k);
  r.prompt = prompt;
  r.sampling = std::make_shared<const SamplingSpec>();
  r.max_new = 1;
  r.tenant = tenant;
  return r;
}

// A scheduler and a disk that answers when it is told to.
class DiskRun {
 public:
  explicit DiskRun(const SchedulerConfig& c, std::vector<StoredBlock> stored = {})
      : scheduler(c, nullptr), disk(std::move(stored)) {
    scheduler.recall(disk);
  }

  // Plans, runs and completes a step. False: there was nothing to run.
  bool step() {
    scheduler.plan(Time{++now_}, plan, events);
    if (plan.empty()) return false;
    num_tokens += plan.num_tokens;
    num_waits += plan.awaits;
    StepResult r;
    FakeExecutor::answer(
        plan, [](const StepPlan&, const Slice&) { return Token{7}; }, r);
    for (const Transfer& t : plan.transfers) {
      const BlockKey& key = plan.keys.at(static_cast<size_t>(t.key));
      auto first = plan.tokens.begin() + key.token_at;
      StoredBlock block{t.kind == Transfer::out ? t.to : t.from,
                        {key.hash, static_cast<int>(key.group), key.tenant},
                        {first, first + key.num_tokens}};
      if (t.kind == Transfer::out && loses_writes) {
        std::erase(r.transfers, t.id);
        r.lost.push_back(t.id);
      } else if (t.kind == Transfer::out) {
        disk.push_back(block);
      } else {
        fetched.push_back(block);
        std::erase(r.transfers, t.id);
        reads.push_back(t.id);
      }
    }
    if (answers) {
      auto& list = loses ? r.lost : r.transfers;
      list.insert(list.end(), reads.begin(), reads.end());
      reads.clear();
    }
    scheduler.complete(r, Time{now_}, events);
    EXPECT_TRUE(scheduler.count_blocks().conserved());
    return true;
  }
  void run(Request r) {
    ASSERT_TRUE(scheduler.add(std::move(r), Time{now_}));
    for (int k = 0; scheduler.has_work(); ++k) {
      ASSERT_LT(k, 100);
      ASSERT_TRUE(step());
    }
    EXPECT_TRUE(scheduler.idle());
    EXPECT_EQ(scheduler.num_held_places(), 0);
  }

  Scheduler scheduler;
  std::vector<StoredBlock> disk;  // in the order of writes
  Events events;
  StepPlan plan;
  std::vector<TransferId> reads;
  std::vector<StoredBlock> fetched;  // by the keys of their transfers
  bool answers = true, loses = false, loses_writes = false;
  int num_tokens = 0, num_waits = 0;

 private:
  int64_t now_ = 0;
};

TEST(SchedulerDisk, AFirstRequestAfterARestartHits) {
  DiskRun before(with_disk(8));
  before.run(prompt_on_disk(1, 13));
  EXPECT_EQ(before.disk.size(), 3u) << "every full block is written when it is computed";
  EXPECT_EQ(before.scheduler.stats().tiers.disk_writes, 3u);
  EXPECT_EQ(before.num_tokens, 13);
  before.run(prompt_on_disk(2, 13));
  EXPECT_EQ(before.disk.size(), 3u) << "once";

  DiskRun after(with_disk(8), before.disk);
  EXPECT_EQ(after.scheduler.stats().tiers.used_disk_places, 3);
  after.run(prompt_on_disk(1, 13));
  EXPECT_EQ(after.num_tokens, 1);
  EXPECT_EQ(after.scheduler.stats().prefix_hits, 12u);
  EXPECT_EQ(after.scheduler.stats().tiers.disk_hits, 12u);
  EXPECT_EQ(after.scheduler.stats().tiers.disk_reads, 3u);

  DiskRun other(with_disk(8), before.disk);
  other.run(prompt_on_disk(1, 13, 5));
  EXPECT_EQ(other.num_tokens, 13) << "another tenant";
}

// A head that is in the pool goes to disk when it is used. On a full disk that takes the place of
// another block: not of the tail that is about to be read.
TEST(SchedulerDisk, WhatIsFetchedKeepsItsPlace) {
  DiskRun before(with_disk(8));
  before.run(prompt_on_disk(1, 9));
  ASSERT_EQ(before.disk.size(), 2u);
  StoredBlock tail = before.disk[1];
  tail.place = 1;
  DiskRun run(with_disk(2), {tail});
  run.loses_writes = true;
  run.run(prompt_on_disk(1, 5));  // the head, in the pool alone
  run.loses_writes = false;
  run.run(prompt_on_disk(2, 5, 9));  // fills the disk
  ASSERT_EQ(run.scheduler.stats().tiers.used_disk_places, 2);
  run.run(prompt_on_disk(3, 9));
  ASSERT_EQ(run.fetched.size(), 1u);
  EXPECT_EQ(run.fetched[0].place, 1);
  EXPECT_EQ(run.fetched[0].key, tail.key);
  EXPECT_EQ(run.fetched[0].tokens, tail.tokens);
}

// While a sequence waits for the disk others run; alone, it waits in steps of its own.
TEST(SchedulerDisk, NobodyWaitsForTheDiskButItsSequence) {
  DiskRun before(with_disk(8));
  before.run(prompt_on_disk(1, 13));
  DiskRun run(with_disk(8), before.disk);
  run.answers = false;
  ASSERT_TRUE(run.scheduler.add(prompt_on_disk(1, 13), Time{0}));
  ASSERT_TRUE(run.step());
  ASSERT_TRUE(run.step());
  EXPECT_TRUE(run.plan.awaits);
  EXPECT_EQ(run.num_tokens, 0);
  ASSERT_TRUE(run.scheduler.add(prompt_on_disk(2, 5, 9), Time{0}));
  ASSERT_TRUE(run.step());
  EXPECT_FALSE(run.plan.awaits);
  EXPECT_EQ(run.num_tokens, 5);
  run.answers = true;
  while (run.scheduler.has_work()) ASSERT_TRUE(run.step());
  EXPECT_EQ(run.num_tokens, 6);
  EXPECT_EQ(run.num_waits, 1);
}

TEST(SchedulerDisk, WhatIsLostIsComputedAgain) {
  DiskRun before(with_disk(8));
  before.run(prompt_on_disk(1, 13));
  DiskRun run(with_disk(8), before.disk);
  run.loses = true;
  run.run(prompt_on_disk(1, 13));
  EXPECT_EQ(run.num_tokens, 13);
  EXPECT_EQ(run.scheduler.stats().tiers.disk_lost, 3u);
  EXPECT_EQ(run.scheduler.stats().prefix_queries, 13u) << "counted once";
  EXPECT_EQ(run.disk.size(), 6u) << "and written again";
}

// A cancelled request's reads are nobody's: their blocks come back when they are done.
TEST(SchedulerDisk, ACancelledRequestLeavesNothing) {
  DiskRun before(with_disk(8));
  before.run(prompt_on_disk(1, 13));
  DiskRun run(with_disk(8), before.disk);
  run.answers = false;
  ASSERT_TRUE(run.scheduler.add(prompt_on_disk(1, 13), Time{0}));
  ASSERT_TRUE(run.step());
  run.scheduler.cancel(1, Time{0}, run.events);
  ASSERT_TRUE(run.step());
  EXPECT_FALSE(run.scheduler.idle());
  run.answers = true;
  while (run.scheduler.has_work()) ASSERT_TRUE(run.step());
  EXPECT_TRUE(run.scheduler.idle());
  EXPECT_EQ(run.scheduler.num_held_places(), 0);
}

// After a failure the executor is told which transfers are nobody's any more.
TEST(SchedulerDisk, AFailedStepDropsWhatIsOnItsWay) {
  DiskRun before(with_disk(8));
  before.run(prompt_on_disk(1, 13));
  DiskRun run(with_disk(8), before.disk);
  run.answers = false;
  ASSERT_TRUE(run.scheduler.add(prompt_on_disk(1, 13), Time{0}));
  ASSERT_TRUE(run.step());
  ASSERT_EQ(run.reads.size(), 3u);
  StepPlan plan;
  run.scheduler.plan(Time{1}, plan, run.events);
  ASSERT_TRUE(plan.awaits);
  EXPECT_EQ(plan.oldest, run.reads.front());
  StepResult failed;
  failed.step = plan.step;
  failed.transfers = run.reads;  // of a step that failed they do not count
  failed.failure = "lost";
  run.scheduler.complete(failed, Time{1}, run.events);
  EXPECT_EQ(run.scheduler.num_held_places(), 0);
  ASSERT_TRUE(run.scheduler.add(prompt_on_disk(2, 13), Time{0}));
  run.scheduler.plan(Time{2}, plan, run.events);
  EXPECT_GT(plan.oldest, run.reads.back());
}

TEST(SchedulerDisk, TheLeastRecentlyUsedPlaceMakesRoom) {
  TierCache tiers({.disk = 2}, kDiskBlock);
  std::vector<Token> tokens = {1, 2, 3, 4};
  auto key = [](uint64_t a) { return PrefixKey{{a, 0}, 0, 0}; };
  for (uint64_t a : {1, 2}) tiers.release(tiers.store(key(a), tokens));
  EXPECT_EQ(tiers.store(key(1), tokens), kNullBlock) << "there already, and used now";
  tiers.release(tiers.store(key(3), tokens));
  EXPECT_NE(tiers.find(key(1), tokens), kNullBlock);
  EXPECT_EQ(tiers.find(key(2), tokens), kNullBlock);
  EXPECT_EQ(tiers.num_used_disk(), 2);
  EXPECT_EQ(tiers.num_used_memory(), 0);
}

// Places beyond those there are, and content that is listed twice, are left out.
TEST(SchedulerDisk, RecallTakesWhatFits) {
  TierCache tiers({.disk = 3}, kDiskBlock);
  std::vector<Token> tokens = {1, 2, 3, 4};
  tiers.recall(std::vector<StoredBlock>{
      {2, {{1, 0}, 0, 0}, tokens}, {3, {{1, 0}, 0, 0}, tokens}, {4, {{2, 0}, 0, 0}, tokens}});
  EXPECT_EQ(tiers.find({{1, 0}, 0, 0}, tokens), 2);
  EXPECT_EQ(tiers.num_used_disk(), 1);
  PlaceId next = tiers.store({{5, 0}, 0, 0}, tokens);
  EXPECT_EQ(next, 1);
}

}  // namespace
}  // namespace sluice
