// Paging with a prefix cache: blocks from a pool, the least recently used cached one where none is
// free; its content goes out to a slower tier where there is one. Owned by the scheduler; copyable.
#pragma once

#include "core/block_allocator.h"
#include "core/block_pool.h"
#include "core/prefix_index.h"
#include "core/tier_cache.h"
#include "core/transfer_log.h"

namespace sluice {

class BlockCache final : public BlockAllocator {
 public:
  BlockCache(int num_blocks, int block_size, const TierSizes& sizes = {})
      : pool(num_blocks), index(num_blocks, block_size), tiers(sizes, block_size) {}

  int available() const override { return pool.available() - promised_; }
  BlockId take() override {
    BlockId evicted;
    BlockId b = pool.alloc(evicted);
    if (evicted != kNullBlock) {
      save(evicted);
      index.erase(evicted);
    }
    return b;
  }
  void promise(int count) override { promised_ += count; }
  void unpromise(int count) override { promised_ -= count; }
  BlockId take_promised() override {
    --promised_;
    return take();
  }
  int promised() const { return promised_; }
  // Writes a block of the index to disk, unless it is there.
  void store(BlockId b) {
    if (!tiers.has_disk()) return;
    PlaceId place = tiers.store(index.key(b), index.tokens(b), index.parent(b));
    if (place != kNullBlock) moves.add(Transfer::out, b, place);
  }
  // Forgets all prefixes that nobody holds, in every tier. Returns the blocks of the pool that are
  // free now and were cached.
  int flush() {
    int num = pool.num_cached();
    while (BlockId b = pool.oldest_cached()) {
      index.erase(b);
      pool.forget(b);
    }
    tiers.flush();
    return num;
  }
  void retain(BlockId b) override { pool.retain(b); }
  void release(BlockId b) override { pool.release(b); }
  void clear() noexcept {
    pool.clear();
    index.clear();
    tiers.clear();
    moves.clear();
    promised_ = 0;
  }
  bool operator==(const BlockCache&) const = default;

  BlockPool pool;
  PrefixIndex index;
  TierCache tiers;
  TransferLog moves;

 private:
  friend struct SchedulerState;
  void save(BlockId b) {
    PlaceId place = tiers.insert(index.key(b), index.tokens(b), index.parent(b));
    if (place != kNullBlock) moves.add(Transfer::out, b, place);
  }

  int promised_ = 0;
};

}  // namespace sluice
