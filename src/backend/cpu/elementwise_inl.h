// Row kernels over sixteen lanes. The partition of a row into lanes depends on its length alone.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cpu/vector_math_inl.h"

namespace sluice {

template <typename V>
struct Elementwise {
  using F = typename V::F;

  // f(i, num) for every sixteen elements; num < 16 only at the end.
  template <typename Fn>
  static void sweep(int64_t n, Fn f) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) f(i, 16);
    if (i < n) f(i, static_cast<int>(n - i));
  }
  static F load(const float* p, int num) { return num == 16 ? V::load(p) : V::load_n(p, num); }
  static void store(float* p, F x, int num) {
    if (num == 16) {
      V::store(p, x);
    } else {
      V::store_n(p, x, num);
    }
  }

  // 1 / sqrt(mean(x²) + eps). Element i adds to lane i mod 64: four chains hide the FMA's latency.
  // at(i, num) gives elements [i, i + num), zeros after.
  template <typename At>
  static float inverse_rms(int64_t n, float eps, At at) {
    F s[4] = {V::set(0), V::set(0), V::set(0), V::set(0)};
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
      for (int j = 0; j < 4; ++j) {
        F x = at(i + 16 * j, 16);
        s[j] = V::fma(x, x, s[j]);
      }
    }
    for (int j = 0; i < n; i += 16, ++j) {
      F x = at(i, n - i < 16 ? static_cast<int>(n - i) : 16);
      s[j] = V::fma(x, x, s[j]);
    }
    float sum = V::sum(V::add(V::add(s[0], s[1]), V::add(s[2], s[3])));
    return 1.0F / std::sqrt(sum / static_cast<float>(n) + eps);
  }

  static void scale(const float* x, const float* weight, int64_t n, float factor, float* out) {
    F f = V::set(factor);
    sweep(n, [&](int64_t i, int num) {
      store(out + i, V::mul(V::mul(load(x + i, num), f), load(weight + i, num)), num);
    });
  }

  static void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out) {
    float f = inverse_rms(n, eps, [&](int64_t i, int num) { return load(x + i, num); });
    scale(x, weight, n, f, out);
  }

  static void add_rms_norm(
      float* x, const float* delta, const float* weight, int64_t n, float eps, float* out) {
    float f = inverse_rms(n, eps, [&](int64_t i, int num) {
      F sum = V::add(load(x + i, num), load(delta + i, num));
      store(x + i, sum, num);
      return sum;
    });
    scale(x, weight, n, f, out);
  }

  static void add(float* x, const float* delta, int64_t n) {
    sweep(n, [&](int64_t i, int num) {
      store(x + i, V::add(load(x + i, num), load(delta + i, num)), num);
    });
  }

  static void swiglu(const float* gate, const float* up, int64_t n, float* out) {
    const F one = V::set(1);
    sweep(n, [&](int64_t i, int num) {
      F g = load(gate + i, num);
      F e = vector_exp<V>(V::sub(V::set(0), g));
      F silu = V::div(g, V::add(one, e));
      store(out + i, V::mul(silu, load(up + i, num)), num);
    });
  }

  static void exp(const float* x, int64_t n, float* out) {
    sweep(n, [&](int64_t i, int num) { store(out + i, vector_exp<V>(load(x + i, num)), num); });
  }

  static void to_half(const float* x, int64_t n, uint16_t* out) {
    const F top = V::set(65504), bottom = V::set(-65504);
    sweep(n, [&](int64_t i, int num) {
      F y = load(x + i, num);
      y = V::if_less(top, y, top, V::if_less(y, bottom, bottom, y));  // NaN stays
      if (num == 16) return V::store(out + i, y);
      uint16_t tail[16];
      V::store(tail, y);
      for (int j = 0; j < num; ++j) out[i + j] = tail[j];
    });
  }
};

}  // namespace sluice
