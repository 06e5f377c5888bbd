// A line every so many steps: what runs and waits, rates, and where the time of a step goes. Pure;
// owned by the engine thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/loop.h"

namespace sluice {

class StepLog {
 public:
  // every: steps per line.
  StepLog(int every, int max_seqs) : every_(every), max_seqs_(max_seqs) {}
  // The line, where one is due.
  std::optional<std::string> add(const StepReport& report);

 private:
  // Times of the steps since the last line.
  struct Sums {
    Time plan{0}, step{0}, complete{0};
    uint64_t steps = 0, tokens = 0;
  };
  int every_, max_seqs_;
  Sums now_, all_;
  Time since_{0};
};

}  // namespace sluice
