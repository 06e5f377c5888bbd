#include "server/kv_events.h"

#include <gtest/gtest.h>

#include "base/str.h"

namespace sluice {
namespace {

std::string hex_of(const std::string& bytes) {
  std::string text;
  for (char c : bytes) text += strf("%02x", static_cast<unsigned>(static_cast<uint8_t>(c)));
  return text;
}

KvChange stored_block(uint64_t hash, BlockHash parent, uint32_t at) {
  return {KvChange::stored, KvTier::device, {{hash, hash}, 0, 0}, parent, at, 2};
}

// Expectations are by Python's msgpack, of the events in the comments.
TEST(KvEvents, ChainsAreOneEvent) {
  KvChanges c;
  c.tokens = {1, 2, 3, 300, 5, 6};
  c.list = {stored_block(7, root_hash(0), 0), stored_block(8, {7, 7}, 2),
            stored_block(9, {3, 3}, 4)};
  c.list.push_back({KvChange::removed, KvTier::host, {{7, 7}, 0, 0}, {}});
  c.list.push_back({KvChange::removed, KvTier::host, {{8, 8}, 0, 0}, {}});
  c.list.push_back({});
  std::string out;
  encode_kv_events(c, c.list, {12, 1}, 1.5, out);
  EXPECT_EQ(hex_of(out),
            "93cb3ff80000000000009489a474797065ab426c6f636b53746f726564ac626c6f636b5f686173686573"
            "920708b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f69647394010203cd012caa626c"
            "6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0a565"
            "706f63680c89a474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739109b1706172"
            "656e745f626c6f636b5f6861736803a9746f6b656e5f696473920506aa626c6f636b5f73697a6502a76c"
            "6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0a565706f63680c84a474797065"
            "ac426c6f636b52656d6f766564ac626c6f636b5f686173686573920708a66d656469756da3435055a565"
            "706f63680c82a474797065b0416c6c426c6f636b73436c6561726564a565706f63680c00");
}

TEST(KvEvents, GroupsAreNamedWhereThereAreSeveral) {
  KvChanges c;
  c.list.push_back({KvChange::removed, KvTier::disk, {{7, 7}, 1, 0}, {}});
  std::string out;
  encode_kv_events(c, c.list, {12, 2}, 1.5, out);
  EXPECT_EQ(hex_of(out),
            "93cb3ff80000000000009185a474797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865"
            "739107a66d656469756da44449534ba967726f75705f69647801a565706f63680c00");
}

TEST(KvEvents, ASnapshotHasParentsFirst) {
  std::vector<KvChange> blocks = {stored_block(4, {3, 3}, 0), stored_block(3, {2, 2}, 0),
                                  stored_block(9, {8, 8}, 0), stored_block(2, root_hash(0), 0),
                                  stored_block(5, {2, 2}, 0)};
  order_by_parent(blocks);
  std::vector<uint64_t> order;
  for (const KvChange& c : blocks) order.push_back(c.key.hash.a);
  EXPECT_EQ(order, (std::vector<uint64_t>{9, 2, 3, 4, 5}));
}

}  // namespace
}  // namespace sluice
