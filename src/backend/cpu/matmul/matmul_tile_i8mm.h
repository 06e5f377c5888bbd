// Register tiles of the integer kernels for SMMLA that read panels of 8 rows and units of 8
// columns: how x is read, multiplied and stored in pairs of rows, and a row alone through SDOT.
// Each of those files has its own copy, compiled as it is.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_panels_neon.h"
#include "backend/cpu/matmul/matmul_tiles_inl.h"

namespace sluice::cpu {
namespace {

constexpr int kPairs = R / 2;

// ---- one row of x: SDOT ----

// The units of 32 columns, each twice.
[[gnu::always_inline]] inline void load_units(const int8_t* q, int8x16_t (&x)[4]) {
  SLUICE_UNROLL
  for (int u = 0; u < 4; ++u) {
    const int8x8_t half = vld1_s8(q + u * 8);
    x[u] = vcombine_s8(half, half);
  }
}

// The dot of units [u0, u0 + num) in lanes of rows 0..3 and 4..7. load(u, p): unit u of pair p.
template <typename Load>
[[gnu::always_inline]] inline int32x4x2_t dot_row(Load load,
                                                  const int8x16_t (&x)[4],
                                                  int u0,
                                                  int num) {
  int32x4_t d[kPairs];
  SLUICE_UNROLL
  for (int p = 0; p < kPairs; ++p) d[p] = vdupq_n_s32(0);
  SLUICE_UNROLL
  for (int u = u0; u < u0 + num; ++u) {
    SLUICE_UNROLL
    for (int p = 0; p < kPairs; ++p) d[p] = vdotq_s32(d[p], load(u, p), x[u]);
    hold_loads();
  }
  return {vpaddq_s32(d[0], d[1]), vpaddq_s32(d[2], d[3])};
}

template <int G>
[[gnu::always_inline]] inline void store_row(const Tile& t, const float32x4_t (&acc)[G][2]) {
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    store4(t, 0, g * R, acc[g][0]);
    store4(t, 0, g * R + 4, acc[g][1]);
  }
}

// ---- PT pairs of rows of x: SMMLA ----

// Where the rows of pairs are, `stride` apart. An odd last of m is paired with itself.
template <int PT, typename T>
[[gnu::always_inline]] inline void find_pairs(const T* first,
                                              int64_t stride,
                                              int64_t m,
                                              const T* (&rows)[PT][2]) {
  SLUICE_UNROLL
  for (int i = 0; i < PT; ++i) {
    rows[i][0] = first + 2 * i * stride;
    rows[i][1] = 2 * i + 1 < m ? rows[i][0] + stride : rows[i][0];
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

// idot += units u0 and u0 + 1. load(u, p): unit u of pair p of rows of W.
template <int PT, typename Load>
[[gnu::always_inline]] inline void dot_pairs(Load load,
                                             int u0,
                                             const int8x16_t (&xv)[2][PT],
                                             int32x4_t (&idot)[kPairs][PT]) {
  SLUICE_UNROLL
  for (int u = 0; u < 2; ++u) {
    SLUICE_UNROLL
    for (int p = 0; p < kPairs; ++p) {
      const int8x16_t w = load(u0 + u, p);
      SLUICE_UNROLL
      for (int i = 0; i < PT; ++i) idot[p][i] = vmmlaq_s32(idot[p][i], w, xv[u][i]);
    }
    hold_loads();
  }
}

template <int PT>
[[gnu::always_inline]] inline void clear(float32x4_t (&acc)[kPairs][PT]) {
  SLUICE_UNROLL
  for (int p = 0; p < kPairs; ++p) {
    SLUICE_UNROLL
    for (int i = 0; i < PT; ++i) acc[p][i] = vdupq_n_f32(0);
  }
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

// Lanes are (w0x0, w0x1, w1x0, w1x1).
template <int PT>
[[gnu::always_inline]] inline void store_pairs(const Tile& t,
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

// ---- both ----

// The tiles of an int_block32 kernel: row<groups>, and pairs<PT> for one group. Two pairs keep
// their accumulators, integer and float, in registers beside the weights.
template <typename Tiles>
struct I8mmBlocks {
  static constexpr int kRows = R, kStep = 2;
  static constexpr Heights kMost{2, 1, 1};

  template <int G, int PT>
  static void tile(const Tile& t) {
    if (PT == 1 && t.m == 1) return Tiles::template row<G>(t);
    if constexpr (G == 1) Tiles::template pairs<PT>(t);
  }
};

template <typename Tiles>
[[gnu::always_inline]] inline void run_blocks(const MatmulArgs& a, size_t panel) {
  using Kernel = I8mmBlocks<Tiles>;
  run_tiles<Kernel>(a, panel, a.cols / 32, a.m == 1 ? Kernel::kMost : Heights{2, 0, 0});
}

}  // namespace
}  // namespace sluice::cpu
