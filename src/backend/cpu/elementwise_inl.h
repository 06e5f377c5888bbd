// Row kernels over sixteen lanes. The partition of a row into lanes depends on its length alone.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/backend.h"
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

  // The sum of a row. Element i adds to lane i mod 64: four chains hide the FMA's latency.
  // add(s, i, num) adds elements [i, i + num) to s, zeros after.
  template <typename Add>
  static float fold(int64_t n, Add add) {
    F s[4] = {V::set(0), V::set(0), V::set(0), V::set(0)};
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
      for (int j = 0; j < 4; ++j) s[j] = add(s[j], i + 16 * j, 16);
    }
    for (int j = 0; i < n; i += 16, ++j) {
      s[j] = add(s[j], i, n - i < 16 ? static_cast<int>(n - i) : 16);
    }
    return V::sum(V::add(V::add(s[0], s[1]), V::add(s[2], s[3])));
  }

  // 1 / sqrt(mean(x²) + eps), given the sum of squares
  static float inverse_root(float squares, int64_t n, float eps) {
    return 1.0F / std::sqrt(squares / static_cast<float>(n) + eps);
  }

  // x += delta for the elements at i, which are returned
  static F add_at(float* x, const float* delta, int64_t i, int num) {
    F sum = V::add(load(x + i, num), load(delta + i, num));
    store(x + i, sum, num);
    return sum;
  }

  static void weigh(const float* x, const float* weight, int64_t n, float factor, float* out) {
    F f = V::set(factor);
    sweep(n, [&](int64_t i, int num) {
      store(out + i, V::mul(V::mul(load(x + i, num), f), load(weight + i, num)), num);
    });
  }

  static void rms_norm(const float* x, const float* weight, int64_t n, float eps, float* out) {
    float squares = fold(n, [&](F s, int64_t i, int num) {
      F y = load(x + i, num);
      return V::fma(y, y, s);
    });
    weigh(x, weight, n, inverse_root(squares, n, eps), out);
  }

  static void add_rms_norm(
      float* x, const float* delta, const float* weight, int64_t n, float eps, float* out) {
    float squares = fold(n, [&](F s, int64_t i, int num) {
      F y = add_at(x, delta, i, num);
      return V::fma(y, y, s);
    });
    weigh(x, weight, n, inverse_root(squares, n, eps), out);
  }

  // The rest of a layer norm when the sum of the row is known.
  static void finish_layer_norm(
      const float* x, float sum, const LayerNormSpec& norm, int64_t n, float* out) {
    const F mean = V::set(sum / static_cast<float>(n)), zero = V::set(0);
    float squares = fold(n, [&](F s, int64_t i, int num) {
      F d = V::in_range(V::sub(load(x + i, num), mean), 0, num, zero);
      return V::fma(d, d, s);
    });
    const F f = V::set(inverse_root(squares, n, norm.eps));
    sweep(n, [&](int64_t i, int num) {
      F y = V::mul(V::sub(load(x + i, num), mean), f);
      store(out + i, V::fma(y, load(norm.weight + i, num), load(norm.bias + i, num)), num);
    });
  }

  static void layer_norm(const float* x, const LayerNormSpec& norm, int64_t n, float* out) {
    float sum = fold(n, [&](F s, int64_t i, int num) { return V::add(s, load(x + i, num)); });
    finish_layer_norm(x, sum, norm, n, out);
  }

  static void add_layer_norm(
      float* x, const float* delta, const LayerNormSpec& norm, int64_t n, float* out) {
    float sum =
        fold(n, [&](F s, int64_t i, int num) { return V::add(s, add_at(x, delta, i, num)); });
    finish_layer_norm(x, sum, norm, n, out);
  }

  static void add(float* x, const float* delta, int64_t n) {
    sweep(n, [&](int64_t i, int num) { add_at(x, delta, i, num); });
  }

  static void scale(float* x, float factor, int64_t n) {
    const F f = V::set(factor);
    sweep(n, [&](int64_t i, int num) { store(x + i, V::mul(load(x + i, num), f), num); });
  }

  static void softcap(float* x, float cap, int64_t n) {
    const F c = V::set(cap), inverse = V::set(1.0F / cap);
    sweep(n, [&](int64_t i, int num) {
      store(x + i, vector_softcap<V>(load(x + i, num), c, inverse), num);
    });
  }

  // Both are x / (1 + e^-y): for SiLU y = x, and 1 + tanh u = 2 / (1 + e^-2u) for GELU, where
  // u = sqrt(2 / pi) (x + 0.044715 x³).
  template <Activation A>
  static F activated(F x) {
    F y = x;
    if constexpr (A == Activation::gelu_tanh) {
      y = V::mul(x, V::fma(V::mul(x, x), V::set(0.0713548163F), V::set(1.59576912F)));
    }
    return V::div(x, V::add(V::set(1), vector_exp<V>(V::sub(V::set(0), y))));
  }

  template <Activation A>
  static void activate_row(const float* x, const float* up, int64_t n, float* out) {
    if (up) {
      sweep(n, [&](int64_t i, int num) {
        store(out + i, V::mul(activated<A>(load(x + i, num)), load(up + i, num)), num);
      });
    } else {
      sweep(n, [&](int64_t i, int num) { store(out + i, activated<A>(load(x + i, num)), num); });
    }
  }

  static void activate(
      Activation activation, const float* x, const float* up, int64_t n, float* out) {
    switch (activation) {
      case Activation::silu:
        return activate_row<Activation::silu>(x, up, n, out);
      case Activation::gelu_tanh:
        return activate_row<Activation::gelu_tanh>(x, up, n, out);
    }
  }

  static void exp(const float* x, int64_t n, float* out) {
    sweep(n, [&](int64_t i, int num) { store(out + i, vector_exp<V>(load(x + i, num)), num); });
  }

  static void tanh(const float* x, int64_t n, float* out) {
    sweep(n, [&](int64_t i, int num) { store(out + i, vector_tanh<V>(load(x + i, num)), num); });
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

  // The scale of one group as KvType has it, rounded to f16. Infinities saturate, NaN stays.
  static uint16_t code_scale(const float* x, int group) {
    constexpr float kMost = 127.0F * 65504.0F, kLeast = 0x1p-24F;
    const F most = V::set(kMost), zero = V::set(0);
    F top = zero, poison = zero;
    sweep(group, [&](int64_t i, int num) {
      F y = load(x + i, num);
      F a = V::if_less(y, zero, V::sub(zero, y), y);
      a = V::if_less(most, a, most, a);
      top = V::if_less(top, a, a, top);
      poison = V::add(poison, V::sub(a, a));
    });
    float scale = (V::top(top) + V::sum(poison)) / 127.0F;
    uint16_t half[16];
    V::store(half, V::set(scale < kLeast ? kLeast : scale));
    return half[0];
  }

  // Codes [n] and scales [n / group] of the KV cache; see KvType.
  static void to_codes(const float* x, int64_t n, int group, int8_t* codes, uint16_t* scales) {
    const F top = V::set(127), bottom = V::set(-127);
    const F magic = V::set(12582912.0F);  // 1.5 * 2^23: the sum's low byte is the rounded number
    for (int64_t at = 0; at < n; at += group, ++scales) {
      *scales = code_scale(x + at, group);
      uint16_t half[16] = {*scales};
      float scale[16];
      V::store(scale, V::load(half));
      const F s = V::set(scale[0]);
      sweep(group, [&](int64_t i, int num) {
        F y = V::div(load(x + at + i, num), s);
        y = V::if_less(top, y, top, V::if_less(y, bottom, bottom, y));
        float sum[16];
        V::store(sum, V::add(y, magic));
        for (int j = 0; j < num; ++j) {
          uint32_t bits;
          __builtin_memcpy(&bits, sum + j, sizeof bits);
          codes[at + i + j] = static_cast<int8_t>(bits);
        }
      });
    }
  }
};

}  // namespace sluice
