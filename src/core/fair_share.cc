#include "core/fair_share.h"

#include <algorithm>

#include "base/check.h"

namespace sluice {

void FairShare::reserve() {
  if (entries_.size() == entries_.capacity())
    entries_.reserve(std::max<size_t>(16, 2 * entries_.size()));
}

// The count that a newcomer starts with.
int64_t FairShare::level() const {
  int64_t least = INT64_MAX;
  for (const Entry& e : entries_) {
    if (e.num_live > 0) least = std::min(least, e.charged);
  }
  return least == INT64_MAX ? last_left_ : least;
}

FairShare::Account FairShare::join(TenantId id) noexcept {
  auto found = std::ranges::find(entries_, id, &Entry::id);
  if (found != entries_.end()) {
    if (found->num_live == 0) found->charged = std::max(found->charged, level());
    ++found->num_live;
    return static_cast<Account>(found - entries_.begin());
  }
  // An idle account at or below the level would start at the level again: its entry says nothing.
  // Beyond kMaxIdle entries the idle one that was charged least is forgotten.
  int64_t start = level();
  auto idle = entries_.end();
  for (auto e = entries_.begin(); e != entries_.end(); ++e) {
    if (e->num_live > 0 || (idle != entries_.end() && e->charged >= idle->charged)) continue;
    idle = e;
  }
  bool reuse = idle != entries_.end() && (idle->charged <= start || entries_.size() >= kMaxIdle);
  if (!reuse) {
    CHECK(entries_.size() < entries_.capacity());
    entries_.emplace_back();
    idle = entries_.end() - 1;
  }
  *idle = {id, start, 1, 0};
  return static_cast<Account>(idle - entries_.begin());
}

void FairShare::leave(Account a) noexcept {
  if (--entries_[a].num_live == 0) last_left_ = entries_[a].charged;
}

FairShare::Next FairShare::next() const {
  Next next;
  size_t num_before = 0;
  const Entry* best = nullptr;
  for (const Entry& e : entries_) {
    if (e.num_waiting > 0 && (!best || e.charged < best->charged)) {
      best = &e;
      next = {static_cast<Account>(&e - entries_.data()), num_before};
    }
    num_before += static_cast<size_t>(e.num_waiting);
  }
  CHECK(best);
  return next;
}

void FairShare::clear() noexcept {
  entries_.clear();
  last_left_ = 0;
}

}  // namespace sluice
