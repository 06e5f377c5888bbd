// Whether sequences fit the pool to their ends, from how long outputs got: for every one the chance
// that it still runs some steps from now, the blocks that all are then expected to hold, and a
// margin for luck. Owned by the scheduler, reused; pure.
#pragma once

#include <cstdint>
#include <vector>

#include "core/length_predictor.h"

namespace sluice {

class PeakForecast {
 public:
  struct Growth {
    const LengthHistogram* ended = nullptr;  // outputs like this one; null: it ends at `predicted`
    int num_output = 0;                      // so far
    int predicted = 0;
    int max_new = 0;
    int64_t positions = 0;  // prompt and output so far
    int64_t windows = 0;    // blocks in window groups
    int num = 1;            // sequences that grow like this
    int curve = -1;         // filled in, as is
    double reached = 1;     // the share of such outputs that get as far as it has
    bool operator==(const Growth&) const = default;
  };

  void reserve(size_t num) { growths_.reserve(num); }
  void clear() noexcept { growths_.clear(), curves_.clear(); }
  void add(const Growth& growth);
  // Blocks of `groups` cache groups and the window groups' together: no more than `usable` at any
  // time, 99 times of 100.
  bool fits(int64_t usable, int64_t groups, int block_size);
  bool operator==(const PeakForecast&) const = default;

 private:
  struct Known {
    const LengthHistogram* ended;
    SurvivalCurve curve;
    bool operator==(const Known&) const = default;
  };
  double chance(const Growth& g, int steps) const;
  static int left(const Growth& g);

  std::vector<Growth> growths_;
  std::vector<Known> curves_;
};

}  // namespace sluice
