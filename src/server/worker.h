// A thread for what would hold up an io thread: requests whose text is long to parse and tokenise.
// Made with its first piece of work; any thread may push.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace sluice {

class Worker {
 public:
  explicit Worker(size_t max_waiting) : max_waiting_(max_waiting) {}
  ~Worker() { stop(); }

  // False: too much waits already, or it has stopped.
  bool push(std::function<void()> work);
  // Ends after the piece in hand; the rest is dropped.
  void stop();

 private:
  void run();

  size_t max_waiting_;
  std::mutex mutex_;  // of everything below
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace sluice
