// Interface of what gives out KV blocks and counts their references. Block tables (block_table.h)
// take their cells from it; the scheduler's is BlockCache, which pages.
#pragma once

#include "core/step_plan.h"

namespace sluice {

class BlockAllocator {
 public:
  virtual ~BlockAllocator() = default;
  virtual int available() const = 0;  // blocks that take() can give and nobody was promised
  virtual BlockId take() = 0;         // with one reference; never null: ask available() first
  // Sets blocks aside for take_promised(): they are not available() any more. Which ones they are
  // is decided when they are taken, so a promise of thousands costs nothing.
  virtual void promise(int count) = 0;
  virtual void unpromise(int count) = 0;
  virtual BlockId take_promised() = 0;
  virtual void retain(BlockId b) = 0;
  virtual void release(BlockId b) = 0;
  bool operator==(const BlockAllocator&) const = default;
};

}  // namespace sluice
