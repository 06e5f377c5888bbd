// Reads the panels of pack_plan.h with 16 rows and units of 4 columns: codes as bytes, scales as
// f32, one lane or one group of 4 bytes per row. For the kernels built with AVX-512 only.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/pack_plan.h"
#include "backend/cpu/matmul/six_bits_avx2.h"
#include "tensor/tensor.h"

namespace sluice::cpu {

inline constexpr int kPanelRows = 16;

[[gnu::always_inline]] inline __m512 load_f16(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

[[gnu::always_inline]] inline __m512 load_bf16(const uint8_t* p) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

[[gnu::always_inline]] inline __m128i load16(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

[[gnu::always_inline]] inline __m512i load64(const uint8_t* p) {
  return _mm512_loadu_si512(reinterpret_cast<const void*>(p));
}

// Units u and u + 4 of a block as unsigned bytes. tops: the block's high plane (5 bits).
template <Format F>
[[gnu::always_inline]] inline void load_units(
    const uint8_t* w, const uint8_t* tops, int u, __m512i& low, __m512i& high) {
  const __m512i low4 = _mm512_set1_epi8(15);
  const __m512i v = load64(w + u * 64);
  if constexpr (kHighBits<F> == 1) {
    const __m512i five = _mm512_set1_epi8(31);
    const __m512i top = load64(tops);
    const __m512i t0 = _mm512_sll_epi16(top, _mm_cvtsi32_si128(4 - u));
    const __m512i t1 = u == 0 ? top : _mm512_srl_epi16(top, _mm_cvtsi32_si128(u));
    low = _mm512_and_si512(_mm512_ternarylogic_epi32(low4, v, t0, 0xca), five);
    high =
        _mm512_and_si512(_mm512_ternarylogic_epi32(low4, _mm512_srli_epi16(v, 4), t1, 0xca), five);
  } else {
    low = _mm512_and_si512(v, low4);
    high = _mm512_and_si512(_mm512_srli_epi16(v, 4), low4);
  }
  if constexpr (kHasLevels<F>) {
    const __m512i levels = _mm512_broadcast_i32x4(
        _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(levels_of<F>())),
                      _mm_set1_epi8(static_cast<char>(0x80))));
    low = _mm512_shuffle_epi8(levels, low);
    high = _mm512_shuffle_epi8(levels, high);
  }
}

[[gnu::always_inline]] inline __m512 widen_u8(__m128i v) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(v));
}

// Scale and minimum of block b in one panel.
template <Format F>
[[gnu::always_inline]] inline void load_scales(
    const uint8_t* panel, const PanelPlan& plan, int64_t b, __m512& dw, __m512& mw) {
  const uint8_t* scale = panel + plan.scale + b * 2 * kPanelRows;
  dw = F == Format::mxfp4 ? load_bf16(scale) : load_f16(scale);
  if constexpr (kHasMin<F>) mw = load_f16(panel + plan.extra + b * 2 * kPanelRows);
  if constexpr (kScaledMin<F>) mw = _mm512_mul_ps(dw, mw);
}

// Four vectors of 6-bit weights (16 columns): nibbles of the low plane (shifted down by 4 for the
// second sixteen), two bits each of the high plane.
template <int kHalf>
[[gnu::always_inline]] inline void q6_units(const uint8_t* low,
                                            const uint8_t* high,
                                            __m512i (&w)[4]) {
  const __m512i low4 = _mm512_set1_epi8(15);
  const __m512i six = _mm512_set1_epi8(63);
  const __m512i h = load64(high + kHalf * 64);
  SLUICE_UNROLL
  for (int u = 0; u < 4; ++u) {
    __m512i v = load64(low + u * 64);
    if constexpr (kHalf == 1) v = _mm512_srli_epi16(v, 4);
    const __m512i top = u == 0   ? _mm512_slli_epi16(h, 4)
                        : u == 1 ? _mm512_slli_epi16(h, 2)
                        : u == 2 ? h
                                 : _mm512_srli_epi16(h, 2);
    w[u] = _mm512_and_si512(_mm512_ternarylogic_epi32(low4, v, top, 0xca), six);
  }
}

}  // namespace sluice::cpu
