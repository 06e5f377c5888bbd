// int_block32 kernels of q2_k and q3_k for SMMLA (i8mm), over panels like those of matmul_i8mm.cc:
// a vector is 2 rows by 8 columns, and all four units of a block are in one vector of bytes for
// each pair of rows. Each sixteen columns have their own scale, which their dot is multiplied by in
// integers. One row of x alone uses SDOT on the same panels. For many rows the scale is multiplied
// into the codes as they are unpacked, which bytes still hold.
#include <arm_neon.h>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_many_i8mm.h"
#include "backend/cpu/matmul/matmul_panels_neon.h"
#include "backend/cpu/matmul/matmul_tile_i8mm.h"

namespace sluice::cpu {
namespace {

// Eight integers of rows 0..7 as the pairs' lanes (r0, r0, r1, r1), ...
[[gnu::always_inline]] inline int32x4_t pair_of(const int32x4x2_t& v, int p) {
  const int32x4_t half = v.val[p / 2];
  return p % 2 == 0 ? vzip1q_s32(half, half) : vzip2q_s32(half, half);
}

// A block's codes. Two blocks share bytes of the third bits: `shift` takes this block's down.
struct Codes {
  const uint8_t* low;
  const uint8_t* top;
  int shift;
};

[[gnu::always_inline]] inline Codes codes_of(const uint8_t* panel,
                                             const LowBitPlan& plan,
                                             int64_t b) {
  return {panel + b * 8 * R, panel + plan.top + b / 2 * 8 * R, static_cast<int>(b % 2 * 4)};
}

// Unit u (8 columns) of pair p.
template <Format F>
[[gnu::always_inline]] inline int8x16_t load_unit(const Codes& codes, int u, int p) {
  const uint8x16_t low =
      vshlq_u8(vld1q_u8(codes.low + p * 16), vdupq_n_s8(static_cast<int8_t>(-2 * u)));
  if constexpr (kThreeBits<F>) {
    const int8x16_t down = vdupq_n_s8(static_cast<int8_t>(-codes.shift - u));
    const uint8x16_t q = vsliq_n_u8(low, vshlq_u8(vld1q_u8(codes.top + p * 16), down), 2);
    return vreinterpretq_s8_u8(vsubq_u8(vandq_u8(q, vdupq_n_u8(7)), vdupq_n_u8(4)));
  } else {
    return vreinterpretq_s8_u8(vandq_u8(low, vdupq_n_u8(3)));
  }
}

// ---- one row of x: SDOT, G groups at once ----

template <Format F, int G>
[[gnu::noinline]] void row_tile(const Tile& t) {
  const LowBitPlan plan = low_bit_plan<F, R>(t.cols);
  float32x4_t acc[G][2];
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) acc[g][0] = acc[g][1] = vdupq_n_f32(0);
  for (int64_t b = 0; b < plan.num_blocks; ++b) {
    int8x16_t x[4];
    load_units(t.q + b * 32, x);
    const float dx = t.scale[b];
    const int32_t sum0 = vaddlvq_s8(vld1q_s8(t.q + b * 32));
    const int32_t sum1 = vaddlvq_s8(vld1q_s8(t.q + b * 32 + 16));
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      const uint8_t* panel = t.w + g * plan.bytes;
      const uint8_t* super = panel + plan.extra + b / 8 * (kThreeBits<F> ? 2 : 4) * R;
      const Codes codes = codes_of(panel, plan, b);
      const auto load = [&](int u, int p) __attribute__((always_inline)) {
        return load_unit<F>(codes, u, p);
      };
      const int32x4x2_t d0 = dot_row(load, x, 0, 2), d1 = dot_row(load, x, 2, 2);
      const NeonLowBitScales s = load_scales<F>(panel, plan, b);
      SLUICE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const int32x4_t dot =
            vmlaq_s32(vmulq_s32(d0.val[h], s.scale[0].val[h]), d1.val[h], s.scale[1].val[h]);
        const float32x4_t dw = load_f16(super + h * 8);
        if constexpr (kThreeBits<F>) {
          acc[g][h] = vfmaq_f32(acc[g][h], vmulq_n_f32(dw, dx), vcvtq_f32_s32(dot));
        } else {
          const int32x4_t sum =
              vmlaq_n_s32(vmulq_n_s32(s.min[0].val[h], sum0), s.min[1].val[h], sum1);
          const float32x4_t dmin = load_f16(super + 2 * R + h * 8);
          const float32x4_t scaled = vmulq_f32(dw, vcvtq_f32_s32(dot));
          acc[g][h] = vfmaq_n_f32(acc[g][h], vfmsq_f32(scaled, dmin, vcvtq_f32_s32(sum)), dx);
        }
      }
    }
  }
  store_row<G>(t, acc);
}

// ---- PT pairs of rows of x: SMMLA, one group ----

// Units u0 and u0 + 1 of a block, times the scale. sums: of x over them, in the pairs' lanes.
template <Format F, int PT>
[[gnu::always_inline]] inline void dot_scaled(const Codes& codes,
                                              const int8_t* const (&x)[PT][2],
                                              int64_t offset,
                                              int u0,
                                              const int32x4x2_t& scale,
                                              int32x4_t (&dot)[kPairs][PT],
                                              int32x4_t (&sums)[PT]) {
  int8x16_t xv[2][PT];
  load_pairs<PT>(x, offset + u0 * 8, xv);
  int32x4_t idot[kPairs][PT];
  SLUICE_UNROLL
  for (int i = 0; i < PT; ++i) {
    if constexpr (!kThreeBits<F>) {
      const int8x16_t ones = vdupq_n_s8(1);  // SMMLA adds up: lanes (x0, x1, x0, x1)
      sums[i] = vmmlaq_s32(vmmlaq_s32(vdupq_n_s32(0), ones, xv[0][i]), ones, xv[1][i]);
    }
    SLUICE_UNROLL
    for (int p = 0; p < kPairs; ++p) idot[p][i] = vdupq_n_s32(0);
  }
  const auto load = [&](int u, int p) __attribute__((always_inline)) {
    return load_unit<F>(codes, u, p);
  };
  dot_pairs<PT>(load, u0, xv, idot);
  SLUICE_UNROLL
  for (int p = 0; p < kPairs; ++p) {
    const int32x4_t s = pair_of(scale, p);
    SLUICE_UNROLL
    for (int i = 0; i < PT; ++i) {
      dot[p][i] = u0 == 0 ? vmulq_s32(idot[p][i], s) : vmlaq_s32(dot[p][i], idot[p][i], s);
    }
  }
}

template <Format F, int PT>
[[gnu::noinline]] void pair_tile(const Tile& t) {
  const LowBitPlan plan = low_bit_plan<F, R>(t.cols);
  const int8_t* x[PT][2];
  const float* dx[PT][2];
  find_pairs<PT>(t.q, t.cols, t.m, x);
  find_pairs<PT>(t.scale, plan.num_blocks, t.m, dx);
  float32x4_t acc[kPairs][PT];
  clear<PT>(acc);
  for (int64_t b = 0; b < plan.num_blocks; ++b) {
    const uint8_t* super = t.w + plan.extra + b / 8 * (kThreeBits<F> ? 2 : 4) * R;
    const Codes codes = codes_of(t.w, plan, b);
    const NeonLowBitScales s = load_scales<F>(t.w, plan, b);
    int32x4_t dot[kPairs][PT], sum0[PT], sum1[PT];
    dot_scaled<F, PT>(codes, x, b * 32, 0, s.scale[0], dot, sum0);
    dot_scaled<F, PT>(codes, x, b * 32, 2, s.scale[1], dot, sum1);
    float32x4_t dw[kPairs], mw[kPairs];
    spread_f16(super, dw);
    if constexpr (!kThreeBits<F>) spread_f16(super + 2 * R, mw);
    SLUICE_UNROLL
    for (int i = 0; i < PT; ++i) {
      const float32x4_t d = both(dx[i][0][b], dx[i][1][b]);
      SLUICE_UNROLL
      for (int p = 0; p < kPairs; ++p) {
        const float32x4_t value = vcvtq_f32_s32(dot[p][i]);
        if constexpr (kThreeBits<F>) {
          acc[p][i] = vfmaq_f32(acc[p][i], vmulq_f32(dw[p], d), value);
        } else {
          const int32x4_t sum =
              vmlaq_s32(vmulq_s32(pair_of(s.min[0], p), sum0[i]), pair_of(s.min[1], p), sum1[i]);
          const float32x4_t scaled = vmulq_f32(dw[p], value);
          acc[p][i] = vfmaq_f32(acc[p][i], d, vfmsq_f32(scaled, mw[p], vcvtq_f32_s32(sum)));
        }
      }
    }
  }
  store_pairs<PT>(t, acc);
}

template <Format F>
struct Tiles {
  template <int G>
  static constexpr TileFn row = row_tile<F, G>;
  template <int PT>
  static constexpr TileFn pairs = pair_tile<F, PT>;
};

// ---- many rows of x ----

// Bytes of rows 2 p and 2 p + 1, eight times each.
[[gnu::always_inline]] inline int8x16_t pair_bytes(uint8x8_t rows, int p) {
  const uint8x8_t first = vdup_n_u8(static_cast<uint8_t>(2 * p));
  const uint8x16_t index = vcombine_u8(first, vadd_u8(first, vdup_n_u8(1)));
  return vreinterpretq_s8_u8(vqtbl1q_u8(vcombine_u8(rows, rows), index));
}

// Codes times scale: at most 45 of q2_k. Those of q3_k, (q - 4) (s - 32), are -124 to 128, so their
// negatives fit, and the scale of the super-block is negated too.
template <Format F>
[[gnu::noinline]] void unpack_block(const uint8_t* panel,
                                    const LowBitPlan& plan,
                                    int64_t b,
                                    GroupBlock& to) {
  const Codes codes = codes_of(panel, plan, b);
  const LowBitBytes bytes = load_scale_bytes<F>(panel, plan, b);
  const uint8_t* super = panel + plan.extra + b / 8 * (kThreeBits<F> ? 2 : 4) * R;
  float32x4_t d[kPairs], dmin[kPairs];
  spread_f16(super, d);
  if constexpr (!kThreeBits<F>) spread_f16(super + 2 * R, dmin);
  SLUICE_UNROLL
  for (int p = 0; p < kPairs; ++p) {
    SLUICE_UNROLL
    for (int u = 0; u < 4; ++u) {
      int8x16_t scale = pair_bytes(bytes.scale[u / 2], p);
      if constexpr (kThreeBits<F>) scale = vnegq_s8(scale);
      vst1q_s8(to.q[u][p], vmulq_s8(load_unit<F>(codes, u, p), scale));
    }
    vst1q_f32(to.scale[p], kThreeBits<F> ? vnegq_f32(d[p]) : d[p]);
    if constexpr (!kThreeBits<F>) {
      vst1q_f32(to.min[p], dmin[p]);
      // The factors of put_sums16, which are zero in the last two columns.
      constexpr uint8_t kShifts[16] = {0, 0, 3, 3, 3, 3, 0, 0, 0, 0, 3, 3, 3, 3, 0, 0};
      constexpr uint8_t kFirst[16] = {255, 0, 255, 255, 0, 0, 0, 0, 255, 0, 255, 255, 0, 0, 0, 0};
      const int8x16_t mins =
          vbslq_s8(vld1q_u8(kFirst), pair_bytes(bytes.min[0], p), pair_bytes(bytes.min[1], p));
      vst1q_s8(to.mins16[p], vshlq_s8(mins, vreinterpretq_s8_u8(vld1q_u8(kShifts))));
    }
  }
}

template <Format F>
void run(const MatmulArgs& a) {
  const LowBitPlan plan = low_bit_plan<F, R>(a.cols);
  if (!smmla_unpacks_once(a.m)) return run_blocks<Tiles<F>>(a, plan.bytes);
  run_many<kMinimums<F>>(a, plan.bytes, [&](const uint8_t* panel, int64_t b, GroupBlock& to) {
    unpack_block<F>(panel, plan, b, to);
  });
}

}  // namespace

void matmul_i8mm_q2_k(const MatmulArgs& a) { run<Format::q2_k>(a); }
void matmul_i8mm_q3_k(const MatmulArgs& a) { run<Format::q3_k>(a); }

}  // namespace sluice::cpu
