// What the prefix caches gained and lost, on its way from the engine thread to whoever publishes
// it. The engine thread appends and hands over once per iteration; it never waits. What the reader
// has not taken is bounded: when more comes, all of it is dropped, counted, and replaced by the
// content of the caches at that moment.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "core/kv_listener.h"
#include "core/prefix_index.h"

namespace sluice {

class Scheduler;

struct KvChange {
  enum Kind : uint8_t { stored, removed, cleared } kind = cleared;
  KvTier tier = KvTier::device;
  PrefixKey key;
  BlockHash parent;       // stored
  uint32_t token_at = 0;  // stored: where its tokens begin
  uint32_t num_tokens = 0;
};

struct KvChanges {
  std::vector<KvChange> list;
  std::vector<Token> tokens;
  // So many at the front are a `cleared` and all that is cached, in any order.
  size_t snapshot_size = 0;
  void clear() noexcept {
    list.clear(), tokens.clear();
    snapshot_size = 0;
  }
};

class KvEventLog final : public KvListener {
 public:
  static constexpr size_t kMost = size_t{1} << 17;  // changes that wait

  // `wake` tells the reader that there is something to take; any thread, must not block or throw.
  explicit KvEventLog(std::function<void()> wake, size_t most = kMost)
      : wake_(std::move(wake)), most_(most) {}

  // Scheduler's thread.
  void stored(KvTier tier,
              const PrefixKey& key,
              BlockHash parent,
              std::span<const Token> tokens) noexcept override;
  void removed(KvTier tier, const PrefixKey& key) noexcept override;
  void cleared() noexcept override;
  // After each iteration: hands over what is new.
  void hand_over(const Scheduler& scheduler) noexcept;

  // Any thread. The next hand_over() begins with all that is cached.
  void ask_snapshot() { asked_.store(true, std::memory_order_relaxed); }
  // Reader's thread: swaps what waits into `out` (cleared first). False: nothing.
  bool take(KvChanges& out);
  uint64_t num_dropped() const { return num_dropped_.load(std::memory_order_relaxed); }
  uint64_t num_snapshots() const { return num_snapshots_.load(std::memory_order_relaxed); }

 private:
  void add(KvChange change, std::span<const Token> tokens) noexcept;
  void take_snapshot(const Scheduler& scheduler);

  std::function<void()> wake_;
  size_t most_;
  std::atomic<bool> asked_{false};
  std::atomic<uint64_t> num_dropped_{0}, num_snapshots_{0};
  // The scheduler's thread.
  KvChanges own_;
  bool lost_ = false;  // own_ is not all there was

  std::mutex mutex_;
  KvChanges waiting_;  // of mutex_
};

}  // namespace sluice
