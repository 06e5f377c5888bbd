#include "core/slot_pages.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace sluice {

int64_t KvPages::whole_pages(int64_t blocks) const {
  int64_t step = page_bytes / std::gcd(page_bytes, block_bytes);
  return (blocks + step - 1) / step * step;
}

SlotPages::SlotPages(int num_slots, int num_pages)
    : total_(num_pages), free_(num_pages), slots_(static_cast<size_t>(num_slots)) {}

size_t SlotPages::best(std::span<const Slot> free_slots, int pages) const {
  CHECK(!free_slots.empty());
  size_t best = 0;
  for (size_t k = 1; k < free_slots.size(); ++k) {
    int has = mapped(free_slots[k]), most = mapped(free_slots[best]);
    bool better = most >= pages ? has >= pages && has <= most : has >= most;
    if (better) best = k;
  }
  return best;
}

void SlotPages::set_mapped(Slot slot, int pages) {
  Pages& p = slots_[slot];
  free_ -= pages - p.mapped;
  p.mapped = pages;
  p.changed = any_changed_ = true;
}

void SlotPages::grow(Slot slot, int pages) {
  Pages& p = slots_[slot];
  CHECK(pages >= p.used && pages - p.used <= available());
  used_ += pages - p.used;
  p.used = pages;
  while (pages - p.mapped > free_) {
    auto most = std::ranges::max_element(
        slots_, {}, [](const Pages& other) { return other.mapped - other.used; });
    int spare = most->mapped - most->used;
    CHECK(spare > 0);
    int missing = pages - p.mapped - free_;
    set_mapped(static_cast<Slot>(most - slots_.begin()), most->mapped - std::min(spare, missing));
  }
  if (pages > p.mapped) set_mapped(slot, pages);
}

void SlotPages::release(Slot slot) {
  used_ -= slots_[slot].used;
  slots_[slot].used = 0;
}

void SlotPages::take_ops(std::vector<PageOp>& out) {
  if (!any_changed_) return;
  any_changed_ = false;
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (!slots_[s].changed) continue;
    slots_[s].changed = false;
    out.push_back({static_cast<Slot>(s), static_cast<uint32_t>(slots_[s].mapped)});
  }
}

void SlotPages::restate() noexcept {
  for (Pages& p : slots_) p.changed = true;
  any_changed_ = !slots_.empty();
}

void SlotPages::clear() noexcept {
  for (Pages& p : slots_) p.used = 0;
  used_ = 0;
  restate();
}

void SlotBlocks::retain(BlockId) { CHECK(false && "a block of a slot is never shared"); }

}  // namespace sluice
