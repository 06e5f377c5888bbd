// Register tiles of the int_block32 kernels for SMMLA that read panels of 8 rows and units of 8
// columns: where a tile's operands are, how x is read and results stored, and how a call is cut
// into tiles. Each of those files has its own copy, compiled as it is.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "backend/cpu/matmul_kernels.h"

namespace sluice::cpu {
namespace {

constexpr int R = 8;
constexpr int kPairs = R / 2;

struct I8mmTile {
  const uint8_t* w;  // first group's panel
  const int8_t* q;   // first row's activations
  const float* scale;
  const int32_t* sum;
  float* out;         // first row, first group's first column
  const float* bias;  // first group's, or null
  int64_t cols;
  int64_t out_stride;
  int64_t rows_left;  // rows of W from the first group's on
  int64_t m;          // rows of x; an odd last one is paired with itself
};

[[gnu::always_inline]] inline float32x4_t load_f16(const uint8_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

// Eight values of rows 0..7 as the pairs' lanes (r0, r0, r1, r1), ...
[[gnu::always_inline]] inline void spread(float32x4_t low,
                                          float32x4_t high,
                                          float32x4_t (&out)[kPairs]) {
  out[0] = vzip1q_f32(low, low);
  out[1] = vzip2q_f32(low, low);
  out[2] = vzip1q_f32(high, high);
  out[3] = vzip2q_f32(high, high);
}

[[gnu::always_inline]] inline void spread_f16(const uint8_t* p, float32x4_t (&out)[kPairs]) {
  spread(load_f16(p), load_f16(p + 8), out);
}

[[gnu::always_inline]] inline void store4(const I8mmTile& t,
                                          int64_t row,
                                          int64_t at,
                                          float32x4_t v) {
  float* out = t.out + row * t.out_stride + at;
  if (t.rows_left >= at + 4) {
    vst1q_f32(out, vaddq_f32(v, t.bias ? vld1q_f32(t.bias + at) : vdupq_n_f32(0)));
  } else {
    float lanes[4];
    vst1q_f32(lanes, v);
    for (int64_t i = 0; i < t.rows_left - at; ++i)
      out[i] = lanes[i] + (t.bias ? t.bias[at + i] : 0);
  }
}

// Lanes are (w0x0, w0x1, w1x0, w1x1).
template <int PT>
[[gnu::always_inline]] inline void store_pairs(const I8mmTile& t,
                                               const float32x4_t (&acc)[kPairs][PT]) {
  SLUICE_UNROLL
  for (int i = 0; i < PT; ++i) {
    SLUICE_UNROLL
    for (int h = 0; h < 2; ++h) {
      store4(t, 2 * i, h * 4, vuzp1q_f32(acc[2 * h][i], acc[2 * h + 1][i]));
      if (2 * i + 1 < t.m) {
        store4(t, 2 * i + 1, h * 4, vuzp2q_f32(acc[2 * h][i], acc[2 * h + 1][i]));
      }
    }
  }
}

// Units at `offset` and the next, of PT pairs of rows: [unit][pair].
template <int PT>
[[gnu::always_inline]] inline void load_pairs(const int8_t* const (&x)[PT][2],
                                              int64_t offset,
                                              int8x16_t (&xv)[2][PT]) {
  SLUICE_UNROLL
  for (int i = 0; i < PT; ++i) {
    const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(x[i][0] + offset));
    const int64x2_t b = vreinterpretq_s64_s8(vld1q_s8(x[i][1] + offset));
    xv[0][i] = vreinterpretq_s8_s64(vzip1q_s64(a, b));
    xv[1][i] = vreinterpretq_s8_s64(vzip2q_s64(a, b));
  }
}

// A pair's two values as lanes (v0, v1, v0, v1).
[[gnu::always_inline]] inline float32x4_t both(float v0, float v1) {
  const float32x2_t v = vset_lane_f32(v1, vdup_n_f32(v0), 1);
  return vcombine_f32(v, v);
}

// A kernel's tiles: one row of x by four groups and by one, one and two pairs of rows by a group.
using TileFn = void (*)(const I8mmTile&);
struct TileFns {
  TileFn row_by_four, row, pair, two_pairs;
};

// Runs them over all of a call. Two pairs keep their accumulators, integer and float, in registers
// beside the weights.
[[gnu::always_inline]] inline void run_tiles(const MatmulArgs& a,
                                             size_t panel,
                                             const TileFns& fns) {
  constexpr int64_t kMaxTile = 4;
  const int64_t num32 = a.cols / 32;
  const int64_t tiles = (a.m + kMaxTile - 1) / kMaxTile;
  for (int64_t g = a.group_begin; g < a.group_end;) {
    const int groups = a.m == 1 && a.group_end - g >= 4 ? 4 : 1;
    for (int64_t i = 0, m0 = 0; i < tiles; ++i) {
      const int64_t m = a.m - m0 < kMaxTile ? a.m - m0 : kMaxTile;
      const I8mmTile t{static_cast<const uint8_t*>(a.w) + static_cast<size_t>(g) * panel,
                       a.q + m0 * a.cols,
                       a.scale + m0 * num32,
                       a.sum + m0 * num32,
                       a.out + m0 * a.out_stride + g * R,
                       a.bias ? a.bias + g * R : nullptr,
                       a.cols,
                       a.out_stride,
                       a.rows - g * R,
                       m};
      const TileFn fn = groups == 4 ? fns.row_by_four
                        : m == 1    ? fns.row
                        : m == 2    ? fns.pair
                                    : fns.two_pairs;
      fn(t);
      m0 += m;
    }
    g += groups;
  }
}

}  // namespace
}  // namespace sluice::cpu
