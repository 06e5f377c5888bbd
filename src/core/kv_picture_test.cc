#include "core/kv_picture.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr uint8_t kPool = 1, kHost = 2;

// Blocks of two tokens. Hashes are the worker's own: `salt` is another worker's.
KvUpdate stored(std::vector<Token> tokens,
                uint64_t salt,
                uint64_t parent = 0,
                uint8_t tier = kPool) {
  KvUpdate u{KvUpdate::stored, tier, {}, parent, std::move(tokens)};
  uint64_t hash = parent;
  for (size_t k = 0; k + 1 < u.tokens.size(); k += 2) {
    hash = (hash + salt) * 1000003 + static_cast<uint64_t>(u.tokens[k] * 100 + u.tokens[k + 1]);
    u.hashes.push_back(hash);
  }
  return u;
}

KvUpdate removed(const KvUpdate& u, size_t from, uint8_t tier = kPool) {
  return {KvUpdate::removed,
          tier,
          {u.hashes.begin() + static_cast<ptrdiff_t>(from), u.hashes.end()},
          0,
          {}};
}

class Picture : public testing::Test {
 protected:
  KvPicture p{2, {1, 2}};
  // Four blocks of tokens, two of text.
  const KvUpdate there = stored({1, 2, 3, 4, 5, 6, 7, 8}, 10);
  void SetUp() override {
    p.set_known(0, true);
    p.set_known(1, true);
  }
  void place() { p.place(0, {{100, 101}, 0.5, there.hashes.back()}); }
};

TEST_F(Picture, TextIsWhatTheWorkerSays) {
  p.apply(0, there);
  EXPECT_FALSE(p.placed(100));
  place();
  EXPECT_TRUE(p.placed(100) && p.cached(0, 100) && p.cached(0, 101));
  EXPECT_FALSE(p.cached(1, 100));
  p.apply(0, removed(there, 2));
  EXPECT_TRUE(p.cached(0, 100));
  EXPECT_FALSE(p.cached(0, 101));
  EXPECT_TRUE(p.placed(101));
}

TEST_F(Picture, AnswersMayComeBeforeEvents) {
  place();
  EXPECT_FALSE(p.placed(100));
  p.apply(0, there);
  EXPECT_TRUE(p.cached(0, 101));
}

TEST_F(Picture, OtherWorkersHaveTheSameTokens) {
  p.apply(0, there);
  place();
  p.apply(1, stored({1, 2, 3, 4}, 77));
  EXPECT_TRUE(p.cached(1, 100));
  EXPECT_FALSE(p.cached(1, 101));
  p.apply(1, {KvUpdate::cleared, 0, {}, 0, {}});
  EXPECT_FALSE(p.cached(1, 100));
}

TEST_F(Picture, ABlockLeavesWithItsLastTier) {
  p.apply(0, there);
  place();
  p.apply(0, stored({1, 2, 3, 4, 5, 6, 7, 8}, 10, 0, kHost));
  p.apply(0, removed(there, 0));
  EXPECT_TRUE(p.cached(0, 101));
  p.apply(0, removed(there, 0, kHost));
  EXPECT_FALSE(p.cached(0, 100));
  EXPECT_EQ(p.num_blocks(0), 0u);
}

TEST_F(Picture, TenantsHaveBlocksOfTheirOwn) {
  p.apply(0, there);
  place();
  const KvUpdate other = stored({1, 2, 3, 4, 5, 6, 7, 8}, 11);  // the same tokens of another key
  p.apply(0, other);
  p.apply(0, removed(there, 0));
  EXPECT_TRUE(p.cached(0, 101));
  p.apply(0, removed(other, 0));
  EXPECT_FALSE(p.cached(0, 101));
}

TEST_F(Picture, WhatIsLostIsForgotten) {
  p.apply(0, there);
  place();
  p.set_known(0, false);
  EXPECT_FALSE(p.cached(0, 100));
  place();  // nobody tells of its blocks
  p.set_known(0, true);
  EXPECT_FALSE(p.cached(0, 100));
  p.apply(0, there);
  EXPECT_TRUE(p.cached(0, 100));
}

TEST_F(Picture, NonsenseEnds) {
  KvUpdate loop{KvUpdate::stored, kPool, {5}, 6, {1, 2}};
  p.apply(0, loop);
  p.apply(0, {KvUpdate::stored, kPool, {6}, 5, {1, 2}});
  p.place(0, {{100}, 1, 5});
  EXPECT_FALSE(p.placed(100));
  p.apply(0, {KvUpdate::stored, kPool, {}, 0, {1, 2}});
  p.apply(0, {KvUpdate::removed, kPool, {1234}, 0, {}});
}

}  // namespace
}  // namespace sluice
