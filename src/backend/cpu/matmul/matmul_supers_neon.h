// Shared by the int_super kernels for SDOT and SMMLA: the integer scales and minimums of a
// super-block of 8 rows, and sums of x as bytes to multiply them with. A part is the columns that
// share a scale: 32 of q4_k and q5_k, 16 of q6_k. Each file that includes this has its own copy.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_panels_neon.h"
#include "backend/cpu/matmul/pack_plan.h"

namespace sluice::cpu {
namespace {

template <Format F>
constexpr int kSuperParts = F == Format::q6_k ? 16 : 8;  // of a super-block
template <Format F>
constexpr int kQuads = kSuperParts<F> / 4;

// Scales of parts 2 i and 2 i + 1 of super-block s: rows 0..7 of either.
template <Format F>
[[gnu::always_inline]] inline int8x16_t two_scales(const uint8_t* panel,
                                                   const PanelPlan& plan,
                                                   int64_t s,
                                                   int i) {
  const uint8x16_t v = vld1q_u8(panel + plan.scale + (s * kSuperParts<F> + 2 * i) * R);
  if constexpr (F == Format::q6_k) return vreinterpretq_s8_u8(v);
  const uint8x8_t t = vld1_u8(panel + plan.tops + (s * 4 + i) * R);
  const uint8x16_t top = vcombine_u8(vshl_n_u8(t, 4), t);
  return vreinterpretq_s8_u8(vandq_u8(vbslq_u8(vdupq_n_u8(15), v, top), vdupq_n_u8(63)));
}

// Likewise minimums of q4_k and q5_k.
[[gnu::always_inline]] inline int8x16_t two_mins(const uint8_t* panel,
                                                 const PanelPlan& plan,
                                                 int64_t s,
                                                 int i) {
  const uint8x16_t v = vld1q_u8(panel + plan.scale + (s * 8 + 2 * i) * R);
  const uint8x8_t t = vld1_u8(panel + plan.tops + (s * 4 + i) * R);
  const uint8x16_t top = vcombine_u8(vshl_n_u8(t, 2), vshr_n_u8(t, 2));
  return vreinterpretq_s8_u8(vandq_u8(vsriq_n_u8(top, v, 4), vdupq_n_u8(63)));
}

// The factors of the sums of x: minimums, or for q6_k scales, because its codes are stored with 32
// added. Four parts of rows 0..3 and of rows 4..7: [quad of parts][half of the rows].
template <Format F>
struct Offsets {
  int8x16_t of[kQuads<F>][2];
};

template <Format F>
[[gnu::always_inline]] inline Offsets<F> load_offsets(const uint8_t* panel,
                                                      const PanelPlan& plan,
                                                      int64_t s) {
  Offsets<F> o;
  SLUICE_UNROLL
  for (int n = 0; n < kQuads<F>; ++n) {
    int8x16_t a, b;
    if constexpr (F == Format::q6_k) {
      a = two_scales<F>(panel, plan, s, 2 * n);
      b = two_scales<F>(panel, plan, s, 2 * n + 1);
    } else {
      a = two_mins(panel, plan, s, 2 * n);
      b = two_mins(panel, plan, s, 2 * n + 1);
    }
    const int8x16_t even = vzip1q_s8(a, b), odd = vzip2q_s8(a, b);
    o.of[n][0] = vzip1q_s8(even, odd);
    o.of[n][1] = vzip2q_s8(even, odd);
  }
  return o;
}

// Sums of x over the parts of a super-block, 128 high + low: they have 13 bits.
template <Format F>
struct PartSums;
template <>
struct PartSums<Format::q6_k> {
  int8x16_t low, high;
};
template <>
struct PartSums<Format::q4_k> {
  int8x8_t low, high;
};
template <>
struct PartSums<Format::q5_k> : PartSums<Format::q4_k> {};

// sum16: of the super-block.
template <Format F>
[[gnu::always_inline]] inline PartSums<F> part_sums(const int16_t* sum16) {
  const int16x8_t a = vld1q_s16(sum16), b = vld1q_s16(sum16 + 8);
  if constexpr (F == Format::q6_k) {
    const int16x8_t high_a = vrshrq_n_s16(a, 7), high_b = vrshrq_n_s16(b, 7);
    return {vcombine_s8(vmovn_s16(vsubq_s16(a, vshlq_n_s16(high_a, 7))),
                        vmovn_s16(vsubq_s16(b, vshlq_n_s16(high_b, 7)))),
            vcombine_s8(vmovn_s16(high_a), vmovn_s16(high_b))};
  } else {
    const int16x8_t sum = vpaddq_s16(a, b), high = vrshrq_n_s16(sum, 7);
    return {vmovn_s16(vsubq_s16(sum, vshlq_n_s16(high, 7))), vmovn_s16(high)};
  }
}

// The exact sum of offsets times sums of x, in lanes of rows 4 h to 4 h + 3.
template <Format F>
[[gnu::always_inline]] inline int32x4_t dot_offsets(const Offsets<F>& o,
                                                    const PartSums<F>& x,
                                                    int h) {
  int32x4_t sum = vdupq_n_s32(0);
  if constexpr (F == Format::q6_k) {
    sum = vdotq_laneq_s32(sum, o.of[0][h], x.high, 0);
    sum = vdotq_laneq_s32(sum, o.of[1][h], x.high, 1);
    sum = vdotq_laneq_s32(sum, o.of[2][h], x.high, 2);
    sum = vdotq_laneq_s32(sum, o.of[3][h], x.high, 3);
    sum = vshlq_n_s32(sum, 7);
    sum = vdotq_laneq_s32(sum, o.of[0][h], x.low, 0);
    sum = vdotq_laneq_s32(sum, o.of[1][h], x.low, 1);
    sum = vdotq_laneq_s32(sum, o.of[2][h], x.low, 2);
    return vdotq_laneq_s32(sum, o.of[3][h], x.low, 3);
  } else {
    sum = vdotq_lane_s32(sum, o.of[0][h], x.high, 0);
    sum = vdotq_lane_s32(sum, o.of[1][h], x.high, 1);
    sum = vshlq_n_s32(sum, 7);
    sum = vdotq_lane_s32(sum, o.of[0][h], x.low, 0);
    return vdotq_lane_s32(sum, o.of[1][h], x.low, 1);
  }
}

// acc + a super-block: its dot of scale * code, its offsets, and its scales (d, dmin) in the same
// lanes.
template <Format F>
[[gnu::always_inline]] inline float32x4_t add_super(float32x4_t acc,
                                                    float32x4_t dx,
                                                    int32x4_t dot,
                                                    int32x4_t offsets,
                                                    float32x4_t d,
                                                    float32x4_t dmin) {
  if constexpr (F == Format::q6_k) dot = vsubq_s32(dot, vshlq_n_s32(offsets, 5));
  float32x4_t v = vmulq_f32(d, vcvtq_f32_s32(dot));
  if constexpr (kSuperScales<F>) v = vfmsq_f32(v, dmin, vcvtq_f32_s32(offsets));
  return vfmaq_f32(acc, dx, v);
}

// The scales of super-block s: d [R] f16, followed by dmin [R] f16 for q4_k and q5_k.
template <Format F>
[[gnu::always_inline]] inline const uint8_t* super_scales(const uint8_t* panel,
                                                          const PanelPlan& plan,
                                                          int64_t s) {
  return panel + plan.extra + s * (kSuperScales<F> ? 4 : 2) * R;
}

}  // namespace
}  // namespace sluice::cpu
