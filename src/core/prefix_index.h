// Chained hash of full blocks → the block that holds their K and V.
// A hit compares hash, tenant and tokens. Owned by the scheduler; copyable; allocates only at
// construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/request.h"
#include "core/step_plan.h"

namespace sluice {

// Hash of a block given its predecessor's; the first block's predecessor is root_hash(tenant).
BlockHash root_hash(TenantId tenant);
BlockHash chain_hash(BlockHash parent, std::span<const Token> tokens);
// Hashes of all full blocks of a prompt: front ends call this on their own threads.
std::vector<BlockHash> hash_blocks(std::span<const Token> prompt, int block_size, TenantId tenant);

class PrefixIndex {
 public:
  PrefixIndex(int num_blocks, int block_size);

  // The block holding this content, or kNullBlock.
  BlockId find(BlockHash hash, TenantId tenant, std::span<const Token> tokens) const;
  // False when the content is already there under another block.
  bool insert(BlockHash hash, TenantId tenant, std::span<const Token> tokens, BlockId block);
  void erase(BlockId block);
  // insert() of this block comes soon.
  void prefetch(BlockHash hash, BlockId block) const {
    __builtin_prefetch(table_.data() + home(hash), 1);
    __builtin_prefetch(entries_.data() + block, 1);
    __builtin_prefetch(tokens_.data() + static_cast<size_t>(block) * block_size_, 1);
  }
  int size() const { return size_; }

 private:
  struct Entry {
    BlockHash hash;
    TenantId tenant = 0;
  };
  size_t home(BlockHash h) const { return static_cast<size_t>(h.a) & mask_; }
  std::span<const Token> stored(BlockId b) const {
    return {tokens_.data() + static_cast<size_t>(b) * block_size_, block_size_};
  }

  size_t block_size_, mask_;
  int size_ = 0;
  std::vector<BlockId> table_;  // open addressing, linear probing; kNullBlock = empty
  std::vector<Entry> entries_;  // by block
  std::vector<Token> tokens_;   // [blocks, block_size]
};

}  // namespace sluice
