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
  static constexpr int kCodeAccumulators = 3;  // how many I a kernel keeps live
  static constexpr int kCodeRows = 3, kMaxCodeRows = 3;

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

  // SDOT with 16-bit codes as signed bytes, high = (code + 128) >> 8, and a sum for either. A
  // packed quad is its low bytes, then its high bytes.
  struct I {
    int32x4_t low[4], high[4];
  };
  struct Quads {
    int8x16_t v[4];
  };
  static constexpr int kKeyShift = 0;
  static I start(int32_t x) {
    int32x4_t a = vdupq_n_s32(x), zero = vdupq_n_s32(0);
    return {{a, a, a, a}, {zero, zero, zero, zero}};
  }
  static Quads load_keys(const int8_t* p) {
    return {{vld1q_s8(p), vld1q_s8(p + 16), vld1q_s8(p + 32), vld1q_s8(p + 48)}};
  }
  static Quads load_values(const int8_t* p) { return load_keys(p); }
  static void dot_keys(I& acc, const Quads& x, const uint64_t* w) { dot_values(acc, x, w, w); }
  static void dot_values(I& acc, const Quads& x, const uint64_t* low, const uint64_t* high) {
    int8x8_t a = vreinterpret_s8_u64(vld1_u64(low)), b = vreinterpret_s8_u64(vld1_u64(high));
    for (int i = 0; i < 4; ++i) {
      acc.low[i] = vdotq_lane_s32(acc.low[i], x.v[i], i < 2 ? a : b, 0);
      acc.high[i] = vdotq_lane_s32(acc.high[i], x.v[i], i < 2 ? a : b, 1);
    }
  }
  static F to_float(const I& x) {
    return map(
        [&](int i) { return vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(x.high[i], 8), x.low[i])); });
  }
  static void pack_query(uint64_t* out, F x) { pack_weights(out, x); }
  static void pack_weights(uint64_t* out, F x) {
    for (int i = 0; i < 4; i += 2) {
      int16x8_t y =
          vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(x.v[i])), vqmovn_s32(vcvtnq_s32_f32(x.v[i + 1])));
      uint32x2_t low = vreinterpret_u32_s8(vmovn_s16(y));
      uint32x2_t high = vreinterpret_u32_s8(vshrn_n_s16(vaddq_s16(y, vdupq_n_s16(128)), 8));
      vst1_u64(out + i, vreinterpret_u64_u32(vzip1_u32(low, high)));
      vst1_u64(out + i + 1, vreinterpret_u64_u32(vzip2_u32(low, high)));
    }
  }

 private:
  template <typename Op>
  static F map(Op op) {
    return {{op(0), op(1), op(2), op(3)}};
  }
};

}  // namespace sluice
