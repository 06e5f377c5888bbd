// Sixteen f32 lanes in one AVX-512 register. Only for files compiled for it (*_avx512.cc).
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace sluice {

struct VecAvx512 {
  using F = __m512;
  static constexpr const char* kName = "avx512";
  static constexpr int kAccumulators = 24;
  static constexpr int kBlockRows = 6;  // rows of a register block, and the most that one can take
  static constexpr int kMaxBlockRows = 8;

  static F set(float x) { return _mm512_set1_ps(x); }
  static F set2(float lo, float hi) {
    return _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(lo), _mm512_set1_ps(hi));
  }
  static float half(uint16_t h) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h))); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  // Sixteen codes as 32768 + code: the byte shuffled into the mantissa of 2^15.
  static constexpr float kCodeZero = 32768 + 128;
  static F load_codes(const uint8_t* p) {
    const __m512i index =
        _mm512_set_epi32(0x0f00, 0x0e00, 0x0d00, 0x0c00, 0x0b00, 0x0a00, 0x0900, 0x0800, 0x0700,
                         0x0600, 0x0500, 0x0400, 0x0300, 0x0200, 0x0100, 0x0000);
    __m512i x = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm512_castsi512_ps(
        _mm512_mask_shuffle_epi8(_mm512_set1_epi32(0x47000000), 0x2222222222222222U, x, index));
  }
  static F load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(lanes(n), p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static void store_n(float* p, F x, int n) { _mm512_mask_storeu_ps(p, lanes(n), x); }
  static void store(uint16_t* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F if_less(F a, F b, F yes, F no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
  }
  static F in_range(F x, int lo, int hi, F other) {
    auto outside = static_cast<__mmask16>(lanes(lo) | ~lanes(hi));
    return _mm512_mask_blend_ps(outside, x, other);
  }
  static F shift_exponent(F x, F t) {
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
  }
  static float sum(F x) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
  }
  static float top(F x) {
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
  }
  static void prefetch(const void* p) { __builtin_prefetch(p); }

 private:
  static __mmask16 lanes(int n) {
    return static_cast<__mmask16>(n >= 16 ? 0xffffU : n <= 0 ? 0U : (1U << n) - 1);
  }
};

}  // namespace sluice
