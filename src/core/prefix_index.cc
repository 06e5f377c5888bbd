#include "core/prefix_index.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace sluice {

namespace {

__extension__ using Wide = unsigned __int128;

uint64_t mix(uint64_t x, uint64_t y) {
  Wide p = static_cast<Wide>(x ^ 0x9E3779B97F4A7C15u) * (y ^ 0xD1B54A32D192ED03u);
  return static_cast<uint64_t>(p) ^ static_cast<uint64_t>(p >> 64);
}

}  // namespace

namespace {

BlockHash chain_mapped(BlockHash parent, std::span<const Token> tokens, const TokenMap& map) {
  constexpr size_t kPart = 64;
  std::array<Token, kPart> part;
  if (tokens.size() > kPart) {
    std::vector<Token> all(tokens.begin(), tokens.end());
    for (Token& t : all) t = mapped_token(&map, t);
    return chain_hash(parent, all);
  }
  for (size_t k = 0; k < tokens.size(); ++k) part[k] = mapped_token(&map, tokens[k]);
  return chain_hash(parent, std::span(part).first(tokens.size()));
}

}  // namespace

BlockHash root_hash(TenantId tenant) {
  return {mix(tenant, 0x243F6A8885A308D3u), mix(tenant, 0x13198A2E03707344u)};
}

BlockHash chain_hash(BlockHash parent, std::span<const Token> tokens, const TokenMap* map) {
  if (map) [[unlikely]]
    return chain_mapped(parent, tokens, *map);
  BlockHash h = parent;
  for (size_t i = 0; i < tokens.size(); i += 2) {
    uint64_t pair = static_cast<uint32_t>(tokens[i]);
    if (i + 1 < tokens.size())
      pair |= static_cast<uint64_t>(static_cast<uint32_t>(tokens[i + 1])) << 32;
    h.a = mix(h.a + 0xA0761D6478BD642Fu, pair);
    h.b = mix(h.b + 0xE7037ED1A0B428DBu, pair + 0x8EBC6AF09C88C6E3u);
  }
  return {mix(h.a, h.b), mix(h.b, h.a + tokens.size())};
}

std::vector<BlockHash> hash_blocks(std::span<const Token> prompt,
                                   int block_size,
                                   TenantId tenant,
                                   const TokenMap* map) {
  auto size = static_cast<size_t>(block_size);
  std::vector<BlockHash> hashes;
  hashes.reserve(prompt.size() / size);
  BlockHash h = root_hash(tenant);
  for (size_t at = 0; at + size <= prompt.size(); at += size) {
    hashes.push_back(h = chain_hash(h, prompt.subspan(at, size), map));
  }
  return hashes;
}

PrefixIndex::PrefixIndex(int num_blocks, int block_size)
    : block_size_(static_cast<size_t>(block_size)),
      mask_(std::bit_ceil(static_cast<size_t>(num_blocks) * 2 + 2) - 1),
      table_(mask_ + 1, kNullBlock),
      entries_(static_cast<size_t>(num_blocks) + 1),
      tokens_((static_cast<size_t>(num_blocks) + 1) * block_size_) {}

void PrefixIndex::clear() noexcept {
  std::ranges::fill(table_, kNullBlock);
  size_ = 0;
}

BlockId PrefixIndex::find(const PrefixKey& key, std::span<const Token> tokens) const {
  for (size_t i = home(key);; i = (i + 1) & mask_) {
    BlockId b = table_[i];
    if (b == kNullBlock) return kNullBlock;
    if (entries_[static_cast<size_t>(b)] == key && tokens.size() == block_size_ &&
        std::memcmp(stored(b).data(), tokens.data(), tokens.size_bytes()) == 0)
      return b;
  }
}

void PrefixIndex::listen(KvListener* to, KvTier tier) {
  told_.to = to;
  told_.tier = tier;
  told_.parents.assign(to ? entries_.size() : 0, {});
}

void PrefixIndex::set_parent(BlockId b, BlockHash parent) {
  if (!told_.to || this->parent(b) != BlockHash{} || parent == BlockHash{}) return;
  told_.parents[static_cast<size_t>(b)] = parent;
  told_.to->stored(told_.tier, key(b), parent, stored(b));
}

void PrefixIndex::list(KvListener& to) const {
  for (BlockId b : table_) {
    if (b != kNullBlock && parent(b) != BlockHash{})
      to.stored(told_.tier, key(b), parent(b), stored(b));
  }
}

bool PrefixIndex::insert(const PrefixKey& key,
                         std::span<const Token> tokens,
                         BlockId block,
                         BlockHash parent) {
  CHECK(tokens.size() == block_size_);
  if (find(key, tokens) != kNullBlock) return false;
  size_t i = home(key);
  while (table_[i] != kNullBlock) i = (i + 1) & mask_;
  table_[i] = block;
  entries_[static_cast<size_t>(block)] = key;
  std::ranges::copy(
      tokens, tokens_.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(block) * block_size_));
  ++size_;
  if (told_.to) [[unlikely]] {
    told_.parents[static_cast<size_t>(block)] = {};
    set_parent(block, parent);
  }
  return true;
}

void PrefixIndex::erase(BlockId block) {
  if (told_.to && parent(block) != BlockHash{}) [[unlikely]]
    told_.to->removed(told_.tier, key(block));
  size_t i = home(entries_[static_cast<size_t>(block)]);
  while (table_[i] != block) {
    CHECK(table_[i] != kNullBlock);
    i = (i + 1) & mask_;
  }
  // Close the gap: move back every follower that may live at the hole.
  for (size_t hole = i, j = (i + 1) & mask_;; j = (j + 1) & mask_) {
    BlockId b = table_[j];
    if (b == kNullBlock) {
      table_[hole] = kNullBlock;
      break;
    }
    size_t want = home(entries_[static_cast<size_t>(b)]);
    if (((j - want) & mask_) >= ((j - hole) & mask_)) {
      table_[hole] = b;
      hole = j;
    }
  }
  --size_;
}

}  // namespace sluice
