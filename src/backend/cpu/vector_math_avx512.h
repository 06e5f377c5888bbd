// Sixteen f32 lanes in one AVX-512 register. Only for files compiled for it (*_avx512.cc,
// *_avx512f.cc).
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
  static constexpr int kCodeAccumulators = 16;  // how many I a kernel keeps live
  static constexpr int kCodeRows = 6, kMaxCodeRows = 8;

  static F set(float x) { return _mm512_set1_ps(x); }
  static F set2(float lo, float hi) {
    return _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(lo), _mm512_set1_ps(hi));
  }
  static float half(uint16_t h) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h))); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
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

  // Quads of codes are widened to even and odd ones; a packed quad is its codes 0, 2, 1, 3.
  using I = __m512i;
  struct Quads {
    __m512i even, odd;
  };
  static constexpr int kKeyShift = 0;
  static I start(int32_t x) { return _mm512_set1_epi32(x); }
  static Quads load_keys(const int8_t* p) {
    __m512i x = _mm512_loadu_si512(p);
    return {_mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8), _mm512_srai_epi16(x, 8)};
  }
  static Quads load_values(const int8_t* p) { return load_keys(p); }
  static void dot_keys(I& acc, Quads x, const uint64_t* w) { dot_values(acc, x, w, w); }
  static void dot_values(I& acc, Quads x, const uint64_t* low, const uint64_t* high) {
    acc = _mm512_add_epi32(acc, _mm512_madd_epi16(x.even, halves(low, high, 0)));
    acc = _mm512_add_epi32(acc, _mm512_madd_epi16(x.odd, halves(low, high, 1)));
  }
  static F to_float(I x) { return _mm512_cvtepi32_ps(x); }
  static void pack_query(uint64_t* out, F x) { pack_weights(out, x); }
  static void pack_weights(uint64_t* out, F x) {
    __m256i y = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x));
    y = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(y, 0xd8), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), y);
  }

 protected:
  // Half a packed quad in every lane: lanes 0-7 of `low`, lanes 8-15 of `high`.
  static __m512i halves(const uint64_t* low, const uint64_t* high, int half) {
    __m512i a =
        _mm512_broadcastd_epi32(_mm_loadu_si32(reinterpret_cast<const char*>(low) + 4 * half));
    if (low == high) return a;
    return _mm512_mask_broadcastd_epi32(
        a, 0xff00, _mm_loadu_si32(reinterpret_cast<const char*>(high) + 4 * half));
  }

 private:
  static __mmask16 lanes(int n) {
    return static_cast<__mmask16>(n >= 16 ? 0xffffU : n <= 0 ? 0U : (1U << n) - 1);
  }
};

// The same with VPDPBUSD: 16-bit codes as low bytes and high bytes, a sum for either.
struct VecAvx512Vnni : VecAvx512 {
  static constexpr const char* kName = "avx512vnni";
  static constexpr int kCodeAccumulators = 12;

  struct I {
    __m512i low, high;
  };
  using Quads = __m512i;
  static constexpr int kKeyShift = 128;  // one side of VPDPBUSD is unsigned: keys, shifted
  static I start(int32_t x) { return {_mm512_set1_epi32(x), _mm512_setzero_si512()}; }
  static Quads load_keys(const int8_t* p) {
    return _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128));
  }
  static Quads load_values(const int8_t* p) { return _mm512_loadu_si512(p); }
  static void dot_keys(I& acc, Quads x, const uint64_t* w) {
    acc.low = _mm512_dpbusd_epi32(acc.low, x, halves(w, w, 0));
    acc.high = _mm512_dpbusd_epi32(acc.high, x, halves(w, w, 1));
  }
  static void dot_values(I& acc, Quads x, const uint64_t* low, const uint64_t* high) {
    acc.low = _mm512_dpbusd_epi32(acc.low, halves(low, high, 0), x);
    acc.high = _mm512_dpbusd_epi32(acc.high, halves(low, high, 1), x);
  }
  static F to_float(I x) {
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(x.high, 8), x.low));
  }
  // Signed bytes: high = (code + 128) >> 8.
  static void pack_query(uint64_t* out, F x) {
    __m512i y = _mm512_cvtps_epi32(x), high = _mm512_set1_epi32(0xff00);
    __m512i up = _mm512_add_epi32(y, _mm512_set1_epi32(128));
    pack(out, _mm512_or_si512(_mm512_and_si512(up, high), _mm512_andnot_si512(high, y)));
  }
  // Not negative: plain bytes.
  static void pack_weights(uint64_t* out, F x) { pack(out, _mm512_cvtps_epi32(x)); }

 private:
  static void pack(uint64_t* out, __m512i x) {
    const __m256i index = _mm256_set1_epi64x(0x0705030106040200);
    const __m256i second = _mm256_set_epi64x(0x0808080808080808, 0, 0x0808080808080808, 0);
    __m256i y = _mm256_shuffle_epi8(_mm512_cvtepi32_epi16(x), _mm256_or_si256(index, second));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), y);
  }
};

}  // namespace sluice
