// find_model() with progress and notes on stderr, for commands that people run.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "base/result.h"
#include "hub/find_model.h"
#include "tools/terminal.h"

namespace sluice {

// Bytes so far, rate and time left: one line in place on a terminal, else a line now and then.
class PullProgress {
 public:
  explicit PullProgress(bool quiet) : quiet_(quiet), line_(!quiet) {}
  PullOptions options();  // refer to this object

 private:
  void show(uint64_t done, uint64_t total);

  using Clock = std::chrono::steady_clock;
  bool quiet_;
  StatusLine line_;
  std::deque<std::pair<Clock::time_point, uint64_t>> last_;  // of a few seconds, for the rate
  Clock::time_point next_line_ = Clock::now() + std::chrono::seconds(5);
};

// What open_model() takes for the model that a user names; fetched first where that is needed.
Result<std::string> locate_model(const std::string& name, bool quiet = false);
// The way back, for people: a path in the cache folder by its name, any other as it is.
std::string name_of_model(const std::string& path);

}  // namespace sluice
