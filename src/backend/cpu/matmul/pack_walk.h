// The walk from rows of a matrix to the panels of pack_plan.h. Portable: it runs at load.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backend/cpu/matmul/matmul_table.h"

namespace sluice::cpu {

// put(panel, row, present) for each panel of R rows: those from `row` on, of which `present` exist.
template <int R, typename Put>
void for_panels(const PackArgs& a, size_t panel_bytes, Put put) {
  for (int64_t g = a.group_begin; g < a.group_end; ++g) {
    put(static_cast<uint8_t*>(a.dst) + static_cast<size_t>(g) * panel_bytes, g * R,
        std::clamp<int64_t>(a.rows - g * R, 0, R));
  }
}

// put(panel, b, r, block) for block b of each row, the r-th of its panel. Rows past the last are
// zero.
template <typename Block, int R, typename Put>
void pack_blocks(const PackArgs& a, size_t panel_bytes, Put put) {
  const int64_t blocks = a.cols / Block::kElems;
  for_panels<R>(a, panel_bytes, [&](uint8_t* panel, int64_t row, int64_t present) {
    if (present < R) std::memset(panel, 0, panel_bytes);
    for (int r = 0; r < present; ++r) {
      const auto* src =
          static_cast<const std::byte*>(a.src) + (row + r) * blocks * int64_t{sizeof(Block)};
      for (int64_t b = 0; b < blocks; ++b) {
        Block block;
        std::memcpy(&block, src + b * int64_t{sizeof(Block)}, sizeof(Block));
        put(panel, b, r, block);
      }
    }
  });
}

}  // namespace sluice::cpu
