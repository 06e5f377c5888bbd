// Whether the server can do its work. beat() asks every watched thread for a sign of life, once at
// a time; a thread that owes one for longer than the limit is stuck. A failure stays for good.
// /health, /ready and the service manager's watchdog report it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace sluice {

class Health {
 public:
  struct Problem {
    std::string code, reason;
  };
  using Ask = std::function<void(std::function<void()> answer)>;

  explicit Health(double limit_seconds) : limit_(static_cast<int64_t>(limit_seconds * 1e9)) {}

  // `ask` has the thread run `answer` soon. With `progress`, a count that has changed since the
  // last beat is a sign of life too. Before the first beat().
  void watch(std::string name, Ask ask, std::function<uint64_t()> progress = {});
  // Every second or so, one thread. True: some progress() changed.
  bool beat(Time now);
  // No more beats: the server stops.
  void rest() { resting_.store(true); }
  // For good: requests are refused. The first reason stays. Any thread.
  void fail(std::string code, std::string reason);

  // Any thread.
  std::optional<Problem> failure() const;
  std::optional<Problem> problem(Time now) const;  // a failure, or the first stuck thread

 private:
  struct Thread {
    std::string name;
    Ask ask;
    std::function<uint64_t()> progress;
    uint64_t seen = 0;                                 // of progress; beat()'s thread
    std::shared_ptr<std::atomic<int64_t>> owes_since;  // 0: owes nothing
  };

  Time limit_;
  std::vector<Thread> threads_;
  std::atomic<int64_t> last_beat_{0};  // 0: none yet
  std::atomic<bool> failed_{false}, resting_{false};
  mutable std::mutex mutex_;
  Problem failure_;  // of mutex_
};

}  // namespace sluice
