#include "core/range_allocator.h"

#include <algorithm>
#include <map>
#include <random>

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(RangeAllocator, TakesTheSmallestRunThatIsLargeEnough) {
  RangeAllocator a(100);
  BlockRange x = a.take(10), y = a.take(1), z = a.take(6), last = a.take(1);
  EXPECT_EQ(x, (BlockRange{1, 10}));
  EXPECT_EQ(z, (BlockRange{12, 6}));
  a.release(x);
  a.release(z);
  EXPECT_EQ(a.take(6), (BlockRange{12, 6})) << "the hole of 6, not the one of 10";
  EXPECT_EQ(a.take(6), (BlockRange{1, 6}));
  EXPECT_EQ(a.take(5), (BlockRange{19, 5})) << "4 are left of the first hole";
  EXPECT_EQ(a.take(4), (BlockRange{7, 4}));
  EXPECT_EQ(y.size + last.size, 2);
}

TEST(RangeAllocator, OfEqualRunsTheLowest) {
  RangeAllocator a(12);
  BlockRange r[4];
  for (BlockRange& x : r) x = a.take(3);
  a.release(r[2]);
  a.release(r[0]);
  EXPECT_EQ(a.take(2).first, 1);
}

TEST(RangeAllocator, JoinsNeighbours) {
  RangeAllocator a(30);
  BlockRange x = a.take(10), y = a.take(10), z = a.take(10);
  EXPECT_EQ(a.take(1), BlockRange{});
  a.release(x);
  a.release(z);
  EXPECT_EQ(a.largest(), 10);
  EXPECT_EQ(a.num_free(), 20);
  EXPECT_EQ(a.take(11), BlockRange{}) << "20 blocks are free, in two runs";
  a.release(y);
  EXPECT_EQ(a, RangeAllocator(30));
}

TEST(RangeAllocator, ExtendsInPlaceOnly) {
  RangeAllocator a(20);
  BlockRange x = a.take(5), y = a.take(5);
  EXPECT_FALSE(a.extend(x, 1)) << "y is there";
  EXPECT_TRUE(a.extend(y, 3));
  EXPECT_EQ(y, (BlockRange{6, 8}));
  EXPECT_FALSE(a.extend(y, 8));
  EXPECT_TRUE(a.extend(y, 7)) << "up to the last block";
  EXPECT_FALSE(a.extend(y, 1));
  a.release(y);
  EXPECT_TRUE(a.extend(x, 1));
}

TEST(RangeAllocator, NeverGivesABlockTwice) {
  std::mt19937_64 rng(1);
  RangeAllocator a(200);
  std::vector<bool> taken(201);
  std::map<BlockId, BlockRange> held;
  auto mark = [&](BlockId from, BlockId to, bool now) {
    for (BlockId b = from; b < to; ++b) {
      ASSERT_NE(taken[static_cast<size_t>(b)], now) << b;
      taken[static_cast<size_t>(b)] = now;
    }
  };
  for (int i = 0; i < 20000; ++i) {
    auto what = rng() % 3;
    int size = 1 + static_cast<int>(rng() % 30);
    if (what == 0 || held.empty()) {
      int largest = a.largest();
      BlockRange r = a.take(size);
      ASSERT_EQ(r.size, largest < size ? 0 : size);
      if (r.size == 0) continue;
      mark(r.first, r.end(), true);
      held[r.first] = r;
    } else {
      auto it = std::next(held.begin(), static_cast<ptrdiff_t>(rng() % held.size()));
      BlockRange& r = it->second;
      BlockId end = r.end();
      if (what == 1) {
        if (a.extend(r, 1)) mark(end, r.end(), true);
      } else {
        a.release(r);
        mark(r.first, end, false);
        held.erase(it);
      }
    }
    ASSERT_EQ(a.num_free(), std::count(taken.begin() + 1, taken.end(), false));
  }
  for (auto& [first, r] : held) a.release(r);
  EXPECT_EQ(a, RangeAllocator(200)) << "one run again";
}

TEST(RangeRest, HandsOutWhatIsLeftInOrder) {
  RangeRest rest({10, 4}, 2);
  EXPECT_EQ(rest.available(), 2);
  EXPECT_EQ(rest.take(), 12);
  EXPECT_EQ(rest.take(), 13);
  EXPECT_EQ(rest.available(), 0);
}

}  // namespace
}  // namespace sluice
