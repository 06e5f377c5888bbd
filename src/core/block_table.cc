#include "core/block_table.h"

#include "base/check.h"

namespace sluice {

void BlockTable::put(const CacheLayout& l, int index, int group, BlockId b, const EditLog& log) {
  CHECK(b != kNullBlock);
  cell(l, index, group) = b;
  log.add(index, group, b);
}

// The promised blocks of the first row that is not ready.
void BlockTable::fill_row(const CacheLayout& l, BlockAllocator& from, const EditLog& log) {
  for (int g = 0; g < l.num_groups; ++g) {
    if (!l.windowed(g)) put(l, ready_, g, from.take_promised(), log);
  }
}

void BlockTable::begin(const CacheLayout& l, int rows, int pos) {
  cells_.assign(cells(l, rows), kNullBlock);
  slid_ = pos;
}

void BlockTable::adopt(
    const CacheLayout& l, BlockAllocator& from, int index, int group, BlockId b) {
  from.retain(b);
  cell(l, index, group) = b;
}

void BlockTable::claim(const CacheLayout& l, BlockAllocator& from, int rows, int kept, int reach) {
  cells_.resize(cells(l, rows), kNullBlock);
  ready_ = kept;
  from.promise(promised(l));
  if (l.num_windowed > 0) extend(l, from, reach, {});
}

void BlockTable::fill(const CacheLayout& l, BlockAllocator& from, int rows, const EditLog& log) {
  rows = std::min(rows, num_rows(l));
  for (; ready_ < rows; ++ready_) fill_row(l, from, log);
}

bool BlockTable::grow(const CacheLayout& l, BlockAllocator& from, int pos, const EditLog& log) {
  int index = pos / l.block_size;
  // A preempted sequence's last known token counts as a decode: its row may be in the table, with
  // blocks that were only promised.
  bool in_table = index < num_rows(l);
  if (from.available() < (in_table ? l.num_windowed : l.num_groups)) return false;
  if (in_table) {
    fill_row(l, from, log);
  } else {
    cells_.resize(cells(l, index + 1), kNullBlock);
  }
  for (int g = 0; g < l.num_groups; ++g) {
    if (!in_table || l.windowed(g)) put(l, index, g, from.take(), log);
  }
  ready_ = index + 1;
  return true;
}

void BlockTable::extend(const CacheLayout& l, BlockAllocator& from, int end, const EditLog& log) {
  for (; ready_ < l.blocks_for(end) && from.available() >= l.num_windowed; ++ready_) {
    fill_row(l, from, log);
    for (int g = 0; g < l.num_groups; ++g) {
      if (l.windowed(g)) put(l, ready_, g, from.take(), log);
    }
  }
}

void BlockTable::slide(const CacheLayout& l, BlockAllocator& from, int pos, const EditLog& log) {
  for (int g = 0; g < l.num_groups; ++g) {
    int end = l.first_seen(g, pos);
    for (int index = l.first_seen(g, slid_); index < end; ++index) {
      from.release(std::exchange(cell(l, index, g), kNullBlock));
      log.add(index, g, kNullBlock);
    }
  }
  slid_ = pos;
}

void BlockTable::share(const CacheLayout& l,
                       BlockAllocator& from,
                       const BlockTable& other,
                       int pos) {
  int full = pos / l.block_size;
  begin(l, full + 1, pos);
  for (int g = 0; g < l.num_groups; ++g) {
    for (int index = l.first_seen(g, pos); index < full; ++index)
      adopt(l, from, index, g, other.at(l, index, g));
    put(l, full, g, from.take(), {});
  }
  ready_ = full + 1;
}

}  // namespace sluice
