// Reference counts of KV blocks, and which unreferenced ones still hold a cached prefix. Ids only:
// the memory is exec/kv_cache's. Owned by the scheduler; copyable; allocates nothing after
// construction.
#pragma once

#include <cstdint>
#include <vector>

#include "core/step_plan.h"

namespace sluice {

class BlockPool {
 public:
  explicit BlockPool(int num_blocks);

  int total() const { return total_; }
  // Blocks that alloc() can give: free ones, and idle cached ones (least recently used first).
  int available() const { return num_free() + num_cached_; }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_cached() const { return num_cached_; }
  int refs(BlockId b) const { return nodes_[static_cast<size_t>(b)].refs; }
  bool cached(BlockId b) const { return nodes_[static_cast<size_t>(b)].cached; }

  // A block with one reference, or kNullBlock when none is available. When an idle cached block had
  // to be taken, `evicted` is set to it (the prefix index must forget it).
  BlockId alloc(BlockId& evicted);
  // One more reference; wakes an idle cached block.
  void retain(BlockId b);
  // One reference less. At none, the block is idle: kept as cached if marked, else free.
  void release(BlockId b);
  // release() or mark_cached() of this block comes soon.
  void prefetch(BlockId b) const { __builtin_prefetch(nodes_.data() + b, 1); }
  // The block's content is in the prefix index.
  void mark_cached(BlockId b) { nodes_[static_cast<size_t>(b)].cached = true; }
  // The block's content is in the prefix index no longer.
  void forget(BlockId b);
  // The idle cached block that alloc() would evict first, or kNullBlock.
  BlockId oldest_cached() const { return nodes_[0].next; }
  // All blocks are free again.
  void clear() noexcept;
  bool operator==(const BlockPool&) const = default;

 private:
  friend struct SchedulerState;
  struct Node {
    int32_t refs = 0;
    bool cached = false;
    BlockId prev = kNullBlock,
            next = kNullBlock;  // LRU list of idle cached blocks; node 0 is its head
    bool operator==(const Node&) const = default;
  };
  void unlink(BlockId b);
  void link_newest(BlockId b);

  int total_;
  int num_cached_ = 0;
  std::vector<Node> nodes_;
  std::vector<BlockId> free_;  // LIFO: the block freed last is warm
};

}  // namespace sluice
