// Register tiles of the int_block32 kernels for NEON with SDOT that read panels of 8 rows: where a
// tile's operands are, SDOT over sixteen columns, what it stores, and how a call is cut into tiles.
// Each of those files has its own copy, compiled as it is.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "backend/cpu/matmul_kernels.h"

namespace sluice::cpu {
namespace {

constexpr int R = 8;

struct NeonTile {
  const uint8_t* w;  // first group's panel
  const int8_t* q;   // first row's activations
  const float* scale;
  const int32_t* sum;
  float* out;         // first row, first group's first column
  const float* bias;  // first group's, or null
  int64_t cols;
  int64_t out_stride;
  int64_t rows_left;  // rows of W from the first group's on
};

[[gnu::always_inline]] inline float32x4_t load_f16(const uint8_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

[[gnu::always_inline]] inline float32x4x2_t widen_i8(int8x8_t v) {
  const int16x8_t wide = vmovl_s8(v);
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))),
          vcvtq_f32_s32(vmovl_s16(vget_high_s16(wide)))};
}

// A vector of each half of a group.
template <int G, int MT>
using Ints = int32x4_t[G][MT][2];
template <int G, int MT>
using Floats = float32x4_t[G][MT][2];

template <int G, int MT>
[[gnu::always_inline]] inline void store(const NeonTile& t, const Floats<G, MT>& acc) {
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int64_t at = g * R + h * 4;
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) {
        float* out = t.out + m * t.out_stride + at;
        if (t.rows_left >= at + 4) {
          const float32x4_t bias = t.bias ? vld1q_f32(t.bias + at) : vdupq_n_f32(0);
          vst1q_f32(out, vaddq_f32(acc[g][m][h], bias));
        } else {
          float lanes[4];
          vst1q_f32(lanes, acc[g][m][h]);
          for (int64_t i = 0; i < t.rows_left - at; ++i) {
            out[i] = lanes[i] + (t.bias ? t.bias[at + i] : 0);
          }
        }
      }
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

// Runs `pick(groups, m)` over all of a call, rows of x in tiles of nearly equal height.
// Accumulators of four rows of x and one group, two and two, or one row and four groups stay in
// registers.
template <typename Pick>
[[gnu::always_inline]] inline void run_tiles(const MatmulArgs& a, size_t panel, Pick pick) {
  constexpr int64_t kMaxTile = 4;
  const int64_t num32 = a.cols / 32;
  const int64_t tiles = (a.m + kMaxTile - 1) / kMaxTile;
  const int wide = a.m == 1 ? 4 : a.m == 2 ? 2 : 1;
  for (int64_t g = a.group_begin; g < a.group_end;) {
    const int groups = a.group_end - g >= wide ? wide : 1;
    for (int64_t i = 0, m0 = 0; i < tiles; ++i) {
      const int64_t m = a.m / tiles + (i < a.m % tiles ? 1 : 0);
      const NeonTile t{static_cast<const uint8_t*>(a.w) + static_cast<size_t>(g) * panel,
                       a.q + m0 * a.cols,
                       a.scale + m0 * num32,
                       a.sum + m0 * num32,
                       a.out + m0 * a.out_stride + g * R,
                       a.bias ? a.bias + g * R : nullptr,
                       a.cols,
                       a.out_stride,
                       a.rows - g * R};
      pick(groups, m)(t);
      m0 += m;
    }
    g += groups;
  }
}

}  // namespace
}  // namespace sluice::cpu
