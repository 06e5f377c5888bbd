// Bytes of answers that clients have not taken yet, summed over all connections. Any thread.
#pragma once

#include <atomic>
#include <cstddef>

namespace sluice {

class UnreadBytes {
 public:
  explicit UnreadBytes(size_t limit) : limit_(limit) {}

  // May a connection that waits with `own` bytes queue `more`? Over the limit only those below an
  // equal share of it may, so that the largest are cut and the sum stays below twice the limit.
  bool allows(size_t own, size_t more) const {
    if (total() + more <= limit_) return true;
    size_t readers = readers_.load(std::memory_order_relaxed) + (own == 0 ? 1 : 0);
    return own + more <= limit_ / (readers > 0 ? readers : 1);
  }
  // A connection's bytes went from `before` to `after`.
  void change(size_t before, size_t after) {
    total_.fetch_add(after - before, std::memory_order_relaxed);  // wraps downwards
    if (before == 0 && after > 0) readers_.fetch_add(1, std::memory_order_relaxed);
    if (before > 0 && after == 0) readers_.fetch_sub(1, std::memory_order_relaxed);
  }
  size_t total() const { return total_.load(std::memory_order_relaxed); }

 private:
  const size_t limit_;
  std::atomic<size_t> total_{0}, readers_{0};
};

}  // namespace sluice
