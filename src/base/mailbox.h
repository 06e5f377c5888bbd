// The one queue between threads: many producers, one consumer, which sleeps when there is nothing.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

namespace sluice {

template <typename T>
class Mailbox {
 public:
  // Throws std::bad_alloc when there is no memory for it; nothing was added then.
  void push(T item) {
    {
      std::lock_guard lock(mutex_);
      items_.push_back(std::move(item));
    }
    ready_.notify_one();
  }

  // Ends the consumer's wait, now or the next time. Needs no memory.
  void wake() {
    {
      std::lock_guard lock(mutex_);
      woken_ = true;
    }
    ready_.notify_one();
  }

  // Moves everything into `out` (cleared first). Never blocks.
  void drain(std::vector<T>& out) {
    out.clear();
    std::lock_guard lock(mutex_);
    out.swap(items_);
  }

  // As drain, but waits up to `timeout` for the first item or a wake().
  void wait_drain(std::vector<T>& out, std::chrono::nanoseconds timeout) {
    out.clear();
    std::unique_lock lock(mutex_);
    auto some = [&] { return !items_.empty() || woken_; };
    if (timeout == std::chrono::nanoseconds::max()) {
      ready_.wait(lock, some);
    } else {
      ready_.wait_for(lock, timeout, some);
    }
    out.swap(items_);
    woken_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<T> items_;
  bool woken_ = false;
};

}  // namespace sluice
