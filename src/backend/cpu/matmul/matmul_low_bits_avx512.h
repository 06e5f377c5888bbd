// Reads the panels of LowBitPlan (pack_plan.h) with 16 rows and units of 4 columns: codes as bytes,
// scales as integers in the lanes of their rows. For the kernels built with AVX-512 only.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_panels_avx512.h"
#include "backend/cpu/matmul/pack_plan.h"

namespace sluice::cpu {

// Where block b of a panel is.
struct LowBitBlock {
  const uint8_t* codes;
  const uint8_t* top;
};

[[gnu::always_inline]] inline LowBitBlock low_bit_block(const uint8_t* panel,
                                                        const LowBitPlan& plan,
                                                        int64_t b) {
  return {panel + b * 8 * kPanelRows, panel + plan.top + b * 4 * kPanelRows};
}

// Sixteen columns of a block as four vectors of codes. v: that half's low bits; top: the block's
// third bits, which first join those of units 0 and 2, and of 1 and 3 (low_bit_top).
template <Format F, int kHalf>
[[gnu::always_inline]] inline void low_bit_units(__m512i v, __m512i top, __m512i (&w)[4]) {
  __m512i even = v, odd = _mm512_srli_epi16(v, 2);
  if constexpr (kThreeBits<F>) {
    const __m512i low = _mm512_set1_epi8(0x33);
    const __m512i top0 = kHalf == 0 ? top : _mm512_slli_epi16(top, 1);
    const __m512i top1 = kHalf == 0 ? _mm512_srli_epi16(top, 1) : _mm512_slli_epi16(top, 2);
    even = _mm512_ternarylogic_epi32(low, even, top0, 0xca);
    odd = _mm512_ternarylogic_epi32(low, odd, top1, 0xca);
  }
  const __m512i mask = _mm512_set1_epi8(kThreeBits<F> ? 7 : 3);
  w[0] = _mm512_and_si512(even, mask);
  w[1] = _mm512_and_si512(odd, mask);
  w[2] = _mm512_and_si512(_mm512_srli_epi16(even, 4), mask);
  w[3] = _mm512_and_si512(_mm512_srli_epi16(odd, 4), mask);
}

// The scales of q3_k's blocks of 32, eight at once: [half][block][row], 32 above what they mean.
using LowBitBytes = uint8_t[2][8 * kPanelRows];

// Super-block `super` of a panel.
[[gnu::always_inline]] inline void low_bit_unpack(const uint8_t* panel,
                                                  const LowBitPlan& plan,
                                                  int64_t super,
                                                  LowBitBytes& out) {
  constexpr int R = kPanelRows;
  const __m512i low4 = _mm512_set1_epi8(15), six = _mm512_set1_epi8(63);
  const __m512i tops = load64(panel + plan.tops + super * 4 * R);  // of two blocks in 16 bytes
  const __m512i odd = _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4);
  SLUICE_UNROLL
  for (int i = 0; i < 2; ++i) {  // four blocks
    const __m512i v = load64(panel + plan.scale + super * 8 * R + i * 64);
    const __m512i twice =
        i == 0 ? _mm512_shuffle_i32x4(tops, tops, 0x50) : _mm512_shuffle_i32x4(tops, tops, 0xfa);
    const __m512i t = _mm512_srlv_epi32(twice, odd);
    const __m512i s0 = _mm512_ternarylogic_epi32(low4, v, _mm512_slli_epi32(t, 4), 0xca);
    const __m512i s1 =
        _mm512_ternarylogic_epi32(low4, _mm512_srli_epi32(v, 4), _mm512_slli_epi32(t, 2), 0xca);
    _mm512_storeu_si512(out[0] + i * 64, _mm512_and_si512(s0, six));
    _mm512_storeu_si512(out[1] + i * 64, _mm512_and_si512(s1, six));
  }
}

// 16-bit integers, in the low half of each row's lane; the high half is zero. mins: both of q2_k's.
struct LowBitScales {
  __m512i first, second;
  __m512i mins;
};

// Block b of a panel. bytes: q3_k's super-block, unpacked.
template <Format F>
[[gnu::always_inline]] inline LowBitScales low_bit_scales(const uint8_t* panel,
                                                          const LowBitPlan& plan,
                                                          int64_t b,
                                                          const LowBitBytes& bytes) {
  constexpr int R = kPanelRows;
  if constexpr (kThreeBits<F>) {
    const __m512i offset = _mm512_set1_epi32(32);  // taken from the low halves only
    __m512i s[2];
    SLUICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const auto* at = reinterpret_cast<const __m128i*>(bytes[half] + b % 8 * R);
      s[half] = _mm512_sub_epi16(_mm512_cvtepu8_epi32(_mm_loadu_si128(at)), offset);
    }
    return {s[0], s[1], _mm512_setzero_si512()};
  } else {
    const __m512i v = _mm512_cvtepu8_epi16(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(panel + plan.scale + b * 2 * R)));
    const __m512i nibble = _mm512_set1_epi32(15);
    return {_mm512_and_si512(v, nibble), _mm512_and_si512(_mm512_srli_epi32(v, 16), nibble),
            _mm512_srli_epi16(v, 4)};
  }
}

}  // namespace sluice::cpu
