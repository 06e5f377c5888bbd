// Shapes of the AMX tile registers for matrix kernels: 0 to 3 are int32 or f32 results, 4 and 5
// left factors (rows of x), 6 and 7 right factors (rows of W, interleaved). Each thread has its
// own; a kernel sets them when it begins and releases them when it ends, so that no context switch
// in between calls has them to save.
#pragma once

#include <immintrin.h>

#include <cstdint>

#if defined(SLUICE_STAND_INS)
#include "backend/cpu/matmul/stand_in_amx.h"
#endif

namespace sluice::cpu {

struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// `rows` of x; left rows of `left_bytes`; right factors of `right_rows` of 64 bytes.
[[gnu::always_inline]] inline void configure_tiles(int rows, int left_bytes, int right_rows) {
  TileShapes t;
  for (int i = 0; i < 8; ++i) {
    t.row_bytes[i] = static_cast<uint16_t>(i == 4 || i == 5 ? left_bytes : 64);
    t.rows[i] = static_cast<uint8_t>(i < 6 ? rows : right_rows);
  }
#if defined(SLUICE_STAND_INS)
  stand_in_configure(t.rows, t.row_bytes);
#else
  // Not the intrinsic: GCC 12 takes it to read 8 bytes.
  __asm__ volatile("ldtilecfg %0" : : "m"(t));
#endif
}

}  // namespace sluice::cpu
