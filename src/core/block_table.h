// The blocks of one sequence: a table of cells [blocks, cache groups], where block k holds
// positions [k, k + 1) * block_size. A cell is null in a window group where no later query sees the
// positions; in every group it is null where the prompt has not come near them. A table owns one
// reference for every block in its cells: claim, grow and slide change what it owns, share takes
// what another has, release gives all back. Rows of a long prompt are promised first and taken when
// a step reaches them. Owned by its sequence, on the engine thread. Allocates only when it outgrows
// reserve().
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "core/block_allocator.h"
#include "core/step_plan.h"

namespace sluice {

// How positions map to blocks, the same for all sequences.
struct CacheLayout {
  CacheLayout(int size, std::vector<int> group_windows)
      : block_size(size),
        num_groups(static_cast<int>(group_windows.size())),
        num_windowed(
            static_cast<int>(std::ranges::count_if(group_windows, [](int w) { return w > 0; }))),
        windows(std::move(group_windows)) {}

  bool windowed(int group) const { return windows[static_cast<size_t>(group)] > 0; }
  int blocks_for(int positions) const { return (positions + block_size - 1) / block_size; }
  // Index of the first block that a query at `pos` or later sees.
  int first_seen(int group, int pos) const {
    int window = windows[static_cast<size_t>(group)];
    return window == 0 ? 0 : std::max(0, pos - window + 1) / block_size;
  }
  bool operator==(const CacheLayout&) const = default;

  int block_size, num_groups, num_windowed;
  std::vector<int> windows;  // by group; 0: sees everything
};

// Writes changes of a running sequence's table into the plan. A sequence whose row is not open yet
// has no plan, and its changes are not written.
struct EditLog {
  StepPlan* plan = nullptr;
  Slot slot = 0;
  void add(int index, int group, BlockId b) const {
    if (plan)
      plan->edits.push_back({slot, static_cast<uint32_t>(index), b, static_cast<uint8_t>(group)});
  }
};

class BlockTable {
 public:
  void reserve(const CacheLayout& l, int rows) { cells_.reserve(cells(l, rows)); }
  int num_rows(const CacheLayout& l) const {
    return static_cast<int>(cells_.size()) / l.num_groups;
  }
  BlockId at(const CacheLayout& l, int index, int group) const {
    return cells_[cells(l, index) + static_cast<size_t>(group)];
  }
  const std::vector<BlockId>& blocks() const { return cells_; }  // nulls among them
  // Leading blocks that every group has, or had before its window moved on.
  int ready() const { return ready_; }
  // Window groups hold nothing that is out of sight for queries from here on.
  int slid() const { return slid_; }
  // Whether every group has a block for this position, and all before it.
  bool covers(const CacheLayout& l, int pos) const { return ready_ * l.block_size > pos; }
  // Blocks that were promised and not taken: those of the rows behind ready(), in groups that see
  // everything.
  int promised(const CacheLayout& l) const {
    return (num_rows(l) - ready_) * (l.num_groups - l.num_windowed);
  }

  // `rows` rows, of which the first `kept` are in place: the others are promised in groups that see
  // everything; window groups get theirs as far as `reach` positions, while the allocator has them.
  void claim(const CacheLayout& l, BlockAllocator& from, int rows, int kept, int reach);
  // Takes the blocks of the first `rows` rows that were only promised. For layouts without windows;
  // with them extend() does.
  void fill(const CacheLayout& l, BlockAllocator& from, int rows, const EditLog& log);
  // Blocks for position `pos`, the first that is not covered. False: the allocator has too few.
  bool grow(const CacheLayout& l, BlockAllocator& from, int pos, const EditLog& log);
  // Blocks of the window groups for positions up to `end`, while the allocator has them.
  void extend(const CacheLayout& l, BlockAllocator& from, int end, const EditLog& log);
  // Releases the blocks before the window of a query at `pos`.
  void slide(const CacheLayout& l, BlockAllocator& from, int pos, const EditLog& log);
  // Becomes a table of `other`'s first `pos` positions: its full blocks, as far back as a query at
  // `pos` sees, and an own block in every group for the row of `pos`.
  void share(const CacheLayout& l, BlockAllocator& from, const BlockTable& other, int pos);
  // Becomes a table of `rows` rows without blocks; then takes blocks that hold its content, for
  // queries at `pos` and later.
  void begin(const CacheLayout& l, int rows, int pos);
  void adopt(const CacheLayout& l, BlockAllocator& from, int index, int group, BlockId b);
  // Takes a block whose content is on its way.
  BlockId expect(const CacheLayout& l, BlockAllocator& from, int index, int group) {
    return cell(l, index, group) = from.take();
  }
  // Hands every block to `give`, last one first: of a cached prefix the tail is then older than the
  // head and goes first. `soon` is called a few blocks ahead.
  void release(auto&& give, auto&& soon) {
    for (size_t b = cells_.size(); b > 0; --b) {
      if (b > 8) soon(cells_[b - 9]);
      if (cells_[b - 1] != kNullBlock) give(cells_[b - 1]);
    }
    cells_.clear();
    ready_ = slid_ = 0;
  }
  bool operator==(const BlockTable&) const = default;

 private:
  friend struct SchedulerState;
  static size_t cells(const CacheLayout& l, int rows) {
    return static_cast<size_t>(rows) * static_cast<size_t>(l.num_groups);
  }
  BlockId& cell(const CacheLayout& l, int index, int group) {
    return cells_[cells(l, index) + static_cast<size_t>(group)];
  }
  void put(const CacheLayout& l, int index, int group, BlockId b, const EditLog& log);
  void fill_row(const CacheLayout& l, BlockAllocator& from, const EditLog& log);

  std::vector<BlockId> cells_;
  int ready_ = 0;
  int slid_ = 0;
};

}  // namespace sluice
