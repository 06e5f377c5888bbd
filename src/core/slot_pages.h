// Counts the pages of memory behind sequences of allocator=virtual. A slot has addresses for the
// longest sequence, and pages behind the first of them: those that its sequence uses, and those
// that stay mapped when it has ended, until another slot needs them. A page here is one in every
// cache group. No memory and no addresses: executors map what the ops say. Owned by the scheduler;
// copyable; allocates nothing after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/block_allocator.h"
#include "core/step_plan.h"

namespace sluice {

// How blocks lie in pages. Neither size need be a multiple of the other.
struct KvPages {
  int64_t block_bytes = 1;  // of a block, in one plane
  int64_t page_bytes = 1;
  int64_t slot_blocks = 0;  // addresses of a slot, per cache group; 0: as long as a sequence gets

  int pages_for(int64_t blocks) const {
    return static_cast<int>((blocks * block_bytes + page_bytes - 1) / page_bytes);
  }
  // Whole blocks that so many pages hold.
  int64_t blocks_in(int64_t pages) const { return pages * page_bytes / block_bytes; }
  // The least number of blocks, `blocks` or more, that end with a page: slots begin on pages.
  int64_t whole_pages(int64_t blocks) const;
  bool operator==(const KvPages&) const = default;
};

class SlotPages {
 public:
  SlotPages(int num_slots, int num_pages);

  int total() const { return total_; }
  int num_free() const { return free_; }  // mapped nowhere
  int num_used() const { return used_; }
  int num_kept() const { return total_ - free_ - used_; }  // mapped, and used by nobody
  int available() const { return total_ - used_; }
  int used(Slot slot) const { return slots_[slot].used; }
  int mapped(Slot slot) const { return slots_[slot].mapped; }

  // Of the free slots, the index of the one for a sequence that needs so many pages: it has just
  // enough of them mapped, else the most. Of equals the last.
  size_t best(std::span<const Slot> free_slots, int pages) const;
  // The slot uses so many pages, no fewer than before; available() must have the rest. Pages that
  // are not mapped yet come from free ones, then from the slot that keeps the most.
  void grow(Slot slot, int pages);
  // Nobody uses the slot; its pages stay mapped.
  void release(Slot slot);
  // What has changed since the last call.
  void take_ops(std::vector<PageOp>& out);
  // Nobody uses anything. The next ops name all slots: steps that failed may have mapped nothing.
  void clear() noexcept;
  void restate() noexcept;
  bool operator==(const SlotPages&) const = default;

 private:
  friend struct SchedulerState;
  struct Pages {
    int used = 0, mapped = 0;
    bool changed = false;
    bool operator==(const Pages&) const = default;
  };
  void set_mapped(Slot slot, int pages);

  int total_, free_, used_ = 0;
  bool any_changed_ = false;
  std::vector<Pages> slots_;
};

// The blocks of a slot that its sequence's table has not taken yet: consecutive ids in every cache
// group. Pages for them are counted by SlotPages.
class SlotBlocks final : public BlockAllocator {
 public:
  SlotBlocks(Slot slot, int num_groups, int64_t slot_blocks, int taken_rows)
      : first_(static_cast<BlockId>((int64_t{slot} * num_groups + 1) * slot_blocks)),
        stride_(static_cast<BlockId>(slot_blocks)),
        num_groups_(num_groups),
        next_(taken_rows * num_groups) {}
  int available() const override { return INT32_MAX; }
  BlockId take() override { return at(next_++); }
  void promise(int) override {}
  void unpromise(int) override {}
  BlockId take_promised() override { return take(); }
  void retain(BlockId) override;
  void release(BlockId) override {}
  // The block of cell k of the table.
  BlockId at(int k) const { return first_ + k % num_groups_ * stride_ + k / num_groups_; }

 private:
  BlockId first_, stride_;
  int num_groups_, next_;
};

}  // namespace sluice
