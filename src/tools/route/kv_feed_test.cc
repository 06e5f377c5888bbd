#include "tools/route/kv_feed.h"

#include <gtest/gtest.h>

#include <string>

#include "server/kv_events.h"

namespace sluice {
namespace {

constexpr uint64_t kEpoch = 77;

// As a worker writes it: a snapshot, or a block stored.
std::string message(bool snapshot, uint64_t hash, uint64_t epoch = kEpoch, int group = 0) {
  KvChanges c;
  c.tokens = {1, 2, 3, 4};
  if (snapshot) c.list.push_back({});
  PrefixKey key{{hash, 0}, group, 5};
  c.list.push_back({KvChange::stored, KvTier::host, key, root_hash(5), 0, 4});
  c.list.push_back({KvChange::removed, KvTier::device, {{9, 0}, 0, 5}, {}, 0, 0});
  std::string out;
  encode_kv_events(c, c.list, {epoch, 2}, 1.5, out);
  return out;
}

TEST(KvFeed, DecodesWhatWorkersEncode) {
  const std::optional<KvMessage> m = decode_kv_message(message(true, 8));
  ASSERT_TRUE(m);
  EXPECT_EQ(m->epoch, kEpoch);
  ASSERT_EQ(m->updates.size(), 3u);
  EXPECT_EQ(m->updates[0].kind, KvUpdate::cleared);
  EXPECT_EQ(m->updates[1].kind, KvUpdate::stored);
  EXPECT_EQ(m->updates[1].hashes, std::vector<uint64_t>{8});
  EXPECT_EQ(m->updates[1].tokens, (std::vector<Token>{1, 2, 3, 4}));
  EXPECT_EQ(m->updates[1].parent, 0u);
  EXPECT_EQ(m->updates[1].tier, 2);
  EXPECT_EQ(m->updates[2].kind, KvUpdate::removed);
  EXPECT_EQ(m->updates[2].tier, 1);
  EXPECT_EQ(decode_kv_message(message(false, 8, kEpoch, 1))->updates.size(), 1u);
}

TEST(KvFeed, WhatIsCutIsRefused) {
  const std::string whole = message(true, 8);
  // The rank at the end is not read.
  for (size_t size = 0; size + 1 < whole.size(); ++size)
    EXPECT_FALSE(decode_kv_message(whole.substr(0, size))) << size;
}

TEST(KvFeed, GapsAreAskedForAndFilled) {
  KvFeed f(kEpoch);
  EXPECT_EQ(f.missing(), 0u);
  EXPECT_TRUE(f.take(3, message(false, 3)).empty());  // it came late
  EXPECT_FALSE(f.synced());
  EXPECT_EQ(f.take(4, message(true, 4)).size(), 3u);
  EXPECT_TRUE(f.synced());
  EXPECT_FALSE(f.missing());
  EXPECT_EQ(f.take(5, message(false, 5)).size(), 2u);
  EXPECT_TRUE(f.take(5, message(false, 5)).empty());  // again
  EXPECT_TRUE(f.take(8, message(false, 8)).empty());
  EXPECT_EQ(f.missing(), 6u);
  EXPECT_FALSE(f.take(6, message(false, 6)).empty());
  EXPECT_FALSE(f.take(7, message(false, 7)).empty());
  EXPECT_EQ(f.missing(), 8u);
  EXPECT_FALSE(f.take(8, message(false, 8)).empty());
  EXPECT_FALSE(f.missing());
  EXPECT_TRUE(f.take(5, message(true, 5)).empty());  // told before, snapshot or not
  EXPECT_FALSE(f.missing());
  EXPECT_TRUE(f.take(20, message(false, 20)).empty());
  EXPECT_FALSE(f.take(21, message(true, 21)).empty());  // a snapshot ends any gap
  EXPECT_FALSE(f.missing());
}

// A worker that is newer than the router.
TEST(KvFeed, UnknownEventsAreLeftOut) {
  std::string bytes = message(false, 8);
  const size_t at = bytes.find("BlockRemoved");
  ASSERT_NE(at, bytes.npos);
  bytes.replace(at, 12, "BlockRenamed");
  KvFeed f(kEpoch);
  EXPECT_FALSE(f.take(0, message(true, 1)).empty());
  EXPECT_EQ(f.take(1, bytes).size(), 1u);
  EXPECT_FALSE(f.missing());
}

TEST(KvFeed, OtherRunsAreNotTaken) {
  KvFeed f(kEpoch);
  EXPECT_TRUE(f.take(0, message(true, 1, kEpoch + 1)).empty());
  EXPECT_FALSE(f.synced());
  EXPECT_FALSE(f.take(0, message(true, 1)).empty());
  EXPECT_TRUE(f.take(1, message(false, 1, kEpoch + 1)).empty());
  EXPECT_FALSE(f.take(1, message(false, 2)).empty());
}

}  // namespace
}  // namespace sluice
