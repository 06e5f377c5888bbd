#include "dist/kv_frame.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr size_t kTestBlock = 24;

LeaseName some_lease() { return parse_lease("000102030405060708090a0b0c0d0e0f").value(); }

TEST(KvFrame, AHelloComesBack) {
  KvHello hello{true, sha256("a"), sha256("b")};
  FrameBytes bytes;
  encode_hello(hello, bytes);
  ASSERT_EQ(bytes.size(), kHelloBytes);
  EXPECT_EQ(decode_hello(bytes).value(), hello);
  for (size_t at : {0u, 4u, 6u, 7u}) {  // magic, version, flags
    FrameBytes changed = bytes;
    changed[at] = std::byte{0x77};
    EXPECT_FALSE(decode_hello(changed)) << at;
  }
  bytes.pop_back();
  EXPECT_FALSE(decode_hello(bytes));
}

TEST(KvFrame, EveryFrameComesBack) {
  const FrameBytes content(kTestBlock, std::byte{9}),
      tokens = pack_tokens(std::vector<Token>{5, 6});
  const KvFrame frames[] = {KvGet{some_lease(), 7},
                            KvBlock{3, 1, sha256("k"), content},
                            KvDone{12},
                            KvGone{},
                            KvRelease{some_lease()},
                            KvFind{1ull << 60, 4, 9},
                            KvTokens{tokens},
                            KvProof{},
                            KvAwait{some_lease()},
                            KvReady{},
                            KvWait{},
                            KvLayers{3, 1, 1ull << 40, sha256("k"), content}};
  for (const KvFrame& frame : frames) {
    FrameBytes bytes;
    encode_frame(frame, kTestBlock, bytes);
    bytes.insert(bytes.end(), frame_content(frame).begin(), frame_content(frame).end());
    const std::span<const std::byte> all(bytes);
    const auto head = all.first(kFrameHeadBytes), payload = all.subspan(kFrameHeadBytes);
    EXPECT_EQ(payload_size(head, kTestBlock).value(), payload.size());
    Result<KvFrame> back = decode_frame(head, payload);
    ASSERT_TRUE(back);
    ASSERT_EQ(back->index(), frame.index());
    FrameBytes again;
    encode_frame(*back, kTestBlock, again);
    if (const auto* block = std::get_if<KvBlock>(&*back)) {
      EXPECT_EQ(block->index, 3u);
      EXPECT_EQ(block->group, 1u);
    }
    again.insert(again.end(), frame_content(*back).begin(), frame_content(*back).end());
    EXPECT_EQ(again, bytes);
    // A size that is not the frame's own.
    EXPECT_FALSE(decode_frame(head, {payload.data(), payload.size() + 1}));
    FrameBytes longer(head.begin(), head.end());
    longer[4] ^= std::byte{1};
    EXPECT_FALSE(payload_size(longer, kTestBlock));
  }
}

// Parts of a block have at least a byte and at most a block's.
TEST(KvFrame, PartsHaveAnySizeOfABlock) {
  for (size_t size = 0; size <= kTestBlock + 1; ++size) {
    const FrameBytes content(size, std::byte{9});
    FrameBytes bytes;
    encode_frame(KvLayers{3, 1, 17, sha256("k"), content}, kTestBlock, bytes);
    bytes.insert(bytes.end(), content.begin(), content.end());
    const std::span<const std::byte> all(bytes);
    const Result<size_t> expected = payload_size(all.first(kFrameHeadBytes), kTestBlock);
    ASSERT_EQ(expected.has_value(), size > 0 && size <= kTestBlock) << size;
    if (!expected) continue;
    const Result<KvFrame> back =
        decode_frame(all.first(kFrameHeadBytes), all.subspan(kFrameHeadBytes));
    ASSERT_TRUE(back);
    const auto& part = std::get<KvLayers>(*back);
    EXPECT_EQ(part.index, 3u);
    EXPECT_EQ(part.group, 1u);
    EXPECT_EQ(part.at, 17u);
    EXPECT_EQ(part.bytes.size(), size);
  }
}

TEST(KvFrame, UnknownKindsAreRefused) {
  for (int kind : {0, 13, 255}) {
    FrameBytes head(kFrameHeadBytes);
    head[0] = static_cast<std::byte>(kind);
    EXPECT_FALSE(payload_size(head, kTestBlock)) << kind;
    EXPECT_FALSE(decode_frame(head, {})) << kind;
  }
  EXPECT_FALSE(payload_size({}, kTestBlock));
}

TEST(KvFrame, LeasesAreHexDigits) {
  EXPECT_EQ(lease_text(some_lease()), "000102030405060708090a0b0c0d0e0f");
  EXPECT_FALSE(parse_lease(""));
  EXPECT_FALSE(parse_lease("000102030405060708090a0b0c0d0e0"));
  EXPECT_FALSE(parse_lease("000102030405060708090a0b0c0d0e0g"));
}

TEST(KvFrame, RoomsAreLeasesOfTheirOwn) {
  EXPECT_NE(room_lease(1), room_lease(2));
  EXPECT_NE(room_lease(1), room_lease(uint64_t{1} << 62 | 1));
  EXPECT_EQ(room_lease(7), room_lease(7));
}

// MACs differ by key, nonces, direction and number.
TEST(KvFrame, SealsDependOnEverything) {
  const KvHello client{true, sha256("c"), sha256("1")}, server{true, sha256("c"), sha256("2")};
  const KvHello other{true, sha256("c"), sha256("3")};
  const std::string_view text[] = {"he", "llo"}, whole[] = {"hello"};
  KvSeal seal("key", client, server, "client"), same("key", client, server, "client");
  const Digest256 first = seal.next(text);
  EXPECT_EQ(same.next(whole), first);
  EXPECT_NE(seal.next(text), first);
  EXPECT_NE(KvSeal("key", client, server, "server").next(text), first);
  EXPECT_NE(KvSeal("kez", client, server, "client").next(text), first);
  EXPECT_NE(KvSeal("key", other, server, "client").next(text), first);
  EXPECT_NE(KvSeal("key", client, other, "client").next(text), first);
}

TEST(KvFrame, KeysNameAllTokensBefore) {
  const std::vector<Token> a = {1, 2, 3, 4, 5}, b = {9, 2, 3, 4, 5};
  const auto keys = prompt_keys(a, 2), others = prompt_keys(b, 2);
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_NE(keys[1], others[1]);
  EXPECT_EQ(prompt_keys(std::span(a).first(4), 2), keys);
}

TEST(KvFrame, TokensComeBack) {
  std::vector<Token> tokens, back;
  for (int k = 0; k < 1500; ++k) tokens.push_back(k * 1'000'003);
  const FrameBytes bytes = pack_tokens(tokens);
  ASSERT_EQ(bytes.size(), 2 * 4 * kFrameTokens);
  unpack_tokens(bytes, tokens.size(), back);
  EXPECT_EQ(back, tokens);
  back.clear();
  unpack_tokens(std::span(bytes).first(8), 5, back);  // no more than there are
  EXPECT_EQ(back.size(), 2u);
}

TEST(KvFrame, TenantsAreNumberedByTheKey) {
  EXPECT_EQ(shared_tenant_key("a"), shared_tenant_key("a"));
  EXPECT_NE(shared_tenant_key("a"), shared_tenant_key("b"));
}

}  // namespace
}  // namespace sluice
