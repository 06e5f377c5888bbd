// Prefetches a tile's output lines while the tile is computed, for kernels that store results once,
// at the end of K: a step's outputs exceed L2, and stores that miss would stall the next tile's
// loads.
#pragma once

#include <cstdint>

#include "backend/cpu/matmul/matmul_table.h"

namespace sluice::cpu {

// The line at `out`, to be written. (_mm_prefetch has no such hint that every compiler knows.)
[[gnu::always_inline]] inline void fetch_output(const float* out) {
  __asm__ volatile("prefetchw %0" ::"m"(*out));
}

// Where x comes in tiles and no cache keeps the output until it is read, its lines need not be read
// to be written.
[[gnu::always_inline]] inline bool writes_past_cache(const MatmulArgs& a) {
  constexpr int64_t kBytes = 8 << 20;
  return a.tiles && a.all_rows * a.out_stride * 4 >= kBytes && a.out_stride % 16 == 0 &&
         reinterpret_cast<uintptr_t>(a.out) % 64 == 0;
}

}  // namespace sluice::cpu
