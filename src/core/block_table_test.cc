#include "core/block_table.h"

#include <map>

#include <gtest/gtest.h>

#include "core/block_cache.h"

namespace sluice {
namespace {

// Not paging: one run of blocks that only grows. A table cannot tell.
class Bump final : public BlockAllocator {
 public:
  explicit Bump(int total) : total_(total) {}
  int available() const override { return total_ - next_ + 1 - promised; }
  BlockId take() override {
    ++refs[next_];
    return next_++;
  }
  void promise(int count) override { promised += count; }
  void unpromise(int count) override { promised -= count; }
  BlockId take_promised() override {
    --promised;
    return take();
  }
  void retain(BlockId b) override { ++refs.at(b); }
  void release(BlockId b) override {
    if (--refs.at(b) == 0) refs.erase(b);
  }
  std::map<BlockId, int> refs;
  int promised = 0;

 private:
  int total_;
  BlockId next_ = 1;
};

void release(BlockTable& t, BlockAllocator& from) {
  t.release([&](BlockId b) { from.release(b); }, [](BlockId) {});
}

TEST(BlockTable, ClaimGrowRelease) {
  CacheLayout l(4, {0});
  Bump from(3);
  BlockTable t;
  EXPECT_FALSE(t.covers(l, 0));
  t.claim(l, from, 2, 0, 8);
  EXPECT_EQ(t.blocks(), (std::vector<BlockId>{0, 0})) << "promised, not taken";
  EXPECT_EQ(t.promised(l), 2);
  EXPECT_EQ(from.available(), 1);
  StepPlan plan;
  t.fill(l, from, 1, {&plan, 5});
  EXPECT_EQ(t.blocks(), (std::vector<BlockId>{1, 0}));
  EXPECT_TRUE(t.covers(l, 3));
  EXPECT_FALSE(t.covers(l, 4));
  t.fill(l, from, 9, {&plan, 5});
  EXPECT_EQ(t.blocks(), (std::vector<BlockId>{1, 2})) << "what was promised, and no more";
  EXPECT_EQ(plan.edits, (std::vector<TableEdit>{{5, 0, 1, 0}, {5, 1, 2, 0}}));
  EXPECT_TRUE(t.covers(l, 7));
  EXPECT_FALSE(t.covers(l, 8));
  plan.clear();
  EXPECT_TRUE(t.grow(l, from, 8, {&plan, 5}));
  EXPECT_EQ(plan.edits, (std::vector<TableEdit>{{5, 2, 3, 0}}));
  EXPECT_TRUE(t.covers(l, 11));
  EXPECT_FALSE(t.grow(l, from, 12, {&plan, 5})) << "the allocator is empty";
  EXPECT_EQ(t.num_rows(l), 3);
  release(t, from);
  EXPECT_TRUE(from.refs.empty());
  EXPECT_EQ(t, BlockTable{});
}

TEST(BlockTable, APromiseIsKeptForItsTable) {
  CacheLayout l(4, {0});
  Bump from(4);
  BlockTable long_one, other;
  long_one.claim(l, from, 3, 0, 12);
  other.claim(l, from, 0, 0, 0);
  StepPlan plan;
  EXPECT_TRUE(other.grow(l, from, 0, {&plan, 1}));
  EXPECT_FALSE(other.grow(l, from, 4, {&plan, 1})) << "three blocks are left, all promised";
  // A row that was promised is taken by grow() too: the last known token of a preempted sequence.
  long_one.fill(l, from, 2, {&plan, 2});
  EXPECT_TRUE(long_one.grow(l, from, 8, {&plan, 2}));
  EXPECT_EQ(long_one.promised(l), 0);
  EXPECT_EQ(from.promised, 0);
  release(long_one, from);
  BlockTable ended;
  Bump few(2);
  ended.claim(l, few, 2, 0, 8);
  few.unpromise(ended.promised(l));
  release(ended, few);
  EXPECT_EQ(few.available(), 2);
  EXPECT_EQ(ended, BlockTable{});
}

// A window of 4 positions beside a group that sees everything.
TEST(BlockTable, WindowGroupsSlideAndAreExtended) {
  CacheLayout l(4, {0, 4});
  Bump from(100);
  BlockTable t;
  t.claim(l, from, 4, 0, 8);
  EXPECT_EQ(t.ready(), 2);
  for (int g : {0, 1}) EXPECT_EQ(t.at(l, 2, g), kNullBlock) << "the prompt has not come near it";
  EXPECT_EQ(from.promised, 2);
  StepPlan plan;
  BlockId gone = t.at(l, 0, 1);
  t.slide(l, from, 8, {&plan, 1});  // a query at 8 sees 5 and later
  EXPECT_EQ(plan.edits, (std::vector<TableEdit>{{1, 0, kNullBlock, 1}}));
  EXPECT_FALSE(from.refs.contains(gone));
  t.extend(l, from, 16, {&plan, 1});
  EXPECT_TRUE(t.covers(l, 15));
  EXPECT_EQ(from.refs.size(), 7u);
  release(t, from);
  EXPECT_TRUE(from.refs.empty());
}

TEST(BlockTable, ShareTakesWhatIsSeenAndOwnsTheRest) {
  CacheLayout l(4, {0, 4});
  Bump from(100);
  BlockTable parent, child;
  parent.claim(l, from, 4, 0, 16);
  child.share(l, from, parent, 14);  // a query at 14 sees 11 and later in the window group
  EXPECT_EQ(child.num_rows(l), 4);
  for (int k = 0; k < 3; ++k) EXPECT_EQ(child.at(l, k, 0), parent.at(l, k, 0));
  EXPECT_EQ(child.at(l, 1, 1), kNullBlock);
  EXPECT_EQ(child.at(l, 2, 1), parent.at(l, 2, 1));
  for (int g : {0, 1}) EXPECT_NE(child.at(l, 3, g), parent.at(l, 3, g)) << "written by both";
  EXPECT_EQ(from.refs.at(parent.at(l, 2, 1)), 2);
  release(parent, from);
  EXPECT_EQ(from.refs.size(), 6u);
  release(child, from);
  EXPECT_TRUE(from.refs.empty());
}

// Paging gives back the tail of a cached prefix first.
TEST(BlockTable, ReleasesTheLastBlockFirst) {
  CacheLayout l(4, {0});
  BlockCache cache(3, 4);
  BlockTable t;
  t.claim(l, cache, 3, 0, 12);
  t.fill(l, cache, 3, {});
  std::vector<BlockId> blocks = t.blocks();
  for (BlockId b : blocks) cache.pool.mark_cached(b);
  release(t, cache);
  EXPECT_EQ(cache.pool.num_cached(), 3);
  BlockId evicted;
  EXPECT_EQ(cache.pool.alloc(evicted), blocks[2]) << "the tail is the oldest";
}

}  // namespace
}  // namespace sluice
