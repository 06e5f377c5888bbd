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
  explicit Worker(size_t max_waiting, const char* name = "worker")
      : max_waiting_(max_waiting), name_(name) {}
  ~Worker() { stop(); }

  // False: too much waits already, or it has stopped. Throws std::bad_alloc, or std::system_error
  // when the thread cannot be made; the work is then not taken.
  bool push(std::function<void()> work);
  // Runs `f` before what waits, after the piece in hand; at once where there is no thread.
  void ask(std::function<void()> f);
  // Ends after the piece in hand; the rest is dropped.
  void stop();

 private:
  void run();

  size_t max_waiting_;
  const char* name_;  // of the thread
  std::mutex mutex_;  // of everything below
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace sluice
