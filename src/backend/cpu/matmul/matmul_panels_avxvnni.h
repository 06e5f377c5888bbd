// Reads the panels of pack_plan.h with 8 rows and units of 4 columns: codes as bytes, scales as f32
// or integers, one lane or one group of 4 bytes per row. For the kernels built with AVX-VNNI only.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/pack_plan.h"
#include "backend/cpu/matmul/six_bits_avx2.h"
#include "tensor/tensor.h"

namespace sluice::cpu {
namespace {

struct Panels256 {
  using I = __m256i;
  using F32 = __m256;
  static constexpr int kRows = 8;

  static I load(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static __m128i load8(const uint8_t* p) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  }
  static __m128i load16(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  static F32 load_f16(const uint8_t* p) { return _mm256_cvtph_ps(load16(p)); }
  static F32 load_bf16(const uint8_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(p)), 16));
  }
  // The bits of `mask` from x, the others from y.
  static I select(I mask, I x, I y) {
    return _mm256_or_si256(_mm256_and_si256(mask, x), _mm256_andnot_si256(mask, y));
  }

  // Units u and u + 4 of a block as unsigned bytes. tops: the block's high plane (5 bits).
  template <Format F>
  [[gnu::always_inline]] static void load_units(
      const uint8_t* w, const uint8_t* tops, int u, I& low, I& high) {
    const I low4 = _mm256_set1_epi8(15);
    const I v = load(w + u * 32);
    low = _mm256_and_si256(v, low4);
    high = _mm256_and_si256(_mm256_srli_epi16(v, 4), low4);
    if constexpr (kHighBits<F> == 1) {
      const I fifth = _mm256_set1_epi8(16);
      const I top = load(tops);
      const I t0 = _mm256_sll_epi16(top, _mm_cvtsi32_si128(4 - u));
      const I t1 = _mm256_srl_epi16(top, _mm_cvtsi32_si128(u));
      low = _mm256_or_si256(low, _mm256_and_si256(t0, fifth));
      high = _mm256_or_si256(high, _mm256_and_si256(t1, fifth));
    }
    if constexpr (kHasLevels<F>) {
      const I levels = _mm256_broadcastsi128_si256(
          _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(levels_of<F>())),
                        _mm_set1_epi8(static_cast<char>(0x80))));
      low = _mm256_shuffle_epi8(levels, low);
      high = _mm256_shuffle_epi8(levels, high);
    }
  }

  // Scale and minimum of block b in one panel.
  template <Format F>
  [[gnu::always_inline]] static void load_scales(
      const uint8_t* panel, const PanelPlan& plan, int64_t b, F32& dw, F32& mw) {
    const uint8_t* scale = panel + plan.scale + b * 2 * kRows;
    dw = F == Format::mxfp4 ? load_bf16(scale) : load_f16(scale);
    if constexpr (kHasMin<F>) mw = load_f16(panel + plan.extra + b * 2 * kRows);
    if constexpr (kScaledMin<F>) mw = _mm256_mul_ps(dw, mw);
  }

  // Four vectors of 6-bit weights (16 columns): nibbles of the low plane (shifted down by 4 for the
  // second sixteen), two bits each of the high plane.
  template <int kHalf>
  [[gnu::always_inline]] static void q6_units(const uint8_t* low, const uint8_t* high, I (&w)[4]) {
    const I low4 = _mm256_set1_epi8(15), top2 = _mm256_set1_epi8(48);
    const I h = load(high + kHalf * 32);
    SLUICE_UNROLL
    for (int u = 0; u < 4; ++u) {
      I v = load(low + u * 32);
      if constexpr (kHalf == 1) v = _mm256_srli_epi16(v, 4);
      const I top = u == 0   ? _mm256_slli_epi16(h, 4)
                    : u == 1 ? _mm256_slli_epi16(h, 2)
                    : u == 2 ? h
                             : _mm256_srli_epi16(h, 2);
      w[u] = _mm256_or_si256(_mm256_and_si256(v, low4), _mm256_and_si256(top, top2));
    }
  }

  // A super-block's numbers of six bits (q4_k, q5_k) as bytes: [block][row].
  struct SixBits {
    alignas(32) uint8_t scale[8][kRows];
    alignas(32) uint8_t min[8][kRows];
  };

  [[gnu::always_inline]] static void load_six_bits(const uint8_t* panel,
                                                   const PanelPlan& plan,
                                                   int64_t s,
                                                   SixBits& to) {
    const I low4 = _mm256_set1_epi8(15), three = _mm256_set1_epi8(3);
    const I odd = _mm256_set_epi64x(4, 0, 4, 0);  // the top bits of odd blocks stand higher
    const I tops = load(panel + plan.tops + s * 4 * kRows);
    SLUICE_UNROLL
    for (int i = 0; i < 2; ++i) {  // four blocks
      const I low = load(panel + plan.scale + (s * 8 + i * 4) * kRows);
      const I twice =
          i == 0 ? _mm256_permute4x64_epi64(tops, 0x50) : _mm256_permute4x64_epi64(tops, 0xfa);
      const I top = _mm256_srlv_epi64(twice, odd);
      const I scale_top = _mm256_slli_epi16(_mm256_and_si256(top, three), 4);
      const I min_top = _mm256_slli_epi16(_mm256_and_si256(_mm256_srli_epi16(top, 2), three), 4);
      const I scale = _mm256_or_si256(_mm256_and_si256(low, low4), scale_top);
      const I min = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(low, 4), low4), min_top);
      _mm256_store_si256(reinterpret_cast<__m256i*>(to.scale[i * 4]), scale);
      _mm256_store_si256(reinterpret_cast<__m256i*>(to.min[i * 4]), min);
    }
  }

  // Sixteen columns of a block as four vectors of codes (low_bit_top).
  template <Format F, int kHalf>
  [[gnu::always_inline]] static void low_bit_units(I v, I top, I (&w)[4]) {
    I even = v, odd = _mm256_srli_epi16(v, 2);
    if constexpr (kThreeBits<F>) {
      const I low = _mm256_set1_epi8(0x33);
      const I top0 = kHalf == 0 ? top : _mm256_slli_epi16(top, 1);
      const I top1 = kHalf == 0 ? _mm256_srli_epi16(top, 1) : _mm256_slli_epi16(top, 2);
      even = select(low, even, top0);
      odd = select(low, odd, top1);
    }
    const I mask = _mm256_set1_epi8(kThreeBits<F> ? 7 : 3);
    w[0] = _mm256_and_si256(even, mask);
    w[1] = _mm256_and_si256(odd, mask);
    w[2] = _mm256_and_si256(_mm256_srli_epi16(even, 4), mask);
    w[3] = _mm256_and_si256(_mm256_srli_epi16(odd, 4), mask);
  }

  // 16-bit integers, in the low half of each row's lane; the high half is zero. mins: both of
  // q2_k's.
  struct LowBitScales {
    I first, second;
    I mins;
  };
  struct LowBitBytes {};  // scales are read block by block

  static void low_bit_unpack(const uint8_t*, const LowBitPlan&, int64_t, LowBitBytes&) {}

  template <Format F>
  [[gnu::always_inline]] static LowBitScales low_bit_scales(const uint8_t* panel,
                                                            const LowBitPlan& plan,
                                                            int64_t b,
                                                            const LowBitBytes&) {
    if constexpr (kThreeBits<F>) {
      const SixBitPair s = six_bits(load8(panel + plan.scale + b * kRows),
                                    load8(panel + plan.tops + b / 2 * kRows), b);
      const I offset = _mm256_set1_epi32(32);  // taken from the low halves only
      return {_mm256_sub_epi16(_mm256_cvtepu8_epi32(s.first), offset),
              _mm256_sub_epi16(_mm256_cvtepu8_epi32(s.second), offset), _mm256_setzero_si256()};
    } else {
      const I v = _mm256_cvtepu8_epi16(load16(panel + plan.scale + b * 2 * kRows));
      const I nibble = _mm256_set1_epi32(15);
      return {_mm256_and_si256(v, nibble), _mm256_and_si256(_mm256_srli_epi32(v, 16), nibble),
              _mm256_srli_epi16(v, 4)};
    }
  }
};

}  // namespace
}  // namespace sluice::cpu
