#include "constrain/mask_store.h"

#include <string>
#include <string_view>
#include <utility>

namespace sluice::constrain {

namespace {

constexpr size_t kEntryBytes = 128;  // of maps and objects, about

size_t bytes_of(const auto& list) { return list.size() * sizeof list[0]; }

std::string_view text_of(const auto& list) {
  return {reinterpret_cast<const char*>(list.data()), bytes_of(list)};
}

Fingerprint content(const StateMask& mask) {
  std::string text(text_of(mask.bits));
  const Tails* tails = mask.tails.get();  // equal ones are shared, and as old as their users
  text.append(reinterpret_cast<const char*>(&tails), sizeof tails);
  return fingerprint(text);
}

}  // namespace

// At the limit everything is forgotten.
void MaskStore::make_room(size_t bytes) {
  if (bytes_ + bytes > max_bytes_) {
    by_expression_.clear(), by_content_.clear(), tails_.clear();
    bytes_ = 0;
  }
  bytes_ += bytes;
}

MaskStore::Mask MaskStore::find(const Fingerprint& expression) const {
  std::lock_guard lock(mutex_);
  auto found = by_expression_.find(expression);
  return found == by_expression_.end() ? nullptr : found->second;
}

MaskStore::Mask MaskStore::keep(const Fingerprint& expression, Mask mask) {
  Fingerprint key = content(*mask);
  std::lock_guard lock(mutex_);
  if (auto same = by_content_.find(key); same != by_content_.end()) {
    mask = same->second;
    make_room(kEntryBytes);
  } else {
    make_room(2 * kEntryBytes + bytes_of(mask->bits));
    by_content_.emplace(key, mask);
  }
  return by_expression_.try_emplace(expression, std::move(mask)).first->second;
}

MaskStore::TailsRef MaskStore::find_tails(std::span<const uint32_t> nodes) const {
  Fingerprint key = fingerprint(text_of(nodes));
  std::lock_guard lock(mutex_);
  auto found = tails_.find(key);
  return found == tails_.end() ? nullptr : found->second;
}

void MaskStore::keep_tails(std::span<const uint32_t> nodes, TailsRef tails) {
  Fingerprint key = fingerprint(text_of(nodes));
  std::lock_guard lock(mutex_);
  make_room(kEntryBytes + bytes_of(tails->firsts));
  tails_.try_emplace(key, std::move(tails));
}

size_t MaskStore::memory_bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace sluice::constrain
