// For kernels that store their results once, at the end of K: while a tile is computed its lines of
// the output come to the cache. A step's outputs are larger than the second cache, and stores that
// wait for them would hold up the next tile's loads.
#pragma once

namespace sluice::cpu {

// The line at `out`, to be written. (_mm_prefetch has no such hint that every compiler knows.)
[[gnu::always_inline]] inline void fetch_output(const float* out) {
  __asm__ volatile("prefetchw %0" ::"m"(*out));
}

}  // namespace sluice::cpu
