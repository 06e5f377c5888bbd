// Outputs of a register tile whose sums wait in `out` between ranges of K. Each file that includes
// this has its own copy.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "backend/cpu/matmul/matmul_kernels.h"

namespace sluice::cpu {
namespace {

// Sums of eight rows of W by a pair of rows of x are four vectors: of each pair of rows of W, lanes
// (w0x0, w0x1, w1x0, w1x1).
struct Sums {
  float* out;         // first row of x, first row of W
  const float* bias;  // from that row of W on, or null
  int64_t stride;
  int64_t rows_left;  // rows of W from the first on
  int64_t m;          // rows of x
  bool first, last;   // range of K

  // Rows [at, at + 4) of W for row r of x, of the ranges before; zeros where there is none.
  [[gnu::always_inline]] float32x4_t take(int64_t r, int64_t at) const {
    const float* from = out + r * stride + at;
    if (r < m && rows_left >= at + 4) return vld1q_f32(from);
    float lanes[4] = {};
    for (int64_t i = 0; r < m && i < rows_left - at; ++i) lanes[i] = from[i];
    return vld1q_f32(lanes);
  }
  // The last range adds the bias, or zero.
  [[gnu::always_inline]] void put(int64_t r, int64_t at, float32x4_t v) const {
    if (r >= m) return;
    float* to = out + r * stride + at;
    if (rows_left >= at + 4) {
      if (last) v = vaddq_f32(v, bias ? vld1q_f32(bias + at) : vdupq_n_f32(0));
      return vst1q_f32(to, v);
    }
    float lanes[4];
    vst1q_f32(lanes, v);
    for (int64_t i = 0; i < rows_left - at; ++i)
      to[i] = last ? lanes[i] + (bias ? bias[at + i] : 0) : lanes[i];
  }

  // Rows [at, at + 8) of W by pair i of rows of x, of the ranges before.
  [[gnu::always_inline]] void take_pair(int i, int64_t at, float32x4_t (&v)[4]) const {
    SLUICE_UNROLL
    for (int h = 0; h < 2; ++h) {
      const float32x4_t a = take(2 * i, at + h * 4), b = take(2 * i + 1, at + h * 4);
      v[2 * h] = vzip1q_f32(a, b);
      v[2 * h + 1] = vzip2q_f32(a, b);
    }
  }
  [[gnu::always_inline]] void put_pair(int i, int64_t at, const float32x4_t (&v)[4]) const {
    SLUICE_UNROLL
    for (int h = 0; h < 2; ++h) {
      put(2 * i, at + h * 4, vuzp1q_f32(v[2 * h], v[2 * h + 1]));
      put(2 * i + 1, at + h * 4, vuzp2q_f32(v[2 * h], v[2 * h + 1]));
    }
  }
};

}  // namespace
}  // namespace sluice::cpu
