#include "exec/mask_inbox.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/check.h"

namespace sluice {

MaskInbox::MaskInbox(Device& device, int steps, int rows, int vocab)
    : device_(device),
      words_(static_cast<size_t>(mask_words(vocab))),
      step_words_(words_ * static_cast<size_t>(rows)),
      places_(static_cast<size_t>(steps)) {
  bytes_ = places_.size() * (kFlagWords * sizeof(uint64_t) + bytes(rows, vocab));
}

size_t MaskInbox::bytes(int rows, int vocab) {
  return static_cast<size_t>(rows) * static_cast<size_t>(mask_words(vocab)) * sizeof(uint32_t);
}

uint64_t* MaskInbox::flag(size_t place) const {
  return static_cast<uint64_t*>(memory_.data()) + place * kFlagWords;
}

uint32_t* MaskInbox::masks(size_t place) const {
  return reinterpret_cast<uint32_t*>(flag(places_.size())) + place * step_words_;
}

void MaskInbox::expect(size_t place, uint64_t step, int num) {
  CHECK(num > 0 && static_cast<size_t>(num) * words_ <= step_words_);
  if (!memory_.data()) memory_ = device_.pinned(bytes_);
  Place& p = places_[place];
  std::lock_guard lock(p.mutex);
  p.step = step, p.ticket = ++num_tickets_, p.num = num, p.waits = true;
}

void MaskInbox::queue(size_t place, void* to) {
  const Place& p = places_[place];  // only this thread changes what is read here
  device_.start_after(flag(place), p.ticket);
  device_.upload(to, masks(place), static_cast<size_t>(p.num) * words_ * sizeof(uint32_t));
}

void MaskInbox::put(const StepMasks& masks) {
  for (size_t place = 0; place < places_.size(); ++place) {
    Place& p = places_[place];
    std::lock_guard lock(p.mutex);
    if (!p.waits || p.step != masks.step) continue;
    p.waits = false;
    return fill(place, masks);
  }
}

void MaskInbox::release() {
  for (size_t place = 0; place < places_.size(); ++place) {
    std::lock_guard lock(places_[place].mutex);
    if (std::exchange(places_[place].waits, false)) fill(place, {});
  }
}

void MaskInbox::fill(size_t place, const StepMasks& from) {
  const Place& p = places_[place];
  uint32_t* to = masks(place);
  for (int i = 0; i < p.num; ++i, to += words_) {
    std::span<const uint32_t> row = from.row(i);
    size_t num = std::min(row.size(), words_);
    std::memcpy(to, row.data(), num * sizeof(uint32_t));
    std::memset(to + num, 0, (words_ - num) * sizeof(uint32_t));
  }
  std::atomic_ref(*flag(place)).store(p.ticket, std::memory_order_release);
}

}  // namespace sluice
