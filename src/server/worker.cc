#include "server/worker.h"

#include <pthread.h>

#include <utility>

#include "base/failure.h"

namespace sluice {

bool Worker::push(std::function<void()> work, size_t bytes) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || waiting_.size() >= limits_.pieces) return false;
    if (waiting_bytes_ > 0 && waiting_bytes_ + bytes > limits_.bytes) return false;
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    waiting_.push_back({std::move(work), bytes});
    waiting_bytes_ += bytes;
  }
  changed_.notify_one();
  return true;
}

void Worker::ask(std::function<void()> f) {
  {
    std::lock_guard lock(mutex_);
    if (thread_.joinable()) waiting_.push_front({std::exchange(f, nullptr)});
  }
  if (f) return f();
  changed_.notify_one();
}

void Worker::stop() {
  std::thread thread;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    waiting_.clear();
    waiting_bytes_ = 0;
    thread.swap(thread_);
  }
  changed_.notify_one();
  if (thread.joinable()) thread.join();
}

void Worker::run() {
  pthread_setname_np(pthread_self(), name_);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    std::function<void()> work = std::move(waiting_.front().work);
    waiting_bytes_ -= waiting_.front().bytes;
    waiting_.pop_front();
    lock.unlock();
    try {
      work();
    } catch (...) {
      log_exception("request failed");
    }
    work = nullptr;  // may end a connection's last reference
    lock.lock();
  }
}

}  // namespace sluice
