// What moving KV blocks and computing tokens cost on a device, for core/swap_cost.h. Copies are
// measured when an engine starts; the rest are rough figures: the two sides differ by far for all
// but the shortest sequences.
#pragma once

#include <cstddef>

#include "backend/device.h"
#include "base/clock.h"
#include "core/swap_cost.h"
#include "model/model.h"

namespace sluice {

// Bytes per second from the pool to host memory, and back.
struct CopyRates {
  double out, in;
};
struct SwapRates {
  CopyRates copy;
  double compute;  // operations per second of a prompt's matrix products
  double read;     // bytes of weights per second in a decode step
};
// Where nothing was measured: estimates before a device is open.
inline SwapRates cpu_swap_rates(int threads) { return {{8e9, 8e9}, 100e9 * threads, 20e9}; }
inline constexpr SwapRates kGpuSwapRates = {{25e9, 25e9}, 400e12, 3e12};  // PCIe 4 x16, H200

// Copies a few megabytes on the threads that move blocks, the way executors do; waits, some
// milliseconds. By the thread that runs the backend's ops.
CopyRates measure_copies(Backend& backend, const Clock& clock);
CopyRates measure_copies(Device& device);

// `block_bytes`: K and V of one block; `step_bytes`: weights that a decode step reads.
inline SwapCost swap_cost(const ModelShape& s,
                          size_t block_bytes,
                          size_t step_bytes,
                          const SwapRates& rates) {
  double hidden = s.hidden, heads = s.num_heads + 2.0 * s.num_kv_heads + s.num_heads;
  double weights = s.num_layers * (hidden * heads * s.head_dim + 3 * hidden * s.ffn);
  // What is moved goes both ways.
  double one_way = (1 / rates.copy.out + 1 / rates.copy.in) / 2;
  return {static_cast<double>(block_bytes) * one_way, 2 * weights / rates.compute,
          static_cast<double>(step_bytes) / rates.read};
}

}  // namespace sluice
