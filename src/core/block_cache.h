// Paging with a prefix cache: blocks from a pool, the least recently used cached one where none is
// free. Owned by the scheduler; copyable.
#pragma once

#include "core/block_allocator.h"
#include "core/block_pool.h"
#include "core/prefix_index.h"

namespace sluice {

class BlockCache final : public BlockAllocator {
 public:
  BlockCache(int num_blocks, int block_size) : pool(num_blocks), index(num_blocks, block_size) {}

  int available() const override { return pool.available() - promised_; }
  BlockId take() override {
    BlockId evicted;
    BlockId b = pool.alloc(evicted);
    if (evicted != kNullBlock) index.erase(evicted);
    return b;
  }
  void promise(int count) override { promised_ += count; }
  void unpromise(int count) override { promised_ -= count; }
  BlockId take_promised() override {
    --promised_;
    return take();
  }
  int promised() const { return promised_; }
  void retain(BlockId b) override { pool.retain(b); }
  void release(BlockId b) override { pool.release(b); }
  void clear() noexcept {
    pool.clear();
    index.clear();
    promised_ = 0;
  }
  bool operator==(const BlockCache&) const = default;

  BlockPool pool;
  PrefixIndex index;

 private:
  int promised_ = 0;
};

}  // namespace sluice
