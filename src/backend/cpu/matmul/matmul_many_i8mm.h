// Many rows of x through SMMLA, for int_block32 formats whose panels have 8 rows in four pairs.
// What a tile of few rows does again and again is done once: rows of x are laid out in pairs, with
// their scales in lanes, for all groups of a call; a range of K of a group is unpacked to bytes,
// with its scales in lanes, for all rows of x. What is left per block and 8 x 4 outputs is 32
// SMMLA, 8 conversions, 8 products of scales and 8 FMAs (8 more with minimums), and 30 loads. A
// range fits into the first-level cache; between ranges sums wait in `out`. Each file that includes
// this has its own copy.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_panels_neon.h"
#include "backend/cpu/matmul/matmul_sums_neon.h"
#include "backend/cpu/matmul/matmul_tile_i8mm.h"

namespace sluice::cpu {
namespace {

constexpr int64_t kManyRows = 128;  // of x at once
constexpr int64_t kManyPairs = 2;   // of rows of x in a tile
constexpr int64_t kRangeBlocks = 32;

// 32 columns of a pair of rows of x; lanes are (x0, x1, x0, x1).
struct alignas(16) PairBlock {
  int8_t q[4][16];  // units of 8 columns
  float scale[4];
  union {
    float sum[4];       // of the codes, times scale
    int8_t sums16[16];  // Minimums::of_sixteen: of either sixteen codes, as put_sums16 has them
  };
};

// 32 columns of a group; lanes are (w0, w0, w1, w1) of a pair of rows.
struct alignas(16) GroupBlock {
  int8_t q[4][kPairs][16];  // [unit][pair]: the quants that codes mean
  float scale[kPairs][4];
  float min[kPairs][4];
  int8_t mins16[kPairs][16];  // Minimums::of_sixteen
};

// How a block's minimums become part of an output.
enum class Minimums : uint8_t {
  none,
  added,       // q4_1: acc = fma(min, d_x * sum, acc)
  of_sixteen,  // q2_k: integers of sixteen columns each, in units of `min`
};

template <Format F>
inline constexpr Minimums kMinimums = F == Format::q2_k ? Minimums::of_sixteen
                                      : kHasMin<F>      ? Minimums::added
                                                        : Minimums::none;

// SMMLA multiplies bytes, and sums of sixteen codes have 12 bits: s = low + 128 high, and
// min * s = min * low + 2 (8 min) (8 high) with high in [-16, 15] and min < 16.
[[gnu::always_inline]] inline void put_sums16(const int8_t* q, int8_t* to) {
  SLUICE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int sum = vaddlvq_s8(vld1q_s8(q + half * 16));
    to[half] = static_cast<int8_t>(sum & 127);
    to[2 + half * 2] = to[3 + half * 2] = static_cast<int8_t>((sum >> 7) * 8);
    to[6 + half] = 0;
  }
}

// idot += a block.
template <int PT>
[[gnu::always_inline]] inline void dot_units(const GroupBlock& w,
                                             const PairBlock* const (&x)[PT],
                                             int32x4_t (&idot)[kPairs][PT]) {
  SLUICE_UNROLL
  for (int u = 0; u < 4; ++u) {
    int8x16_t xv[PT];
    SLUICE_UNROLL
    for (int i = 0; i < PT; ++i) xv[i] = vld1q_s8(x[i]->q[u]);
    SLUICE_UNROLL
    for (int p = 0; p < kPairs; ++p) {
      const int8x16_t wv = vld1q_s8(w.q[u][p]);
      SLUICE_UNROLL
      for (int i = 0; i < PT; ++i) idot[p][i] = vmmlaq_s32(idot[p][i], wv, xv[i]);
    }
    hold_loads();
  }
}

template <int PT>
[[gnu::always_inline]] inline void clear(int32x4_t (&idot)[kPairs][PT]) {
  SLUICE_UNROLL
  for (int p = 0; p < kPairs; ++p) {
    SLUICE_UNROLL
    for (int i = 0; i < PT; ++i) idot[p][i] = vdupq_n_s32(0);
  }
}

// One group by PT pairs of rows of x, over a range. x: the first pair's blocks, pairs `pitch`
// apart.
template <Minimums kMin, int PT>
[[gnu::noinline]] void many_tile(
    const GroupBlock* w, int64_t blocks, const PairBlock* x0, int64_t pitch, const Sums& to) {
  float32x4_t acc[kPairs][PT];
  clear<PT>(acc);
  float32x4_t pair[kPairs];
  if (!to.first) {
    SLUICE_UNROLL
    for (int i = 0; i < PT; ++i) {
      to.take_pair(i, 0, pair);
      SLUICE_UNROLL
      for (int p = 0; p < kPairs; ++p) acc[p][i] = pair[p];
    }
  }
  const PairBlock* x[PT];
  SLUICE_UNROLL
  for (int i = 0; i < PT; ++i) x[i] = x0 + i * pitch;
  for (const GroupBlock* const end = w + blocks; w != end; ++w) {
    int32x4_t idot[kPairs][PT];
    clear<PT>(idot);
    dot_units<PT>(*w, x, idot);
    SLUICE_UNROLL
    for (int p = 0; p < kPairs; ++p) {
      const float32x4_t dw = vld1q_f32(w->scale[p]);
      const float32x4_t mw = kMin == Minimums::none ? dw : vld1q_f32(w->min[p]);
      SLUICE_UNROLL
      for (int i = 0; i < PT; ++i) {
        const float32x4_t dot = vcvtq_f32_s32(idot[p][i]), dx = vld1q_f32(x[i]->scale);
        if constexpr (kMin == Minimums::of_sixteen) {
          const int32x4_t sum =
              vmmlaq_s32(vdupq_n_s32(0), vld1q_s8(w->mins16[p]), vld1q_s8(x[i]->sums16));
          const float32x4_t value = vfmsq_f32(vmulq_f32(dw, dot), mw, vcvtq_f32_s32(sum));
          acc[p][i] = vfmaq_f32(acc[p][i], dx, value);
        } else {
          acc[p][i] = vfmaq_f32(acc[p][i], vmulq_f32(dw, dx), dot);
        }
        if constexpr (kMin == Minimums::added) {
          acc[p][i] = vfmaq_f32(acc[p][i], mw, vld1q_f32(x[i]->sum));
        }
      }
    }
    SLUICE_UNROLL
    for (int i = 0; i < PT; ++i) ++x[i];
  }
  SLUICE_UNROLL
  for (int i = 0; i < PT; ++i) {
    SLUICE_UNROLL
    for (int p = 0; p < kPairs; ++p) pair[p] = acc[p][i];
    to.put_pair(i, 0, pair);
  }
}

// Blocks [b0, b0 + blocks) of rows row and row + 1 of x; the last row is paired with itself.
template <Minimums kMin>
void lay_out_pair(const MatmulArgs& a, int64_t row, int64_t b0, int64_t blocks, PairBlock* to) {
  const int64_t num = a.cols / 32, other = row + 1 < a.m ? row + 1 : row;
  const int8_t *q0 = a.q + row * a.cols, *q1 = a.q + other * a.cols;
  const float *d0 = a.scale + row * num, *d1 = a.scale + other * num;
  const int32_t *s0 = a.sum + row * num, *s1 = a.sum + other * num;
  for (int64_t b = b0; b < b0 + blocks; ++b, ++to) {
    SLUICE_UNROLL
    for (int u = 0; u < 4; ++u) {
      const int64_t k = b * 32 + u * 8;
      vst1q_s8(to->q[u], vcombine_s8(vld1_s8(q0 + k), vld1_s8(q1 + k)));
    }
    vst1q_f32(to->scale, both(d0[b], d1[b]));
    if constexpr (kMin == Minimums::of_sixteen) {
      put_sums16(q0 + b * 32, to->sums16);
      put_sums16(q1 + b * 32, to->sums16 + 8);
    } else {
      vst1q_f32(to->sum,
                both(d0[b] * static_cast<float>(s0[b]), d1[b] * static_cast<float>(s1[b])));
    }
  }
}

// Rows [m0, m0 + rows) of x. unpack(panel, b, to): block b of a group.
template <Minimums kMin, typename Unpack>
[[gnu::always_inline]] inline void run_many_rows(const MatmulArgs& a,
                                                 size_t panel,
                                                 int64_t m0,
                                                 int64_t rows,
                                                 PairBlock* x,
                                                 const Unpack& unpack) {
  GroupBlock w[kRangeBlocks];
  const int64_t all = a.cols / 32, pairs = (rows + 1) / 2;
  for (int64_t b0 = 0; b0 < all; b0 += kRangeBlocks) {
    const int64_t blocks = all - b0 < kRangeBlocks ? all - b0 : kRangeBlocks;
    for (int64_t i = 0; i < pairs; ++i)
      lay_out_pair<kMin>(a, m0 + 2 * i, b0, blocks, x + i * blocks);
    for (int64_t g = a.group_begin; g < a.group_end; ++g) {
      const uint8_t* from = static_cast<const uint8_t*>(a.w) + static_cast<size_t>(g) * panel;
      for (int64_t b = 0; b < blocks; ++b) unpack(from, b0 + b, w[b]);
      for (int64_t i = 0; i < pairs; i += kManyPairs) {
        const int64_t m = rows - 2 * i < 2 * kManyPairs ? rows - 2 * i : 2 * kManyPairs;
        const Sums to{a.out + (m0 + 2 * i) * a.out_stride + g * R,
                      a.bias ? a.bias + g * R : nullptr,
                      a.out_stride,
                      a.rows - g * R,
                      m,
                      b0 == 0,
                      b0 + blocks == all};
        m <= 2 ? many_tile<kMin, 1>(w, blocks, x + i * blocks, blocks, to)
               : many_tile<kMin, 2>(w, blocks, x + i * blocks, blocks, to);
      }
    }
  }
}

template <Minimums kMin, typename Unpack>
[[gnu::always_inline]] inline void run_many(const MatmulArgs& a,
                                            size_t panel,
                                            const Unpack& unpack) {
  PairBlock x[kManyRows / 2 * kRangeBlocks];
  const int64_t pairs = (a.m + 1) / 2;
  const int64_t chunks = (pairs + kManyRows / 2 - 1) / (kManyRows / 2);
  for (int64_t i = 0; i < chunks; ++i) {
    const int64_t begin = 2 * (pairs * i / chunks), end = 2 * (pairs * (i + 1) / chunks);
    run_many_rows<kMin>(a, panel, begin, (end < a.m ? end : a.m) - begin, x, unpack);
  }
}

}  // namespace
}  // namespace sluice::cpu
