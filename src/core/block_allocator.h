// Interface of what gives out KV blocks and counts their references. Block tables (block_table.h)
// take their cells from it; the scheduler's is BlockCache, which pages.
#pragma once

#include "core/step_plan.h"

namespace sluice {

class BlockAllocator {
 public:
  virtual ~BlockAllocator() = default;
  virtual int available() const = 0;  // blocks that take() can give
  virtual BlockId take() = 0;         // with one reference; never null: ask available() first
  virtual void retain(BlockId b) = 0;
  virtual void release(BlockId b) = 0;
  bool operator==(const BlockAllocator&) const = default;
};

}  // namespace sluice
