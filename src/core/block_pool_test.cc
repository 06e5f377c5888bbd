// The pool against a naive model: a map of references and a list of idle cached blocks.
#include "core/block_pool.h"

#include <algorithm>
#include <list>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

namespace sluice {
namespace {

struct NaivePool {
  explicit NaivePool(int n) {
    for (BlockId b = 1; b <= n; ++b) free.insert(b);
  }
  void release(BlockId b) {
    if (--refs[b] > 0) return;
    refs.erase(b);
    if (cached.contains(b)) {
      idle.push_back(b);
    } else {
      free.insert(b);
    }
  }
  std::set<BlockId> free, cached;
  std::list<BlockId> idle;  // oldest first
  std::map<BlockId, int> refs;
};

void check_step(BlockPool& pool, NaivePool& naive, std::mt19937& rng) {
  auto held = [&] {
    auto it = naive.refs.begin();
    std::advance(it, static_cast<long>(rng() % naive.refs.size()));
    return it->first;
  };
  switch (rng() % 5) {
    case 0:
    case 1: {
      BlockId evicted = -1, b = pool.alloc(evicted);
      if (!naive.free.empty()) {
        ASSERT_TRUE(naive.free.erase(b));
        ASSERT_EQ(evicted, kNullBlock);
      } else if (!naive.idle.empty()) {
        ASSERT_EQ(b, naive.idle.front());  // least recently used
        ASSERT_EQ(evicted, b);
        naive.idle.pop_front();
        naive.cached.erase(b);
      } else {
        ASSERT_EQ(b, kNullBlock);
        ASSERT_EQ(evicted, kNullBlock);
        return;
      }
      naive.refs[b] = 1;
      break;
    }
    case 2:
      if (naive.refs.empty()) return;
      {
        BlockId b = held();
        pool.release(b);
        naive.release(b);
      }
      break;
    case 3:
      if (naive.refs.empty()) return;
      {
        BlockId b = held();
        pool.mark_cached(b);
        naive.cached.insert(b);
      }
      break;
    case 4: {
      // Another user of a held block, or a hit on an idle one.
      if (!naive.idle.empty() && rng() % 2) {
        auto it = naive.idle.begin();
        std::advance(it, static_cast<long>(rng() % naive.idle.size()));
        BlockId b = *it;
        pool.retain(b);
        naive.idle.erase(it);
        naive.refs[b] = 1;
      } else if (!naive.refs.empty()) {
        BlockId b = held();
        pool.retain(b);
        ++naive.refs[b];
      }
      break;
    }
  }
}

TEST(BlockPool, EqualsTheNaivePool) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(seed);
    int n = 1 + static_cast<int>(rng() % 12);
    BlockPool pool(n);
    NaivePool naive(n);
    for (int i = 0; i < 300; ++i) {
      if (i == 150) pool = BlockPool(pool);  // a copy goes on alike
      check_step(pool, naive, rng);
      if (HasFatalFailure()) return;
      ASSERT_EQ(pool.num_free(), static_cast<int>(naive.free.size()));
      ASSERT_EQ(pool.num_cached(), static_cast<int>(naive.idle.size()));
      ASSERT_EQ(pool.available() + static_cast<int>(naive.refs.size()), n);
      for (BlockId b = 1; b <= n; ++b) {
        ASSERT_EQ(pool.refs(b), naive.refs.contains(b) ? naive.refs[b] : 0);
      }
    }
  }
}

TEST(BlockPool, GivesEveryBlockOnceAndNeverTheNullBlock) {
  BlockPool pool(5);
  std::set<BlockId> seen;
  BlockId evicted;
  for (int i = 0; i < 5; ++i) seen.insert(pool.alloc(evicted));
  EXPECT_EQ(seen, (std::set<BlockId>{1, 2, 3, 4, 5}));
  EXPECT_EQ(pool.alloc(evicted), kNullBlock);
  EXPECT_EQ(pool.available(), 0);
}

TEST(BlockPoolDeathTest, ReleasingAFreeBlockIsABug) {
  BlockPool pool(2);
  EXPECT_DEATH(pool.release(1), "");
  EXPECT_DEATH(pool.retain(1), "");
  EXPECT_DEATH(pool.retain(kNullBlock), "");
  EXPECT_DEATH(pool.release(3), "");
}

}  // namespace
}  // namespace sluice
