// Sixteen f32 lanes in four NEON registers. Only for files compiled for it (*_neon.cc).
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace sluice {

struct VecNeon {
  struct F {
    float32x4_t v[4];
  };
  static constexpr const char* kName = "neon";
  static constexpr int kAccumulators = 6;
  static constexpr int kBlockRows = 5;  // rows of a register block, and the most that one can take
  static constexpr int kMaxBlockRows = 5;

  static F set(float x) {
    float32x4_t s = vdupq_n_f32(x);
    return {{s, s, s, s}};
  }
  static F set2(float lo, float hi) {
    float32x4_t a = vdupq_n_f32(lo), b = vdupq_n_f32(hi);
    return {{a, a, b, b}};
  }
  static float half(uint16_t h) {
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0);
  }
  static F load(const float* p) {
    return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
  }
  static F load(const uint16_t* p) {
    float16x8_t a = vreinterpretq_f16_u16(vld1q_u16(p));
    float16x8_t b = vreinterpretq_f16_u16(vld1q_u16(p + 8));
    return {{vcvt_f32_f16(vget_low_f16(a)), vcvt_high_f32_f16(a), vcvt_f32_f16(vget_low_f16(b)),
             vcvt_high_f32_f16(b)}};
  }
  // Sixteen codes as 32768 + code: the byte looked up into the mantissa of 2^15.
  static constexpr float kCodeZero = 32768 + 128;
  static F load_codes(const uint8_t* p) {
    static constexpr uint32_t kIndex[16] = {0xffff00ff, 0xffff01ff, 0xffff02ff, 0xffff03ff,
                                            0xffff04ff, 0xffff05ff, 0xffff06ff, 0xffff07ff,
                                            0xffff08ff, 0xffff09ff, 0xffff0aff, 0xffff0bff,
                                            0xffff0cff, 0xffff0dff, 0xffff0eff, 0xffff0fff};
    uint8x16_t x = vld1q_u8(p), exponent = vreinterpretq_u8_u32(vdupq_n_u32(0x47000000));
    return map([&](int i) {
      uint8x16_t index = vreinterpretq_u8_u32(vld1q_u32(kIndex + 4 * i));
      return vreinterpretq_f32_u8(vqtbx1q_u8(exponent, x, index));
    });
  }
  static F load_n(const float* p, int n) {
    float tmp[16] = {};
    for (int i = 0; i < 16 && i < n; ++i) tmp[i] = p[i];
    return load(tmp);
  }
  static void store(float* p, F x) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.v[i]);
  }
  static void store_n(float* p, F x, int n) {
    float tmp[16];
    store(tmp, x);
    for (int i = 0; i < 16 && i < n; ++i) p[i] = tmp[i];
  }
  static void store(uint16_t* p, F x) {
    vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.v[0]), x.v[1])));
    vst1q_u16(p + 8, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.v[2]), x.v[3])));
  }

  static F add(F a, F b) {
    return map([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
  }
  static F sub(F a, F b) {
    return map([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
  }
  static F mul(F a, F b) {
    return map([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
  }
  static F div(F a, F b) {
    return map([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
  }
  static F fma(F a, F b, F c) {
    return map([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
  }
  static F min(F a, F b) {
    return map([&](int i) { return vminq_f32(a.v[i], b.v[i]); });
  }
  static F max(F a, F b) {
    return map([&](int i) { return vmaxq_f32(a.v[i], b.v[i]); });
  }
  static F if_less(F a, F b, F yes, F no) {
    return map([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), yes.v[i], no.v[i]); });
  }
  static F in_range(F x, int lo, int hi, F other) {
    static constexpr int32_t kLane[4] = {0, 1, 2, 3};
    int32x4_t lane = vld1q_s32(kLane);
    return map([&](int i) {
      uint32x4_t inside = vandq_u32(vcgeq_s32(lane, vdupq_n_s32(lo - 4 * i)),
                                    vcltq_s32(lane, vdupq_n_s32(hi - 4 * i)));
      return vbslq_f32(inside, x.v[i], other.v[i]);
    });
  }
  static F shift_exponent(F x, F t) {
    return map([&](int i) {
      int32x4_t n = vshlq_n_s32(vreinterpretq_s32_f32(t.v[i]), 23);
      return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x.v[i]), n));
    });
  }
  static float sum(F x) {
    float32x4_t q = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
    float32x2_t d = vadd_f32(vget_low_f32(q), vget_high_f32(q));
    return vget_lane_f32(d, 0) + vget_lane_f32(d, 1);
  }
  static float top(F x) {
    float32x4_t q = vmaxq_f32(vmaxq_f32(x.v[0], x.v[2]), vmaxq_f32(x.v[1], x.v[3]));
    return vmaxvq_f32(q);
  }
  static void prefetch(const void* p) { __builtin_prefetch(p); }

 private:
  template <typename Op>
  static F map(Op op) {
    return {{op(0), op(1), op(2), op(3)}};
  }
};

}  // namespace sluice
