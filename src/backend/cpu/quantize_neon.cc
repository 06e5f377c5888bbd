#include <arm_neon.h>

#include "backend/cpu/quantize.h"

namespace sluice::cpu {

void quantize_row_neon(const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum) {
  for (int64_t b = 0; b < cols / 32; ++b, x += 32, q += 32) {
    float32x4_t v[8];
    uint32x4_t most = vdupq_n_u32(0);
    for (int i = 0; i < 8; ++i) {
      v[i] = vld1q_f32(x + 4 * i);
      most = vmaxq_u32(most, vreinterpretq_u32_f32(vabsq_f32(v[i])));
    }
    const Int8Scale s = int8_scale(vmaxvq_u32(most));
    scale[b] = s.scale;
    if (s.zero) {
      vst1q_s8(q, vdupq_n_s8(0));
      vst1q_s8(q + 16, vdupq_n_s8(0));
      sum[b] = 0;
      continue;
    }
    int32x4_t total = vdupq_n_s32(0);
    for (int i = 0; i < 2; ++i) {
      int32x4_t n[4];
      for (int j = 0; j < 4; ++j) n[j] = vcvtnq_s32_f32(vmulq_n_f32(v[4 * i + j], s.inverse));
      const int16x8_t low = vcombine_s16(vmovn_s32(n[0]), vmovn_s32(n[1]));
      const int16x8_t high = vcombine_s16(vmovn_s32(n[2]), vmovn_s32(n[3]));
      vst1q_s8(q + 16 * i, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
      total = vaddq_s32(total, vaddq_s32(vaddq_s32(n[0], n[1]), vaddq_s32(n[2], n[3])));
    }
    sum[b] = vaddvq_s32(total);
  }
}

void quantize_whole_row_neon(const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum) {
  uint32x4_t most[4] = {vdupq_n_u32(0), vdupq_n_u32(0), vdupq_n_u32(0), vdupq_n_u32(0)};
  for (int64_t i = 0; i < cols; i += 16) {
    for (int j = 0; j < 4; ++j) {
      most[j] = vmaxq_u32(most[j], vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + i + 4 * j))));
    }
  }
  const Int8Scale s =
      int8_scale(vmaxvq_u32(vmaxq_u32(vmaxq_u32(most[0], most[1]), vmaxq_u32(most[2], most[3]))));
  *scale = s.scale;
  if (s.zero) {
    __builtin_memset(q, 0, static_cast<size_t>(cols));
    *sum = 0;
    return;
  }
  int32x4_t total[4] = {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};
  for (int64_t i = 0; i < cols; i += 16) {
    int32x4_t n[4];
    for (int j = 0; j < 4; ++j) {
      n[j] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i + 4 * j), s.inverse));
      total[j] = vaddq_s32(total[j], n[j]);
    }
    const int16x8_t low = vcombine_s16(vmovn_s32(n[0]), vmovn_s32(n[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(n[2]), vmovn_s32(n[3]));
    vst1q_s8(q + i, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
  }
  *sum = vaddvq_s32(vaddq_s32(vaddq_s32(total[0], total[1]), vaddq_s32(total[2], total[3])));
}

void quantize_supers_neon(const float* x, int64_t cols, int8_t* q, float* scale, int16_t* sum) {
  for (int64_t b = 0; b < cols / 256; ++b, x += 256, q += 256, sum += 16) {
    int32_t whole;
    quantize_whole_row_neon(x, 256, q, scale + b, &whole);
    for (int i = 0; i < 16; ++i) sum[i] = vaddlvq_s8(vld1q_s8(q + 16 * i));
  }
}

}  // namespace sluice::cpu
