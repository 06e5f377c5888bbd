#include "core/block_table.h"

#include "base/check.h"

namespace sluice {

void BlockTable::put(
    const CacheLayout& l, BlockAllocator& from, int index, int group, const EditLog& log) {
  BlockId b = from.take();
  CHECK(b != kNullBlock);
  cell(l, index, group) = b;
  log.add(index, group, b);
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
  for (int index = kept; index < rows; ++index) {
    for (int g = 0; g < l.num_groups; ++g) {
      if (!l.windowed(g)) put(l, from, index, g, {});
    }
  }
  ready_ = l.num_windowed > 0 ? kept : rows;
  extend(l, from, reach, {});
}

bool BlockTable::grow(const CacheLayout& l, BlockAllocator& from, int pos, const EditLog& log) {
  int index = pos / l.block_size;
  // A preempted sequence's last known token counts as a decode: window groups may not have it.
  bool in_table = index < num_rows(l);
  if (from.available() < (in_table ? l.num_windowed : l.num_groups)) return false;
  if (!in_table) cells_.resize(cells(l, index + 1), kNullBlock);
  for (int g = 0; g < l.num_groups; ++g) {
    if (!in_table || l.windowed(g)) put(l, from, index, g, log);
  }
  ready_ = index + 1;
  return true;
}

void BlockTable::extend(const CacheLayout& l, BlockAllocator& from, int end, const EditLog& log) {
  for (; ready_ < l.blocks_for(end) && from.available() >= l.num_windowed; ++ready_) {
    for (int g = 0; g < l.num_groups; ++g) {
      if (l.windowed(g)) put(l, from, ready_, g, log);
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
    put(l, from, full, g, {});
  }
  ready_ = full + 1;
}

}  // namespace sluice
