#include "dist/kv_frame.h"

#include <algorithm>
#include <cstring>

#include "base/str.h"

namespace sluice {

namespace {

constexpr std::string_view kKvMagic = "SLKV";
constexpr size_t kBlockHeadBytes = 40, kLayersHeadBytes = 48;
constexpr size_t kTokensBytes = 4 * kFrameTokens;
enum FrameType : uint8_t {
  kGetType = 1,
  kBlockType,
  kDoneType,
  kGoneType,
  kReleaseType,
  kFindType,
  kTokensType,
  kProofType,
  kAwaitType,
  kReadyType,
  kWaitType,
  kLayersType
};

void put_bytes(std::span<const std::byte> bytes, FrameBytes& out) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}
void put_number(uint64_t value, size_t size, FrameBytes& out) {
  for (size_t k = 0; k < size; ++k) out.push_back(static_cast<std::byte>(value >> (8 * k) & 255));
}
uint64_t get_number(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (size_t k = bytes.size(); k-- > 0;) value = value << 8 | static_cast<uint64_t>(bytes[k]);
  return value;
}
uint32_t get_u32(std::span<const std::byte> bytes, size_t at) {
  return static_cast<uint32_t>(get_number(bytes.subspan(at, 4)));
}
template <size_t N>
std::array<std::byte, N> get_array(std::span<const std::byte> bytes, size_t at) {
  std::array<std::byte, N> out;
  std::ranges::copy(bytes.subspan(at, N), out.begin());
  return out;
}

// Bytes of all that follows the head; of a part, those that it has at most.
size_t size_of(FrameType type, size_t block_bytes) {
  switch (type) {
    case kGetType:
      return 20;
    case kBlockType:
      return kBlockHeadBytes + block_bytes;
    case kDoneType:
      return 4;
    case kGoneType:
    case kProofType:
    case kReadyType:
    case kWaitType:
      return 0;
    case kReleaseType:
    case kAwaitType:
    case kFindType:
      return 16;
    case kTokensType:
      return kTokensBytes;
    case kLayersType:
      return kLayersHeadBytes + block_bytes;
  }
  return 0;
}

// Frames whose content is not of one size.
bool has_content(uint32_t type) { return type == kBlockType || type == kLayersType; }

Error bad_frame(const char* what) { return {400, strf("not a frame of KV blocks: %s", what)}; }

}  // namespace

std::string lease_text(const LeaseName& name) {
  std::string out;
  for (std::byte b : name) {
    out += "0123456789abcdef"[static_cast<int>(b) >> 4];
    out += "0123456789abcdef"[static_cast<int>(b) & 15];
  }
  return out;
}

Result<LeaseName> parse_lease(std::string_view text) {
  LeaseName name;
  if (text.size() != 2 * name.size()) return Error{400, "a lease has 32 hex digits"};
  for (size_t k = 0; k < text.size(); ++k) {
    const char c = text[k];
    const bool digit = c >= '0' && c <= '9';
    if (!digit && !(c >= 'a' && c <= 'f')) return Error{400, "a lease has 32 hex digits"};
    const int value = digit ? c - '0' : c - 'a' + 10;
    const std::byte old = k % 2 == 0 ? std::byte{0} : name[k / 2];
    name[k / 2] = old << 4 | static_cast<std::byte>(value);
  }
  return name;
}

LeaseName room_lease(uint64_t room) {
  constexpr std::string_view kRoom = "a room: ";
  LeaseName name{};
  std::ranges::copy(std::as_bytes(std::span(kRoom)), name.begin());
  for (size_t k = 0; k < 8; ++k) name[8 + k] = static_cast<std::byte>(room >> (8 * k) & 255);
  return name;
}

void encode_hello(const KvHello& hello, FrameBytes& out) {
  put_bytes(std::as_bytes(std::span(kKvMagic)), out);
  put_number(kKvVersion, 2, out);
  put_number(hello.keyed ? 1 : 0, 1, out);
  put_number(0, 1, out);
  put_bytes(hello.content, out);
  put_bytes(hello.nonce, out);
}

Result<KvHello> decode_hello(std::span<const std::byte> bytes) {
  if (bytes.size() != kHelloBytes || as_text(bytes.first(4)) != kKvMagic)
    return bad_frame("another protocol");
  const auto version = static_cast<unsigned>(get_number(bytes.subspan(4, 2)));
  if (version != kKvVersion)
    return Error{400, strf("KV blocks move by version %u here and %u there", kKvVersion, version)};
  const auto keyed = static_cast<int>(bytes[6]);
  if (keyed > 1 || bytes[7] != std::byte{0}) return bad_frame("an unknown flag");
  return KvHello{keyed == 1, get_array<32>(bytes, 8), get_array<32>(bytes, 40)};
}

void encode_frame(const KvFrame& frame, size_t block_bytes, FrameBytes& out) {
  const auto type = static_cast<FrameType>(frame.index() + 1);
  put_number(type, 4, out);
  const auto* part = std::get_if<KvLayers>(&frame);
  put_number(size_of(type, part ? part->bytes.size() : block_bytes), 4, out);
  if (const auto* get = std::get_if<KvGet>(&frame)) {
    put_bytes(get->lease, out);
    put_number(get->first, 4, out);
  } else if (const auto* block = std::get_if<KvBlock>(&frame)) {
    put_number(block->index, 4, out);
    put_number(block->group, 4, out);
    put_bytes(block->key, out);
  } else if (const auto* done = std::get_if<KvDone>(&frame)) {
    put_number(done->num_blocks, 4, out);
  } else if (const auto* release = std::get_if<KvRelease>(&frame)) {
    put_bytes(release->lease, out);
  } else if (const auto* await = std::get_if<KvAwait>(&frame)) {
    put_bytes(await->lease, out);
  } else if (const auto* find = std::get_if<KvFind>(&frame)) {
    put_number(find->tenant, 8, out);
    put_number(find->first, 4, out);
    put_number(find->num_blocks, 4, out);
  } else if (part) {
    put_number(part->index, 4, out);
    put_number(part->group, 4, out);
    put_number(part->at, 8, out);
    put_bytes(part->key, out);
  }
}

std::span<const std::byte> frame_content(const KvFrame& frame) {
  if (const auto* block = std::get_if<KvBlock>(&frame)) return block->bytes;
  if (const auto* tokens = std::get_if<KvTokens>(&frame)) return tokens->bytes;
  if (const auto* part = std::get_if<KvLayers>(&frame)) return part->bytes;
  return {};
}

Result<size_t> payload_size(std::span<const std::byte> head, size_t block_bytes) {
  if (head.size() != kFrameHeadBytes) return bad_frame("it ends early");
  const uint32_t type = get_u32(head, 0);
  if (type < kGetType || type > kLayersType) return bad_frame("an unknown kind");
  const size_t size = get_u32(head, 4), most = size_of(static_cast<FrameType>(type), block_bytes);
  if (type == kLayersType ? size <= kLayersHeadBytes || size > most : size != most)
    return bad_frame("another size");
  return size;
}

Result<KvFrame> decode_frame(std::span<const std::byte> head, std::span<const std::byte> payload) {
  if (head.size() != kFrameHeadBytes) return bad_frame("it ends early");
  const uint32_t type = get_u32(head, 0);
  if (type < kGetType || type > kLayersType) return bad_frame("an unknown kind");
  const size_t fixed = size_of(static_cast<FrameType>(type), 0);
  if (payload.size() < fixed || (!has_content(type) && payload.size() != fixed))
    return bad_frame("another size");
  if (get_u32(head, 4) != payload.size()) return bad_frame("another size");
  switch (static_cast<FrameType>(type)) {
    case kGetType:
      return KvFrame(KvGet{get_array<16>(payload, 0), get_u32(payload, 16)});
    case kBlockType:
      return KvFrame(KvBlock{get_u32(payload, 0), get_u32(payload, 4), get_array<32>(payload, 8),
                             payload.subspan(kBlockHeadBytes)});
    case kDoneType:
      return KvFrame(KvDone{get_u32(payload, 0)});
    case kGoneType:
      return KvFrame(KvGone{});
    case kReleaseType:
      return KvFrame(KvRelease{get_array<16>(payload, 0)});
    case kFindType:
      return KvFrame(
          KvFind{get_number(payload.first(8)), get_u32(payload, 8), get_u32(payload, 12)});
    case kTokensType:
      return KvFrame(KvTokens{payload});
    case kProofType:
      return KvFrame(KvProof{});
    case kAwaitType:
      return KvFrame(KvAwait{get_array<16>(payload, 0)});
    case kReadyType:
      return KvFrame(KvReady{});
    case kWaitType:
      return KvFrame(KvWait{});
    case kLayersType:
      if (payload.size() == kLayersHeadBytes) return bad_frame("a part without bytes");
      return KvFrame(KvLayers{get_u32(payload, 0), get_u32(payload, 4),
                              get_number(payload.subspan(8, 8)), get_array<32>(payload, 16),
                              payload.subspan(kLayersHeadBytes)});
  }
  return bad_frame("an unknown kind");
}

KvSeal::KvSeal(std::string_view key,
               const KvHello& client,
               const KvHello& server,
               std::string_view side) {
  const std::string_view parts[] = {"sluice kv 4 ", side, as_text(client.nonce),
                                    as_text(server.nonce), as_text(client.content)};
  key_ = hmac_sha256(key, parts);
}

Digest256 KvSeal::next(std::span<const std::string_view> parts) {
  FrameBytes number;
  put_number(counter_++, 8, number);
  std::vector<std::string_view> all{as_text(number)};
  all.insert(all.end(), parts.begin(), parts.end());
  return hmac_sha256(as_text(key_), all);
}

std::vector<Digest256> prompt_keys(std::span<const Token> prompt, int block_size) {
  static_assert(sizeof(Token) == 4);
  const auto size = static_cast<size_t>(block_size);
  std::vector<Digest256> keys;
  keys.reserve(prompt.size() / size);
  FrameBytes bytes;
  for (size_t at = 0; at + size <= prompt.size(); at += size) {
    bytes.clear();
    if (!keys.empty()) put_bytes(keys.back(), bytes);
    for (size_t k = 0; k < size; ++k) put_number(static_cast<uint32_t>(prompt[at + k]), 4, bytes);
    keys.push_back(sha256(as_text(bytes)));
  }
  return keys;
}

FrameBytes pack_tokens(std::span<const Token> tokens) {
  FrameBytes out;
  const size_t frames = (tokens.size() + kFrameTokens - 1) / kFrameTokens;
  out.reserve(frames * kTokensBytes);
  for (Token t : tokens) put_number(static_cast<uint32_t>(t), 4, out);
  out.resize(frames * kTokensBytes);
  return out;
}

void unpack_tokens(std::span<const std::byte> bytes, size_t num, std::vector<Token>& out) {
  for (size_t k = 0; k < num && 4 * k + 4 <= bytes.size(); ++k)
    out.push_back(static_cast<Token>(get_u32(bytes, 4 * k)));
}

std::array<uint64_t, 2> shared_tenant_key(std::string_view key) {
  const std::string_view parts[] = {"sluice tenants"};
  const Digest256 digest = hmac_sha256(key, parts);
  return {get_number(std::span(digest).first(8)), get_number(std::span(digest).subspan(8, 8))};
}

}  // namespace sluice
