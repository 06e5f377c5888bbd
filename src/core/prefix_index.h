// Chained hash of full blocks and cache group → the block that holds their K and V.
// A hit compares hash, group, tenant and tokens. Owned by the scheduler; copyable; allocates only
// at construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/kv_listener.h"
#include "core/request.h"
#include "core/step_plan.h"

namespace sluice {

// Other ids for the tokens of a vocabulary, one for one; ids beyond it stay.
using TokenMap = std::vector<Token>;
inline Token mapped_token(const TokenMap* map, Token t) {
  return map && t >= 0 && static_cast<size_t>(t) < map->size() ? (*map)[static_cast<size_t>(t)] : t;
}

// Hash of a block given its predecessor's; the first block's predecessor is root_hash(tenant).
BlockHash root_hash(TenantId tenant);
BlockHash chain_hash(BlockHash parent,
                     std::span<const Token> tokens,
                     const TokenMap* map = nullptr);
// Hashes of all full blocks of a prompt: front ends call this on their own threads.
// Hashes the tokens as `map` names them; null: as they are.
std::vector<BlockHash> hash_blocks(std::span<const Token> prompt,
                                   int block_size,
                                   TenantId tenant,
                                   const TokenMap* map = nullptr);

// What a block is filed under.
struct PrefixKey {
  BlockHash hash;
  int group = 0;
  TenantId tenant = 0;
  bool operator==(const PrefixKey&) const = default;
};

class PrefixIndex {
 public:
  PrefixIndex(int num_blocks, int block_size);

  // The block holding this content, or kNullBlock.
  BlockId find(const PrefixKey& key, std::span<const Token> tokens) const;
  // False when the content is already there under another block. `parent`: the hash of the block
  // before it, for those who listen.
  bool insert(const PrefixKey& key,
              std::span<const Token> tokens,
              BlockId block,
              BlockHash parent = {});
  void erase(BlockId block);
  void clear() noexcept;
  // insert() of this block comes soon.
  void prefetch(BlockHash hash, int group, BlockId block) const {
    __builtin_prefetch(table_.data() + home(hash, group), 1);
    __builtin_prefetch(entries_.data() + block, 1);
    __builtin_prefetch(tokens_.data() + static_cast<size_t>(block) * block_size_, 1);
  }
  // find() of this hash comes in a while; then, soon: the block that is likely found.
  void prefetch_slot(BlockHash hash, int group) const {
    __builtin_prefetch(table_.data() + home(hash, group));
  }
  BlockId prefetch_entry(BlockHash hash, int group) const {
    BlockId b = table_[home(hash, group)];
    __builtin_prefetch(entries_.data() + b);
    __builtin_prefetch(tokens_.data() + static_cast<size_t>(b) * block_size_);
    return b;
  }
  // Tells `to` of what is inserted and erased from now on, and keeps parents. Not copied with the
  // index; null: nobody.
  void listen(KvListener* to, KvTier tier);
  bool listening() const { return told_.to != nullptr; }
  // Zero where it is not known: the block was there before anybody listened. Such blocks are not
  // told of until set_parent().
  BlockHash parent(BlockId b) const {
    return listening() ? told_.parents[static_cast<size_t>(b)] : BlockHash{};
  }
  void set_parent(BlockId b, BlockHash parent);
  // Tells `to` of all blocks whose parents are known, in any order.
  void list(KvListener& to) const;
  int size() const { return size_; }
  // Of a block in the index.
  const PrefixKey& key(BlockId b) const { return entries_[static_cast<size_t>(b)]; }
  std::span<const Token> tokens(BlockId b) const { return stored(b); }
  bool operator==(const PrefixIndex&) const = default;

 private:
  struct Told {
    Told() = default;
    Told(const Told&) noexcept {}
    Told& operator=(const Told&) noexcept { return *this; }
    bool operator==(const Told&) const { return true; }
    KvListener* to = nullptr;
    KvTier tier = KvTier::device;
    std::vector<BlockHash> parents;  // by block
  };
  size_t home(BlockHash hash, int group) const {
    // Groups of one hash lie far apart: next to each other they would be one long probe.
    return static_cast<size_t>(hash.a + static_cast<uint64_t>(group) * 0x9E3779B97F4A7C15u) & mask_;
  }
  size_t home(const PrefixKey& key) const { return home(key.hash, key.group); }
  std::span<const Token> stored(BlockId b) const {
    return {tokens_.data() + static_cast<size_t>(b) * block_size_, block_size_};
  }

  size_t block_size_, mask_;
  int size_ = 0;
  std::vector<BlockId> table_;      // open addressing, linear probing; kNullBlock = empty
  std::vector<PrefixKey> entries_;  // by block
  std::vector<Token> tokens_;       // [blocks, block_size]
  Told told_;
};

}  // namespace sluice
