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
  struct Limits {
    size_t pieces, bytes;  // of what waits
  };
  explicit Worker(Limits limits, const char* name = "worker") : limits_(limits), name_(name) {}
  ~Worker() { stop(); }

  // `bytes` is what the work holds while it waits. False: too much waits already, or it has
  // stopped. Throws std::bad_alloc, or std::system_error when the thread cannot be made; the work
  // is then not taken.
  bool push(std::function<void()> work, size_t bytes);
  // Runs `f` before what waits, after the piece in hand; at once where there is no thread.
  void ask(std::function<void()> f);
  // Ends after the piece in hand; the rest is dropped.
  void stop();

 private:
  void run();

  struct Piece {
    std::function<void()> work;
    size_t bytes = 0;
  };

  Limits limits_;
  const char* name_;  // of the thread
  std::mutex mutex_;  // of everything below
  std::condition_variable changed_;
  std::deque<Piece> waiting_;
  size_t waiting_bytes_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace sluice
