// Register tiles of the int_block32 kernels for NEON with SDOT that read panels of 8 rows: SDOT
// over sixteen columns, and what a tile stores. Each of those files has its own copy, compiled as
// it is.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_panels_neon.h"
#include "backend/cpu/matmul/matmul_tiles_inl.h"

namespace sluice::cpu {
namespace {

// A vector of each half of a group.
template <int G, int MT>
using Ints = int32x4_t[G][MT][2];
template <int G, int MT>
using Floats = float32x4_t[G][MT][2];

template <int G, int MT>
[[gnu::always_inline]] inline void store(const Tile& t, const Floats<G, MT>& acc) {
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int h = 0; h < 2; ++h) {
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) store4(t, m, g * R + h * 4, acc[g][m][h]);
    }
  }
}

template <int G, int MT>
[[gnu::always_inline]] inline void clear(Ints<G, MT>& idot) {
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) idot[g][m][0] = idot[g][m][1] = vdupq_n_s32(0);
  }
}

template <int G, int MT>
[[gnu::always_inline]] inline void clear(Floats<G, MT>& acc) {
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) acc[g][m][0] = acc[g][m][1] = vdupq_n_f32(0);
  }
}

template <int kLane, int MT>
[[gnu::always_inline]] inline void dot_unit(int8x16_t w0,
                                            int8x16_t w1,
                                            const int8x16_t (&x)[MT],
                                            int32x4_t (&idot)[MT][2]) {
  SLUICE_UNROLL
  for (int m = 0; m < MT; ++m) {
    idot[m][0] = vdotq_laneq_s32(idot[m][0], w0, x[m], kLane);
    idot[m][1] = vdotq_laneq_s32(idot[m][1], w1, x[m], kLane);
  }
}

// Weights of four units (16 columns) of one group as signed bytes, from where `load` finds them.
template <int MT, typename Load>
[[gnu::always_inline]] inline void dot_16(Load load,
                                          const int8x16_t (&x)[MT],
                                          int32x4_t (&idot)[MT][2]) {
  dot_unit<0, MT>(load(0, 0), load(0, 1), x, idot);
  hold_loads();
  dot_unit<1, MT>(load(1, 0), load(1, 1), x, idot);
  hold_loads();
  dot_unit<2, MT>(load(2, 0), load(2, 1), x, idot);
  hold_loads();
  dot_unit<3, MT>(load(3, 0), load(3, 1), x, idot);
  hold_loads();
}

template <int MT>
[[gnu::always_inline]] inline void load_x(const int8_t* x, int64_t cols, int8x16_t (&out)[MT]) {
  SLUICE_UNROLL
  for (int m = 0; m < MT; ++m) out[m] = vld1q_s8(x + m * cols);
}

// Accumulators of four rows of x and one group, two and two, or one row and four groups stay in
// registers.
struct NeonBlocks {
  static constexpr int kRows = R, kStep = 1;
  static constexpr Heights kMost{4, 2, 1};
};

}  // namespace
}  // namespace sluice::cpu
