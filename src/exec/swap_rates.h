// What moving KV blocks and computing tokens cost on a device, for core/swap_cost.h. Rough figures:
// the two sides differ by far for all but the shortest sequences. Pure.
#pragma once

#include <cstddef>

#include "core/swap_cost.h"
#include "model/model.h"

namespace sluice {

struct SwapRates {
  double copy;     // bytes per second between the pool and host memory
  double compute;  // operations per second of a prompt's matrix products
  double read;     // bytes of weights per second in a decode step
};
inline SwapRates cpu_swap_rates(int threads) { return {8e9, 100e9 * threads, 20e9}; }
inline constexpr SwapRates kGpuSwapRates = {25e9, 400e12, 3e12};  // PCIe 4 x16, H200

// `block_bytes`: K and V of one block; `step_bytes`: weights that a decode step reads.
inline SwapCost swap_cost(const ModelShape& s,
                          size_t block_bytes,
                          size_t step_bytes,
                          const SwapRates& rates) {
  double hidden = s.hidden, heads = s.num_heads + 2.0 * s.num_kv_heads + s.num_heads;
  double weights = s.num_layers * (hidden * heads * s.head_dim + 3 * hidden * s.ffn);
  return {static_cast<double>(block_bytes) / rates.copy, 2 * weights / rates.compute,
          static_cast<double>(step_bytes) / rates.read};
}

}  // namespace sluice
