#include "core/slot_pages.h"

#include <gtest/gtest.h>

#include "core/policy.h"
#include "core/scheduler.h"
#include "core/virtual_run.h"

namespace sluice {
namespace {

std::vector<PageOp> ops_of(SlotPages& pages) {
  std::vector<PageOp> ops;
  pages.take_ops(ops);
  return ops;
}

TEST(SlotPages, ASlotKeepsItsPagesUntilAnotherNeedsThem) {
  SlotPages p(3, 10);
  p.grow(0, 6);
  p.grow(1, 2);
  EXPECT_EQ(ops_of(p), (std::vector<PageOp>{{0, 6}, {1, 2}}));
  p.release(0);
  EXPECT_EQ(ops_of(p), std::vector<PageOp>{});  // nothing is unmapped
  EXPECT_EQ(p.available(), 8);
  EXPECT_EQ(p.num_kept(), 6);
  // The next sequence finds them mapped.
  p.grow(0, 5);
  EXPECT_EQ(ops_of(p), std::vector<PageOp>{});
  // Free pages first, then one that the other slot does not use.
  p.grow(2, 3);
  EXPECT_EQ(ops_of(p), (std::vector<PageOp>{{0, 5}, {2, 3}}));
  EXPECT_EQ(p.available(), 0);
  EXPECT_EQ(p.num_free(), 0);
}

TEST(SlotPages, TheSlotWithJustEnoughPagesIsTaken) {
  SlotPages p(4, 20);
  p.grow(0, 8), p.grow(1, 3), p.grow(2, 5);
  for (Slot s : {0u, 1u, 2u}) p.release(s);
  std::vector<Slot> free = {0, 1, 2, 3};
  EXPECT_EQ(p.best(free, 4), 2u);
  EXPECT_EQ(p.best(free, 3), 1u);
  EXPECT_EQ(p.best(free, 9), 0u);  // the most there is
  EXPECT_EQ(p.best(std::vector<Slot>{3}, 1), 0u);
}

TEST(SlotPages, AllIsSaidAgainAfterAFailure) {
  SlotPages p(2, 4);
  p.grow(1, 3);
  ops_of(p);
  p.restate();
  EXPECT_EQ(ops_of(p), (std::vector<PageOp>{{0, 0}, {1, 3}}));
  p.clear();
  EXPECT_EQ(p.available(), 4);
  EXPECT_EQ(ops_of(p), (std::vector<PageOp>{{0, 0}, {1, 3}}));
}

TEST(KvPages, BlocksAndPagesNeedNotDivideEachOther) {
  KvPages p{6144, 4096, 0};
  EXPECT_EQ(p.pages_for(1), 2);
  EXPECT_EQ(p.pages_for(2), 3);
  EXPECT_EQ(p.blocks_in(3), 2);
  EXPECT_EQ(p.whole_pages(5), 6);  // 9 pages
}

SchedulerConfig mapped_config() {
  SchedulerConfig c;
  c.allocator = KvAllocator::virtual_;
  c.prefix_cache = false;
  c.max_seqs = 4;
  c.max_len = 256;
  c.num_blocks = 16;
  c.pages = {1, 4, 0};  // 4 pages of 4 blocks of 16 positions
  return c;
}

TEST(SchedulerPages, SequencesAreMappedAsTheyGrow) {
  VirtualRun run(mapped_config());
  run.add({60, 10});
  ASSERT_TRUE(run.step());
  EXPECT_EQ(run.plan().pages, (std::vector<PageOp>{{0, 1}}));
  EXPECT_TRUE(run.plan().edits.empty());  // addresses need no table
  std::vector<PageOp> later;
  while (run.scheduler().has_work()) {
    ASSERT_TRUE(run.step());
    for (const PageOp& op : run.plan().pages) later.push_back(op);
  }
  EXPECT_EQ(later, (std::vector<PageOp>{{0, 2}}));  // position 64
  // The next one finds two pages.
  run.add({70, 2});
  ASSERT_TRUE(run.step());
  EXPECT_TRUE(run.plan().pages.empty());
  KvUse use = run.scheduler().kv_use();
  EXPECT_EQ(use.total, 256);
  EXPECT_EQ(use.held, 128);
  EXPECT_EQ(use.external_fragmentation(), 0);
  EXPECT_GT(use.internal_fragmentation(), 0.4);
}

TEST(SchedulerPages, WhoFindsNoPagePreemptsTheLast) {
  VirtualRun run(mapped_config());
  run.add({60, 100});
  run.add({60, 100});
  run.run();
  EXPECT_GT(run.scheduler().stats().num_preemptions, 0u);
  BlockCounts counts = run.scheduler().count_blocks();
  EXPECT_EQ(counts.free + counts.cached, 4);
}

TEST(SchedulerPages, WhatItCannotShareIsRefusedByName) {
  SchedulerConfig c = mapped_config();
  Request r;
  r.prompt = std::make_shared<const std::vector<Token>>(std::vector<Token>{1, 2});
  r.sampling = std::make_shared<const SamplingSpec>();
  r.max_new = 4;
  EXPECT_TRUE(Scheduler::check(r, c));
  r.n = 2;
  EXPECT_NE(Scheduler::check(r, c).error().message.find("--kv-allocator virtual"),
            std::string::npos);
  r.n = 1, r.max_new = 200;
  c.num_blocks = 8;
  EXPECT_NE(Scheduler::check(r, c).error().message.find("KV blocks"), std::string::npos);
  auto refused = [&](auto change, const char* flag) {
    SchedulerConfig other = mapped_config();
    change(other);
    auto ok = check_allocator(other);
    ASSERT_FALSE(ok);
    EXPECT_NE(ok.error().message.find(flag), std::string::npos) << ok.error().message;
    EXPECT_NE(ok.error().message.find("virtual"), std::string::npos) << ok.error().message;
  };
  refused([](SchedulerConfig& o) { o.prefix_cache = true; }, "--no-prefix-cache");
  refused([](SchedulerConfig& o) { o.preempt = Preempt::swap; }, "--preempt swap");
  refused([](SchedulerConfig& o) { o.admission = Admission::predicted_peak; },
          "--admission predicted-peak");
}

}  // namespace
}  // namespace sluice
