// Sixteen f32 lanes in two AVX registers. Only for files compiled for AVX2, FMA, F16C (*_avx2.cc).
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace sluice {

struct VecAvx2 {
  struct F {
    __m256 a, b;  // lanes 0-7, 8-15
  };
  static constexpr const char* kName = "avx2";
  static constexpr int kAccumulators = 5;
  static constexpr int kBlockRows = 6;  // rows of a register block, and the most that one can take
  static constexpr int kMaxBlockRows = 6;
  static constexpr int kCodeAccumulators = 5;  // how many I a kernel keeps live
  static constexpr int kCodeRows = 5, kMaxCodeRows = 5;

  static F set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static F set2(float lo, float hi) { return {_mm256_set1_ps(lo), _mm256_set1_ps(hi)}; }
  static float half(uint16_t h) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h))); }
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static F load(const uint16_t* p) { return {half8(p), half8(p + 8)}; }
  static F load_n(const float* p, int n) {
    return {_mm256_maskload_ps(p, lanes(n)), _mm256_maskload_ps(p + 8, lanes(n - 8))};
  }
  static void store(float* p, F x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
  }
  static void store_n(float* p, F x, int n) {
    _mm256_maskstore_ps(p, lanes(n), x.a);
    _mm256_maskstore_ps(p + 8, lanes(n - 8), x.b);
  }
  static void store(uint16_t* p, F x) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.a, kNearest));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.b, kNearest));
  }

  static F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static F fma(F x, F y, F z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
  }
  static F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  static F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static F if_less(F x, F y, F yes, F no) {
    return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
            _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
  }
  static F in_range(F x, int lo, int hi, F other) {
    return {half_range(x.a, lo, hi, other.a), half_range(x.b, lo - 8, hi - 8, other.b)};
  }
  static F shift_exponent(F x, F t) { return {shift8(x.a, t.a), shift8(x.b, t.b)}; }
  static float sum(F x) {
    __m256 h = _mm256_add_ps(x.a, x.b);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
  }
  static float top(F x) {
    __m256 h = _mm256_max_ps(x.a, x.b);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
  }
  static void prefetch(const void* p) { __builtin_prefetch(p); }

  // Quads of codes are widened to even and odd ones; a packed quad is its codes 0, 2, 1, 3.
  struct I {
    __m256i a, b;
  };
  struct Quads {
    __m256i even[2], odd[2];
  };
  static constexpr int kKeyShift = 0;
  static I start(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  static Quads load_keys(const int8_t* p) {
    __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
    return {{_mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8),
             _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8)},
            {_mm256_srai_epi16(a, 8), _mm256_srai_epi16(b, 8)}};
  }
  static Quads load_values(const int8_t* p) { return load_keys(p); }
  static void dot_keys(I& acc, const Quads& x, const uint64_t* w) { dot_values(acc, x, w, w); }
  static void dot_values(I& acc, const Quads& x, const uint64_t* low, const uint64_t* high) {
    acc.a = dot8(acc.a, x.even[0], x.odd[0], low);
    acc.b = dot8(acc.b, x.even[1], x.odd[1], high);
  }
  static F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
  static void pack_query(uint64_t* out, F x) { pack_weights(out, x); }
  static void pack_weights(uint64_t* out, F x) {
    __m256i y = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
    y = _mm256_permute4x64_epi64(y, 0xd8);
    y = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(y, 0xd8), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), y);
  }

 private:
  static __m256i dot8(__m256i acc, __m256i even, __m256i odd, const uint64_t* w) {
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(even, half(w, 0)));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(odd, half(w, 1)));
  }
  static __m256i half(const uint64_t* w, int i) {
    return _mm256_broadcastd_epi32(_mm_loadu_si32(reinterpret_cast<const char*>(w) + 4 * i));
  }
  static __m256 half8(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static __m256i lanes(int n) {  // all ones in the first n
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static __m256 half_range(__m256 x, int lo, int hi, __m256 other) {
    __m256i inside = _mm256_andnot_si256(lanes(lo), lanes(hi));
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(inside));
  }
  static __m256 shift8(__m256 x, __m256 t) {
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
  }
};

}  // namespace sluice
