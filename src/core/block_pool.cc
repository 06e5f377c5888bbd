#include "core/block_pool.h"

#include "base/check.h"

namespace sluice {

BlockPool::BlockPool(int num_blocks)
    : total_(num_blocks), nodes_(static_cast<size_t>(num_blocks) + 1) {
  free_.reserve(static_cast<size_t>(num_blocks));
  clear();
}

void BlockPool::clear() noexcept {
  nodes_.assign(nodes_.size(), {});
  free_.clear();
  for (BlockId b = total_; b > 0; --b) free_.push_back(b);
  num_cached_ = 0;
}

BlockId BlockPool::alloc(BlockId& evicted) {
  evicted = kNullBlock;
  BlockId b = kNullBlock;
  if (!free_.empty()) {
    b = free_.back();
    free_.pop_back();
  } else if (num_cached_ > 0) {
    b = evicted = nodes_[0].next;  // the oldest
    unlink(b);
    nodes_[static_cast<size_t>(b)].cached = false;
  } else {
    return kNullBlock;
  }
  nodes_[static_cast<size_t>(b)].refs = 1;
  return b;
}

void BlockPool::retain(BlockId b) {
  CHECK(b > 0 && b <= total_);
  Node& n = nodes_[static_cast<size_t>(b)];
  if (n.refs == 0) {
    CHECK(n.cached);
    unlink(b);
  }
  ++n.refs;
}

void BlockPool::release(BlockId b) {
  CHECK(b > 0 && b <= total_);
  Node& n = nodes_[static_cast<size_t>(b)];
  CHECK(n.refs > 0);
  if (--n.refs > 0) return;
  if (n.cached) {
    link_newest(b);
  } else {
    free_.push_back(b);
  }
}

void BlockPool::forget(BlockId b) {
  Node& n = nodes_[static_cast<size_t>(b)];
  CHECK(n.cached);
  n.cached = false;
  if (n.refs > 0) return;
  unlink(b);
  free_.push_back(b);
}

void BlockPool::unlink(BlockId b) {
  Node& n = nodes_[static_cast<size_t>(b)];
  nodes_[static_cast<size_t>(n.prev)].next = n.next;
  nodes_[static_cast<size_t>(n.next)].prev = n.prev;
  n.prev = n.next = kNullBlock;
  --num_cached_;
}

void BlockPool::link_newest(BlockId b) {
  Node& head = nodes_[0];
  Node& n = nodes_[static_cast<size_t>(b)];
  n.prev = head.prev;
  n.next = kNullBlock;
  nodes_[static_cast<size_t>(head.prev)].next = b;
  head.prev = b;
  ++num_cached_;
}

}  // namespace sluice
