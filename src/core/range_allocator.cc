#include "core/range_allocator.h"

#include <algorithm>

#include "base/check.h"

namespace sluice {

void RangeAllocator::clear() noexcept {
  free_.clear();
  num_free_ = total_;
  if (total_ > 0) free_.push_back({1, total_});
}

int RangeAllocator::largest() const {
  int most = 0;
  for (const BlockRange& r : free_) most = std::max(most, r.size);
  return most;
}

// Takes the first blocks of a free run.
void RangeAllocator::cut(size_t at, int size) {
  BlockRange& r = free_[at];
  r.first += size;
  r.size -= size;
  num_free_ -= size;
  if (r.size == 0) free_.erase(free_.begin() + static_cast<ptrdiff_t>(at));
}

BlockRange RangeAllocator::take(int size) {
  CHECK(size > 0);
  size_t best = free_.size();
  for (size_t k = 0; k < free_.size(); ++k) {
    if (free_[k].size < size) continue;
    if (best == free_.size() || free_[k].size < free_[best].size) best = k;
  }
  if (best == free_.size()) return {};
  BlockRange taken{free_[best].first, size};
  cut(best, size);
  return taken;
}

bool RangeAllocator::extend(BlockRange& range, int more) {
  auto next = std::ranges::lower_bound(free_, range.end(), {}, &BlockRange::first);
  if (next == free_.end() || next->first != range.end() || next->size < more) return false;
  cut(static_cast<size_t>(next - free_.begin()), more);
  range.size += more;
  return true;
}

void RangeAllocator::release(BlockRange range) {
  CHECK(range.first > 0 && range.size > 0 && range.end() <= total_ + 1);
  num_free_ += range.size;
  auto next = std::ranges::lower_bound(free_, range.first, {}, &BlockRange::first);
  CHECK(next == free_.end() || next->first >= range.end());
  bool joins_next = next != free_.end() && next->first == range.end();
  if (next != free_.begin()) {
    auto before = next - 1;
    CHECK(before->end() <= range.first);
    if (before->end() == range.first) {
      before->size += range.size;
      if (joins_next) {
        before->size += next->size;
        free_.erase(next);
      }
      return;
    }
  }
  if (joins_next) {
    next->first = range.first;
    next->size += range.size;
  } else {
    free_.insert(next, range);
  }
}

void RangeRest::retain(BlockId) { CHECK(false && "a block of a range is never shared"); }

}  // namespace sluice
