// What two servers say to each other when KV blocks move between them, as bytes. Little-endian,
// every frame of a fixed size once the size of a block is known, but for parts of blocks, which are
// no longer than one. Pure functions, any thread.
//
// Both sides begin with a hello. With a shared key each frame from then on is followed by a MAC: of
// the frame, under a key that both nonces are part of, one key for each direction, with the number
// of the frame. So a frame can be neither made, changed, repeated nor left out by somebody else.
// (It can be read: there is no encryption.)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "net/hmac.h"

namespace sluice {

inline constexpr uint16_t kKvVersion = 4;
inline constexpr size_t kHelloBytes = 72, kFrameHeadBytes = 8, kMacBytes = 32;

using LeaseName = std::array<std::byte, 16>;
std::string lease_text(const LeaseName& name);  // 32 hex digits
Result<LeaseName> parse_lease(std::string_view text);
// The lease of a request that SGLang's router numbers (bootstrap_room), before anybody opens it.
LeaseName room_lease(uint64_t room);

struct KvHello {
  bool keyed = false;   // frames have MACs
  Digest256 content{};  // all that the bits of K and V depend on, hashed
  Digest256 nonce{};
  bool operator==(const KvHello&) const = default;
};

// Of the client: all blocks from `first` on, as they come.
struct KvGet {
  LeaseName lease{};
  uint32_t first = 0;
  bool operator==(const KvGet&) const = default;
};
struct KvBlock {
  uint32_t index = 0, group = 0;
  Digest256 key{};  // of the prompt up to the block's end: prompt_keys()
  std::span<const std::byte> bytes;
};
// No more come.
struct KvDone {
  uint32_t num_blocks = 0;
  bool operator==(const KvDone&) const = default;
};
// There is no such lease, or not any more.
struct KvGone {
  bool operator==(const KvGone&) const = default;
};
// Of the client: it needs the lease no longer.
struct KvRelease {
  LeaseName lease{};
  bool operator==(const KvRelease&) const = default;
};
// Of the client: those of a prompt's blocks from `first` to `num_blocks` that are cached, without a
// lease. The prompt's tokens follow, in as many KvTokens as it takes.
struct KvFind {
  uint64_t tenant = 0;  // shared_tenant_key()
  uint32_t first = 0, num_blocks = 0;
  bool operator==(const KvFind&) const = default;
};
// Of both, after the hellos, where there is a key: its MAC proves the key.
struct KvProof {
  bool operator==(const KvProof&) const = default;
};
// Of the client: the lease's prompt is being computed, or will be. The server says KvWait again and
// again until there is a block of it, then KvReady; or KvGone.
struct KvAwait {
  LeaseName lease{};
  bool operator==(const KvAwait&) const = default;
};
struct KvReady {
  bool operator==(const KvReady&) const = default;
};
// A sign of life where nothing else can be said.
struct KvWait {
  bool operator==(const KvWait&) const = default;
};
// Bytes [at, at + bytes.size()) of a block, some of its layers: the parts of a block come in order,
// from 0 on without gaps, and with the last of them it is there. Parts of different blocks may come
// in turn.
struct KvLayers {
  uint32_t index = 0, group = 0;
  uint64_t at = 0;
  Digest256 key{};  // as KvBlock's
  std::span<const std::byte> bytes;
};
inline constexpr size_t kFrameTokens = 1024;
struct KvTokens {
  std::span<const std::byte> bytes;  // kFrameTokens of 4 bytes; zeros after the last
};
using KvFrame = std::variant<KvGet,
                             KvBlock,
                             KvDone,
                             KvGone,
                             KvRelease,
                             KvFind,
                             KvTokens,
                             KvProof,
                             KvAwait,
                             KvReady,
                             KvWait,
                             KvLayers>;
// The bytes that follow encode_frame()'s.
std::span<const std::byte> frame_content(const KvFrame& frame);

using FrameBytes = std::vector<std::byte>;
void encode_hello(const KvHello& hello, FrameBytes& out);
Result<KvHello> decode_hello(std::span<const std::byte> bytes);
// Appends head and payload, without frame_content(), which follows.
void encode_frame(const KvFrame& frame, size_t block_bytes, FrameBytes& out);
// How many bytes follow a head.
Result<size_t> payload_size(std::span<const std::byte> head, size_t block_bytes);
// `payload` has that many; content is part of it.
Result<KvFrame> decode_frame(std::span<const std::byte> head, std::span<const std::byte> payload);

// MACs of the frames of one direction.
class KvSeal {
 public:
  // `side`: who sends, "client" or "server".
  KvSeal(std::string_view key, const KvHello& client, const KvHello& server, std::string_view side);
  // Of the next frame, given in parts.
  Digest256 next(std::span<const std::string_view> parts);

 private:
  Digest256 key_;
  uint64_t counter_ = 0;
};

// One for each full block: equal keys mean equal tokens up to the block's end.
std::vector<Digest256> prompt_keys(std::span<const Token> prompt, int block_size);

// Tokens as KvTokens have them, a whole number of frames; and back, `num` of them.
FrameBytes pack_tokens(std::span<const Token> tokens);
void unpack_tokens(std::span<const std::byte> bytes, size_t num, std::vector<Token>& out);

// By which servers that share a key know the same tenants by the same numbers.
std::array<uint64_t, 2> shared_tenant_key(std::string_view key);

}  // namespace sluice
