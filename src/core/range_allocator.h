// Gives out runs of consecutive block ids: the smallest free run that is large enough, the lowest
// of equals. Neighbours are joined when a run comes back. No memory behind the ids. Owned by the
// scheduler; copyable; there are few free runs, at most one more than runs in use, so a sorted list
// is searched from end to end.
#pragma once

#include <cstddef>
#include <vector>

#include "core/block_allocator.h"
#include "core/step_plan.h"

namespace sluice {

struct BlockRange {
  BlockId first = kNullBlock;
  int size = 0;
  BlockId end() const { return first + size; }
  bool operator==(const BlockRange&) const = default;
};

class RangeAllocator {
 public:
  explicit RangeAllocator(int num_blocks) : total_(num_blocks) {
    free_.reserve(1);
    clear();
  }

  int total() const { return total_; }
  int num_free() const { return num_free_; }
  int largest() const;  // blocks of the longest free run

  // Empty if no free run is large enough.
  BlockRange take(int size);
  // Adds the `more` blocks behind the range, if they are free.
  bool extend(BlockRange& range, int more);
  void release(BlockRange range);
  void clear() noexcept;
  bool operator==(const RangeAllocator&) const = default;

 private:
  friend struct SchedulerState;
  void cut(size_t at, int size);

  int total_, num_free_ = 0;
  std::vector<BlockRange> free_;  // by first block; no two touch
};

// What a sequence's table has not taken yet of its range, in ascending order. Nothing in it is
// shared; blocks go back with the whole range.
class RangeRest final : public BlockAllocator {
 public:
  RangeRest(BlockRange range, size_t num_taken)
      : next_(range.first + static_cast<BlockId>(num_taken)), end_(range.end()) {}
  int available() const override { return end_ - next_; }
  BlockId take() override { return next_++; }
  // The whole range is a promise.
  void promise(int) override {}
  void unpromise(int) override {}
  BlockId take_promised() override { return take(); }
  void retain(BlockId b) override;
  void release(BlockId) override {}

 private:
  BlockId next_, end_;
};

}  // namespace sluice
