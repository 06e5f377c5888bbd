#include "engine/kv_event_log.h"

#include "core/scheduler.h"

namespace sluice {

namespace {

void append_changes(const KvChanges& more, KvChanges& to) {
  const auto base = static_cast<uint32_t>(to.tokens.size());
  to.list.reserve(to.list.size() + more.list.size());
  to.tokens.insert(to.tokens.end(), more.tokens.begin(), more.tokens.end());
  for (KvChange c : more.list) {
    c.token_at += base;
    to.list.push_back(c);
  }
}

}  // namespace

void KvEventLog::add(KvChange change, std::span<const Token> tokens) noexcept {
  if (lost_) return;  // a snapshot follows
  try {
    change.token_at = static_cast<uint32_t>(own_.tokens.size());
    change.num_tokens = static_cast<uint32_t>(tokens.size());
    own_.tokens.insert(own_.tokens.end(), tokens.begin(), tokens.end());
    own_.list.push_back(change);
  } catch (...) {
    lost_ = true;
  }
}

void KvEventLog::stored(KvTier tier,
                        const PrefixKey& key,
                        BlockHash parent,
                        std::span<const Token> tokens) noexcept {
  add({KvChange::stored, tier, key, parent}, tokens);
}

void KvEventLog::removed(KvTier tier, const PrefixKey& key) noexcept {
  add({KvChange::removed, tier, key, {}}, {});
}

// A snapshot of nothing follows: that needs no memory here.
void KvEventLog::cleared() noexcept { lost_ = true; }

// All that is cached now, in own_. What waits is part of it.
void KvEventLog::take_snapshot(const Scheduler& scheduler) {
  own_.clear();
  lost_ = false;
  add({}, {});
  scheduler.list_prefixes(*this);
  own_.snapshot_size = own_.list.size();
}

void KvEventLog::hand_over(const Scheduler& scheduler) noexcept {
  if (own_.list.empty() && !lost_ && !asked_.load(std::memory_order_relaxed)) return;
  try {
    std::unique_lock lock(mutex_);
    size_t before = waiting_.list.size();
    const bool full = before > 0 && before + own_.list.size() > most_;
    if (full) num_dropped_.fetch_add(before + own_.list.size(), std::memory_order_relaxed);
    if (asked_.exchange(false, std::memory_order_relaxed) || full || lost_) {
      lock.unlock();
      take_snapshot(scheduler);
      if (lost_) return;  // no memory: again after the next iteration
      num_snapshots_.fetch_add(1, std::memory_order_relaxed);
      lock.lock();
      before = waiting_.list.size();  // some of it may have been taken meanwhile
      std::swap(waiting_, own_);
    } else if (before == 0) {
      std::swap(waiting_, own_);
    } else {
      append_changes(own_, waiting_);
    }
    lock.unlock();
    own_.clear();
    if (before == 0) wake_();
  } catch (...) {
    lost_ = true;
  }
}

bool KvEventLog::take(KvChanges& out) {
  out.clear();
  std::lock_guard lock(mutex_);
  if (waiting_.list.empty()) return false;
  std::swap(waiting_, out);
  return true;
}

}  // namespace sluice
