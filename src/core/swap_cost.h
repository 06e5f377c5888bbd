// Whether moving a preempted sequence's blocks to host memory and back is cheaper than computing
// them again. Pure; the numbers are the executor's (exec/executor_config.h).
#pragma once

namespace sluice {

// In seconds. All zero: moving costs nothing.
struct SwapCost {
  double move_block = 0;     // one block, one way
  double compute_token = 0;  // a prompt token, in a step of many
  double delay = 0;          // until the sequence may go on: the step that brings its blocks back
  bool operator==(const SwapCost&) const = default;
};

inline bool swap_pays(int num_blocks, int num_tokens, const SwapCost& cost) {
  return 2 * cost.move_block * num_blocks + cost.delay <= cost.compute_token * num_tokens;
}

}  // namespace sluice
