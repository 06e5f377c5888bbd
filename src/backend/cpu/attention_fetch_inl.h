// Prefetches of what the attention kernel reads next, spread evenly over the current work: after a
// burst of them the work would wait for memory, and memory would then be idle.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/attention.h"
#include "backend/cpu/attention_tile_inl.h"

namespace sluice {

// A tile's keys, or values, of all kv heads of a job.
template <typename V>
struct Fetch {
  const std::byte* from[kTile / 8];  // its blocks, from the job's first kv head on
  int num = 0;
  int64_t at = 0;              // how far they are fetched
  uint32_t step = 0, due = 0;  // cache lines of each per unit of work, times 2^16

  // `bytes` of every block that holds positions of the tile at `base`, over `work`.
  Fetch(const typename Tiles<V>::Place& place,
        const std::byte* first,
        int64_t bytes,
        int64_t base,
        int work) {
    const int size = place.block_size();
    if (base >= place.end || base % size != 0) return;  // a block's first tile has fetched it all
    const int64_t end = base + kTile < place.end ? base + kTile : place.end;
    for (int64_t pos = base; pos < end; pos += size) from[num++] = first + place.block(pos);
    step = static_cast<uint32_t>((bytes + 63) / 64 * 65536 / work);
  }
  // After `work` more.
  void pace(int work) {
    for (due += static_cast<uint32_t>(work) * step; due >= 65536; due -= 65536, at += 64) {
      if (num == 4) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) V::prefetch(from[i] + at);
      } else {
        for (int i = 0; i < num; ++i) V::prefetch(from[i] + at);
      }
    }
  }
};

}  // namespace sluice
