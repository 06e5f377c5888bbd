// Receives signals, and faults of mapped model files, on a thread of its own and hands them to the
// main thread as messages. That thread ends the process when a stop takes too long.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "base/mailbox.h"

namespace sluice {

enum class Wake { none, stop, reload, fault, keep };

class Signals {
 public:
  // Before any other thread exists: they inherit the mask. SIGINT and SIGTERM stop, SIGHUP reloads,
  // SIGUSR1 keeps the recording, SIGPIPE is ignored. While the model loads, a stop or a fault ends
  // the process.
  explicit Signals(double grace_seconds);
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  void loaded();
  // The next one, or none after so long.
  Wake wait(std::chrono::nanoseconds time);

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread's too: it outlives this object once a stop came
  std::vector<Wake> batch_;
  size_t next_ = 0;  // in batch_
};

}  // namespace sluice
