// Sixteen f32 lanes in portable C++: the fallback of every kernel. No fused multiply-add, which has
// no hardware to count on here, so its bits differ from the vector ISAs'.
#pragma once

#include <bit>
#include <cstdint>

#include "tensor/formats/f16.h"

namespace sluice {

struct VecScalar {
  struct F {
    float v[16];
  };
  static constexpr const char* kName = "scalar";
  static constexpr int kAccumulators = 4;  // how many F a kernel keeps live
  static constexpr int kBlockRows = 4;  // rows of a register block, and the most that one can take
  static constexpr int kMaxBlockRows = 4;

  template <typename Op>
  static F map(Op op) {
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = op(i);
    return r;
  }

  static F set(float x) {
    return map([&](int) { return x; });
  }
  // Lanes 0-7, lanes 8-15.
  static F set2(float lo, float hi) {
    return map([&](int i) { return i < 8 ? lo : hi; });
  }
  static float half(uint16_t h) { return f16_to_f32(h); }
  static F load(const float* p) {
    return map([&](int i) { return p[i]; });
  }
  static F load(const uint16_t* p) {
    return map([&](int i) { return f16_to_f32(p[i]); });
  }
  // Sixteen codes of the KV cache as f32, plus what makes that cheap: code 128 loads as kCodeZero.
  // Their products with an f16 scale are exact in a fused multiply-add; here, without one, too.
  static constexpr float kCodeZero = 128;
  static F load_codes(const uint8_t* p) {
    return map([&](int i) { return static_cast<float>(p[i]); });
  }
  // Lanes from n on are zero and not read.
  static F load_n(const float* p, int n) {
    return map([&](int i) { return i < n ? p[i] : 0.0F; });
  }
  static void store(float* p, F x) {
    for (int i = 0; i < 16; ++i) p[i] = x.v[i];
  }
  static void store_n(float* p, F x, int n) {
    for (int i = 0; i < 16 && i < n; ++i) p[i] = x.v[i];
  }
  static void store(uint16_t* p, F x) {
    for (int i = 0; i < 16; ++i) p[i] = f32_to_f16(x.v[i]);
  }

  static F add(F a, F b) {
    return map([&](int i) { return a.v[i] + b.v[i]; });
  }
  static F sub(F a, F b) {
    return map([&](int i) { return a.v[i] - b.v[i]; });
  }
  static F mul(F a, F b) {
    return map([&](int i) { return a.v[i] * b.v[i]; });
  }
  static F div(F a, F b) {
    return map([&](int i) { return a.v[i] / b.v[i]; });
  }
  static F fma(F a, F b, F c) {
    return map([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
  }
  static F min(F a, F b) {
    return map([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  static F max(F a, F b) {
    return map([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  // a < b ? yes : no, false for NaN
  static F if_less(F a, F b, F yes, F no) {
    return map([&](int i) { return a.v[i] < b.v[i] ? yes.v[i] : no.v[i]; });
  }
  // x in lanes [lo, hi), other elsewhere
  static F in_range(F x, int lo, int hi, F other) {
    return map([&](int i) { return i >= lo && i < hi ? x.v[i] : other.v[i]; });
  }
  // x * 2^n where the low nine bits of t's pattern are n
  static F shift_exponent(F x, F t) {
    return map([&](int i) {
      uint32_t n = std::bit_cast<uint32_t>(t.v[i]) << 23;
      return std::bit_cast<float>(std::bit_cast<uint32_t>(x.v[i]) + n);
    });
  }
  // Halves folded onto each other: 8, 4, 2, 1 lanes, in every ISA.
  static float sum(F x) {
    for (int n = 8; n > 0; n /= 2) {
      for (int i = 0; i < n; ++i) x.v[i] += x.v[i + n];
    }
    return x.v[0];
  }
  static float top(F x) {
    for (int n = 8; n > 0; n /= 2) {
      for (int i = 0; i < n; ++i) x.v[i] = x.v[i] > x.v[i + n] ? x.v[i] : x.v[i + n];
    }
    return x.v[0];
  }
  static void prefetch(const void* p) { __builtin_prefetch(p); }
};

}  // namespace sluice
