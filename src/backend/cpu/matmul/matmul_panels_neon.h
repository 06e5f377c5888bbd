// Reads the panels of pack_plan.h with 8 rows, for the integer kernels for NEON with SDOT or SMMLA:
// scales in lanes of rows 0..3 and 4..7. And stores results in such lanes. Each of those files has
// its own copy, compiled as it is.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_tiles_inl.h"
#include "backend/cpu/matmul/pack_plan.h"

namespace sluice::cpu {
namespace {

constexpr int R = 8;

[[gnu::always_inline]] inline float32x4_t load_f16(const uint8_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

[[gnu::always_inline]] inline float32x4_t load_bf16(const uint8_t* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}

[[gnu::always_inline]] inline int32x4x2_t widen(uint8x8_t signed_bytes) {
  const int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(signed_bytes));
  return {vmovl_s16(vget_low_s16(wide)), vmovl_s16(vget_high_s16(wide))};
}

// Two numbers of six bits for each row: low nibbles at `low`, top bits of an even and an odd block
// together at `tops`.
struct SixBits {
  uint8x8_t first, second;
};

[[gnu::always_inline]] inline SixBits load_six_bits(const uint8_t* low,
                                                    const uint8_t* tops,
                                                    int64_t b) {
  const uint8x8_t v = vld1_u8(low + b * R);
  const uint8x8_t t =
      vshl_u8(vld1_u8(tops + b / 2 * R), vdup_n_s8(static_cast<int8_t>(b % 2 * -4)));
  return {vorr_u8(vand_u8(v, vdup_n_u8(15)), vshl_n_u8(vand_u8(t, vdup_n_u8(3)), 4)),
          vorr_u8(vshr_n_u8(v, 4), vshl_n_u8(vand_u8(t, vdup_n_u8(12)), 2))};
}

// Scales and minimums of block b in one panel.
template <Format F>
[[gnu::always_inline]] inline void load_scales(const uint8_t* panel,
                                               const PanelPlan& plan,
                                               int64_t b,
                                               float32x4_t (&dw)[2],
                                               float32x4_t (&mw)[2]) {
  SLUICE_UNROLL
  for (int h = 0; h < 2; ++h) {
    const uint8_t* scale = panel + plan.scale + b * 2 * R + h * 8;
    dw[h] = F == Format::mxfp4 ? load_bf16(scale) : load_f16(scale);
    if constexpr (kHasMin<F>) mw[h] = load_f16(panel + plan.extra + b * 2 * R + h * 8);
    if constexpr (kScaledMin<F>) mw[h] = vmulq_f32(dw[h], mw[h]);
  }
}

// A block of 32 columns of q2_k or q3_k has two scales, one per 16 columns. Those of rows 0..7.
struct LowBitBytes {
  uint8x8_t scale[2];  // signed
  uint8x8_t min[2];    // q2_k
};

template <Format F>
[[gnu::always_inline]] inline LowBitBytes load_scale_bytes(const uint8_t* panel,
                                                           const LowBitPlan& plan,
                                                           int64_t b) {
  LowBitBytes s{};
  if constexpr (kThreeBits<F>) {
    const SixBits six = load_six_bits(panel + plan.scale, panel + plan.tops, b);
    s.scale[0] = vsub_u8(six.first, vdup_n_u8(32));
    s.scale[1] = vsub_u8(six.second, vdup_n_u8(32));
  } else {
    const uint8x8x2_t v = vld2_u8(panel + plan.scale + b * 2 * R);
    SLUICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      s.scale[half] = vand_u8(v.val[half], vdup_n_u8(15));
      s.min[half] = vshr_n_u8(v.val[half], 4);
    }
  }
  return s;
}

struct NeonLowBitScales {
  int32x4x2_t scale[2];
  int32x4x2_t min[2];  // q2_k
};

template <Format F>
[[gnu::always_inline]] inline NeonLowBitScales load_scales(const uint8_t* panel,
                                                           const LowBitPlan& plan,
                                                           int64_t b) {
  const LowBitBytes bytes = load_scale_bytes<F>(panel, plan, b);
  NeonLowBitScales s{};
  SLUICE_UNROLL
  for (int half = 0; half < 2; ++half) {
    s.scale[half] = widen(bytes.scale[half]);
    if constexpr (!kThreeBits<F>) s.min[half] = widen(bytes.min[half]);
  }
  return s;
}

// Results of rows [at, at + 4) of W for one row of x.
[[gnu::always_inline]] inline void store4(const Tile& t, int64_t row, int64_t at, float32x4_t v) {
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

// Exact dots of rows of W with a row of x, times the scales of both (w8a8).
[[gnu::always_inline]] inline float32x4_t scaled(int32x4_t dot, float dx, const uint8_t* dw) {
  const float32x4_t scale = vmulq_f32(vdupq_n_f32(dx), vreinterpretq_f32_u8(vld1q_u8(dw)));
  return vmulq_f32(vcvtq_f32_s32(dot), scale);
}

// The same stored. g: the group.
[[gnu::always_inline]] inline void store4(
    const Tile& t, const RowPanelPlan& plan, int64_t row, int g, int h, int32x4_t dot) {
  const uint8_t* dw = t.w + g * plan.bytes + plan.scale + h * 16;
  store4(t, row, g * R + h * 4, scaled(dot, t.scale[row], dw));
}

}  // namespace
}  // namespace sluice::cpu
