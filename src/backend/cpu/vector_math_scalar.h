// Sixteen f32 lanes in portable C++: the fallback of every kernel. No fused multiply-add, which has
// no hardware to count on here, so its bits differ from the vector ISAs'.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

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
  static constexpr int kCodeAccumulators = 4;  // how many I a kernel keeps live
  static constexpr int kCodeRows = 4, kMaxCodeRows = 4;

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

  // Sixteen int32 sums of products of quads: four int8 codes of the KV cache per lane with four
  // 16-bit codes, packed into eight bytes as the ISA likes them.
  struct I {
    int32_t v[16];
  };
  struct Quads {
    const int8_t* p;
  };
  static constexpr int kKeyShift =
      0;  // load_keys adds it to every code; what `start` gets makes up
  static I start(int32_t x) {
    I r;
    for (int32_t& v : r.v) v = x;
    return r;
  }
  static Quads load_keys(const int8_t* p) { return {p}; }
  static Quads load_values(const int8_t* p) { return {p}; }
  static void dot_keys(I& acc, Quads x, const uint64_t* w) { dot_values(acc, x, w, w); }
  // Lanes 0-7 with one quad, lanes 8-15 with the other.
  static void dot_values(I& acc, Quads x, const uint64_t* low, const uint64_t* high) {
    int16_t w[2][4];
    std::memcpy(w[0], low, sizeof w[0]);
    std::memcpy(w[1], high, sizeof w[1]);
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 4; ++j) acc.v[i] += x.p[4 * i + j] * w[i / 8][j];
    }
  }
  static F to_float(const I& x) {
    return map([&](int i) { return static_cast<float>(x.v[i]); });
  }
  // Sixteen codes, rounded to nearest even, as four quads. Weights are not negative.
  static void pack_query(uint64_t* out, F x) { pack_weights(out, x); }
  static void pack_weights(uint64_t* out, F x) {
    int16_t codes[16];
    for (int i = 0; i < 16; ++i) {
      const bool fits = x.v[i] > -32768 && x.v[i] < 32767;  // false for NaN
      codes[i] = static_cast<int16_t>(fits ? std::nearbyint(x.v[i]) : 0);
    }
    std::memcpy(out, codes, sizeof codes);
  }
};

}  // namespace sluice
