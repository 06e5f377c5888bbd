// Many rows of x through SMMLA, for int_super formats. Rows of x are laid out in pairs once for all
// groups of a call, and a range of K of a group is unpacked once for all rows of x. A tile is 8
// rows of W by up to 6 of x: 12 vectors of running dots and 12 of sums in registers. Running dots
// are never reset within a super-block: with c[i] the dot of parts 0 to i,
//   sum of scale[i] (c[i] - c[i - 1]) = sum of (scale[i] - scale[i + 1]) c[i], scale[last + 1] = 0,
// so a part costs one multiplication per vector. Each file that includes this has its own copy.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_sums_neon.h"
#include "backend/cpu/matmul/matmul_supers_neon.h"
#include "backend/cpu/matmul/matmul_tile_i8mm.h"

namespace sluice::cpu {
namespace {

constexpr int64_t kSuperRows = 192;  // of x at once
constexpr int64_t kSuperPairs = 3;   // of rows of x in a tile
constexpr int64_t kRangeSupers = 4;  // of K at once: 14 KiB of W, 7 KiB of x beside it

// Offsets of a pair of rows of W for SMMLA, eight parts to a vector: [eight][pair].
template <Format F>
struct PairOffsets {
  int8x16_t of[kSuperParts<F> / 8][kPairs];
};

template <Format F>
[[gnu::always_inline]] inline PairOffsets<F> pair_offsets(const Offsets<F>& o) {
  PairOffsets<F> to;
  SLUICE_UNROLL
  for (int n = 0; n < kSuperParts<F> / 8; ++n) {
    SLUICE_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int32x4_t a = vreinterpretq_s32_s8(o.of[2 * n][h]);
      const int32x4_t b = vreinterpretq_s32_s8(o.of[2 * n + 1][h]);
      to.of[n][2 * h] = vreinterpretq_s8_s32(vzip1q_s32(a, b));
      to.of[n][2 * h + 1] = vreinterpretq_s8_s32(vzip2q_s32(a, b));
    }
  }
  return to;
}

// Sums of a pair of rows of x.
template <Format F>
struct PairSums {
  int8x16_t low[kSuperParts<F> / 8], high[kSuperParts<F> / 8];
};

template <Format F>
[[gnu::always_inline]] inline PairSums<F> pair_sums(const int16_t* first, const int16_t* second) {
  const PartSums<F> a = part_sums<F>(first), b = part_sums<F>(second);
  if constexpr (F == Format::q6_k) {
    return {{vcombine_s8(vget_low_s8(a.low), vget_low_s8(b.low)),
             vcombine_s8(vget_high_s8(a.low), vget_high_s8(b.low))},
            {vcombine_s8(vget_low_s8(a.high), vget_low_s8(b.high)),
             vcombine_s8(vget_high_s8(a.high), vget_high_s8(b.high))}};
  } else {
    return {{vcombine_s8(a.low, b.low)}, {vcombine_s8(a.high, b.high)}};
  }
}

// Lanes are (w0x0, w0x1, w1x0, w1x1).
template <Format F>
[[gnu::always_inline]] inline int32x4_t dot_offsets(const PairOffsets<F>& w,
                                                    const PairSums<F>& x,
                                                    int p) {
  int32x4_t sum = vdupq_n_s32(0);
  SLUICE_UNROLL
  for (int n = 0; n < kSuperParts<F> / 8; ++n) sum = vmmlaq_s32(sum, w.of[n][p], x.high[n]);
  sum = vshlq_n_s32(sum, 7);
  SLUICE_UNROLL
  for (int n = 0; n < kSuperParts<F> / 8; ++n) sum = vmmlaq_s32(sum, w.of[n][p], x.low[n]);
  return sum;
}

// A super-block of a pair of rows of x; lanes are (x0, x1, x0, x1).
struct alignas(16) PairSuper {
  int8_t q[32][16];          // units of 8 columns
  int8_t low[16], high[16];  // sums of 32 columns (PartSums)
  float scale[4];
};

// A super-block of a group; lanes are (w0, w0, w1, w1) of a pair of rows.
template <Format F>
struct alignas(16) GroupSuper {
  int8_t q[32][kPairs][16];                 // [unit][pair]: the quants that codes mean
  int32_t step[kSuperParts<F>][kPairs][4];  // a part's scale minus the next part's
  float d[kPairs][4], dmin[kPairs][4];
  int8_t mins[kPairs][16];
};

template <int PT>
[[gnu::always_inline]] inline void clear(int32x4_t (&v)[kPairs][PT]) {
  SLUICE_UNROLL
  for (int p = 0; p < kPairs; ++p) {
    SLUICE_UNROLL
    for (int i = 0; i < PT; ++i) v[p][i] = vdupq_n_s32(0);
  }
}

// total = the exact dots of a super-block.
template <Format F, int PT>
[[gnu::always_inline]] inline void dot_super(const GroupSuper<F>& w,
                                             const PairSuper* const (&x)[PT],
                                             int32x4_t (&total)[kPairs][PT]) {
  constexpr int kUnits = 32 / kSuperParts<F>;
  int32x4_t dot[kPairs][PT];
  clear<PT>(dot);
  clear<PT>(total);
  for (int part = 0; part < kSuperParts<F>; ++part) {
    SLUICE_UNROLL
    for (int u = part * kUnits, last = u + kUnits; u < last; ++u) {
      int8x16_t xv[PT];
      SLUICE_UNROLL
      for (int i = 0; i < PT; ++i) xv[i] = vld1q_s8(x[i]->q[u]);
      SLUICE_UNROLL
      for (int p = 0; p < kPairs; ++p) {
        const int8x16_t wv = vld1q_s8(w.q[u][p]);
        SLUICE_UNROLL
        for (int i = 0; i < PT; ++i) dot[p][i] = vmmlaq_s32(dot[p][i], wv, xv[i]);
      }
      hold_loads();
    }
    SLUICE_UNROLL
    for (int p = 0; p < kPairs; ++p) {
      const int32x4_t step = vld1q_s32(w.step[part][p]);
      SLUICE_UNROLL
      for (int i = 0; i < PT; ++i) total[p][i] = vmlaq_s32(total[p][i], dot[p][i], step);
    }
  }
}

// One group by PT pairs of rows of x, over a range. x0: the first pair's super-blocks, pairs
// `pitch` apart.
template <Format F, int PT>
[[gnu::noinline]] void many_tile(
    const GroupSuper<F>* w, int64_t supers, const PairSuper* x0, int64_t pitch, const Sums& to) {
  alignas(16) float acc[PT][kPairs][4] = {};
  float32x4_t pair[kPairs];
  if (!to.first) {
    SLUICE_UNROLL
    for (int i = 0; i < PT; ++i) {
      to.take_pair(i, 0, pair);
      SLUICE_UNROLL
      for (int p = 0; p < kPairs; ++p) vst1q_f32(acc[i][p], pair[p]);
    }
  }
  const PairSuper* x[PT];
  SLUICE_UNROLL
  for (int i = 0; i < PT; ++i) x[i] = x0 + i * pitch;
  for (const GroupSuper<F>* const end = w + supers; w != end; ++w) {
    int32x4_t total[kPairs][PT];
    dot_super<F, PT>(*w, x, total);
    SLUICE_UNROLL
    for (int p = 0; p < kPairs; ++p) {
      const float32x4_t d = vld1q_f32(w->d[p]);
      const float32x4_t dmin = kSuperScales<F> ? vld1q_f32(w->dmin[p]) : d;
      SLUICE_UNROLL
      for (int i = 0; i < PT; ++i) {
        float32x4_t v = vmulq_f32(d, vcvtq_f32_s32(total[p][i]));
        if constexpr (kSuperScales<F>) {
          const int8x16_t mins = vld1q_s8(w->mins[p]);
          int32x4_t sum = vmmlaq_s32(vdupq_n_s32(0), mins, vld1q_s8(x[i]->high));
          sum = vmmlaq_s32(vshlq_n_s32(sum, 7), mins, vld1q_s8(x[i]->low));
          v = vfmsq_f32(v, dmin, vcvtq_f32_s32(sum));
        }
        vst1q_f32(acc[i][p], vfmaq_f32(vld1q_f32(acc[i][p]), vld1q_f32(x[i]->scale), v));
      }
      hold_loads();
    }
    SLUICE_UNROLL
    for (int i = 0; i < PT; ++i) ++x[i];
  }
  SLUICE_UNROLL
  for (int i = 0; i < PT; ++i) {
    SLUICE_UNROLL
    for (int p = 0; p < kPairs; ++p) pair[p] = vld1q_f32(acc[i][p]);
    to.put_pair(i, 0, pair);
  }
}

// Super-blocks [s0, s0 + supers) of rows row and row + 1 of x; the last row is paired with itself.
inline void lay_out_pair(
    const MatmulArgs& a, int64_t row, int64_t s0, int64_t supers, PairSuper* to) {
  const int64_t other = row + 1 < a.m ? row + 1 : row;
  const int8_t *q0 = a.q + row * a.cols, *q1 = a.q + other * a.cols;
  const float *d0 = a.scale + row * (a.cols / 256), *d1 = a.scale + other * (a.cols / 256);
  const int16_t *sum0 = a.sum16 + row * (a.cols / 16), *sum1 = a.sum16 + other * (a.cols / 16);
  for (int64_t s = s0; s < s0 + supers; ++s, ++to) {
    SLUICE_UNROLL
    for (int u = 0; u < 32; ++u) {
      const int64_t k = s * 256 + u * 8;
      vst1q_s8(to->q[u], vcombine_s8(vld1_s8(q0 + k), vld1_s8(q1 + k)));
    }
    const PairSums<Format::q4_k> sums = pair_sums<Format::q4_k>(sum0 + s * 16, sum1 + s * 16);
    vst1q_s8(to->low, sums.low[0]);
    vst1q_s8(to->high, sums.high[0]);
    vst1q_f32(to->scale, both(d0[s], d1[s]));
  }
}

// Rows [m0, m0 + rows) of x. unpack(panel, s, to): super-block s of a group.
template <Format F, typename Unpack>
[[gnu::always_inline]] inline void run_many_super_rows(const MatmulArgs& a,
                                                       size_t panel,
                                                       int64_t m0,
                                                       int64_t rows,
                                                       PairSuper* x,
                                                       const Unpack& unpack) {
  GroupSuper<F> w[kRangeSupers];
  const int64_t all = a.cols / 256, pairs = (rows + 1) / 2;
  const int64_t tiles = (pairs + kSuperPairs - 1) / kSuperPairs;
  for (int64_t s0 = 0; s0 < all; s0 += kRangeSupers) {
    const int64_t supers = all - s0 < kRangeSupers ? all - s0 : kRangeSupers;
    for (int64_t i = 0; i < pairs; ++i) lay_out_pair(a, m0 + 2 * i, s0, supers, x + i * supers);
    for (int64_t g = a.group_begin; g < a.group_end; ++g) {
      const uint8_t* from = static_cast<const uint8_t*>(a.w) + static_cast<size_t>(g) * panel;
      for (int64_t s = 0; s < supers; ++s) unpack(from, s0 + s, w[s]);
      for (int64_t i = 0; i < tiles; ++i) {
        const int64_t pair = pairs * i / tiles, num = pairs * (i + 1) / tiles - pair;
        const int64_t left = rows - 2 * pair;
        const Sums to{a.out + (m0 + 2 * pair) * a.out_stride + g * R,
                      a.bias ? a.bias + g * R : nullptr,
                      a.out_stride,
                      a.rows - g * R,
                      left < 2 * num ? left : 2 * num,
                      s0 == 0,
                      s0 + supers == all};
        const PairSuper* const first = x + pair * supers;
        num == 1   ? many_tile<F, 1>(w, supers, first, supers, to)
        : num == 2 ? many_tile<F, 2>(w, supers, first, supers, to)
                   : many_tile<F, 3>(w, supers, first, supers, to);
      }
    }
  }
}

template <Format F, typename Unpack>
[[gnu::always_inline]] inline void run_many_supers(const MatmulArgs& a,
                                                   size_t panel,
                                                   const Unpack& unpack) {
  PairSuper x[kSuperRows / 2 * kRangeSupers];
  const int64_t pairs = (a.m + 1) / 2;
  const int64_t chunks = (pairs + kSuperRows / 2 - 1) / (kSuperRows / 2);
  for (int64_t i = 0; i < chunks; ++i) {
    const int64_t begin = 2 * (pairs * i / chunks), end = 2 * (pairs * (i + 1) / chunks);
    run_many_super_rows<F>(a, panel, begin, (end < a.m ? end : a.m) - begin, x, unpack);
  }
}

}  // namespace
}  // namespace sluice::cpu
