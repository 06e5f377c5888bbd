// Shared by the int_super kernels for AMX. Codes are multiplied by their integer scales and laid
// out as two planes of bytes, once for all rows of x, so that a super-block is two exact sums over
// 256 columns, S = low + (high << shift), and passes into f32 once:
//   q4_k  low = q (scale % 16) <= 225, high = q (scale / 16) <= 45
//   q5_k  low = q (scale % 8) <= 217, high = q (scale / 8) <= 217
//   q6_k  the two bytes of scale (q - 32), the high one signed
// Minimums times sums of x are a product of bf16 tiles: sums of 16 are split in two numbers that
// bf16 holds, and everything added up is an integer below 2^24, so exact in any order.
// Each file that includes this has its own copy, compiled as it is.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_panels_avx512.h"

namespace sluice::cpu {
namespace {

constexpr int R = kPanelRows;
constexpr int kTileRows = 16;  // of x
constexpr int kTilesOf = 4;    // tiles of 64 columns in a super-block

template <Format F>
constexpr int kShift = F == Format::q4_k   ? 4
                       : F == Format::q5_k ? 3
                                           : 8;

// A super-block of 16 rows of x.
struct alignas(64) XSuper {
  int8_t q[kTilesOf][kTileRows][64];
  uint32_t sums[kTileRows][16];  // of 16 columns each: a multiple of 64 and the rest, as bf16
  float scale[kTileRows];
};
static_assert(sizeof(XSuper) == kXSuperBytes);

// A super-block of a group.
struct alignas(64) WSuper {
  uint8_t low[kTilesOf][16][R * 4];  // [unit][row][column of the unit]
  uint8_t high[kTilesOf][16][R * 4];
  uint32_t mins[16][R];  // of 16 columns each, twice, as bf16
  float d[R], dmin[R];
};

// Planes of 64 products of codes with their rows' scale.
template <Format F>
struct Factors {
  __m512i first, second;  // q4_k, q5_k: of the low and of the high plane; q6_k: even, odd columns
  __m512i offset;         // q6_k: 32 times the scale
};

template <Format F>
[[gnu::always_inline]] inline Factors<F> factors(__m512i scale) {  // 32 bits
  if constexpr (F == Format::q6_k) {
    const __m512i bytes = _mm512_and_si512(scale, _mm512_set1_epi32(255));
    const __m512i even = _mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 16));
    const __m512i words = _mm512_mask_blend_epi16(0xaaaaaaaau, scale, _mm512_slli_epi32(scale, 16));
    return {even, _mm512_slli_epi16(even, 8), _mm512_slli_epi16(words, 5)};
  } else {
    const __m512i twice = _mm512_or_si512(scale, _mm512_slli_epi32(scale, 16));
    const __m512i low = _mm512_set1_epi16((1 << kShift<F>)-1);
    return {_mm512_and_si512(twice, low), _mm512_srli_epi16(twice, kShift<F>), low};
  }
}

// q: unsigned codes. Products of two bytes of q4_k and q5_k with a factor do not carry.
template <Format F>
[[gnu::always_inline]] inline void put_products(__m512i q,
                                                const Factors<F>& f,
                                                uint8_t* low,
                                                uint8_t* high) {
  if constexpr (F == Format::q6_k) {
    const __m512i even = _mm512_sub_epi16(_mm512_maddubs_epi16(q, f.first), f.offset);
    const __m512i odd = _mm512_sub_epi16(_mm512_maddubs_epi16(q, f.second), f.offset);
    const __m512i bytes = _mm512_set1_epi16(255);
    _mm512_store_si512(low,
                       _mm512_ternarylogic_epi32(bytes, even, _mm512_slli_epi16(odd, 8), 0xca));
    _mm512_store_si512(high,
                       _mm512_ternarylogic_epi32(bytes, _mm512_srli_epi16(even, 8), odd, 0xca));
  } else {
    _mm512_store_si512(low, _mm512_mullo_epi16(q, f.first));
    _mm512_store_si512(high, _mm512_mullo_epi16(q, f.second));
  }
}

// Block b of 32 columns: units unit to unit + 7 of tile i.
template <Format F>
[[gnu::always_inline]] inline void lay_out_block(const uint8_t* panel,
                                                 const PanelPlan& plan,
                                                 int64_t b,
                                                 WSuper& w) {
  const int64_t i = b % 8 / 2, unit = b % 2 * 8;
  const uint8_t* codes = panel + b * kLowBytes<F> * R;
  if constexpr (F == Format::q6_k) {
    const uint8_t* tops = panel + plan.high + b * 8 * R;
    const uint8_t* scales = panel + plan.scale + b * 2 * R;
    __m512i q[4];
    q6_units<0>(codes, tops, q);
    Factors<F> f = factors<F>(_mm512_cvtepi8_epi32(load16(scales)));
    SLUICE_UNROLL
    for (int u = 0; u < 4; ++u) put_products(q[u], f, w.low[i][unit + u], w.high[i][unit + u]);
    q6_units<1>(codes, tops, q);
    f = factors<F>(_mm512_cvtepi8_epi32(load16(scales + R)));
    SLUICE_UNROLL
    for (int u = 0; u < 4; ++u) {
      put_products(q[u], f, w.low[i][unit + 4 + u], w.high[i][unit + 4 + u]);
    }
  } else {
    const uint8_t* tops = panel + plan.high + b * 4 * R;
    const SixBitPair six =
        six_bits(load16(panel + plan.scale + b * R), load16(panel + plan.tops + b / 2 * R), b);
    const Factors<F> f = factors<F>(_mm512_cvtepu8_epi32(six.first));
    SLUICE_UNROLL
    for (int u = 0; u < 4; ++u) {
      __m512i first, second;
      load_units<F>(codes, tops, u, first, second);
      put_products(first, f, w.low[i][unit + u], w.high[i][unit + u]);
      put_products(second, f, w.low[i][unit + 4 + u], w.high[i][unit + 4 + u]);
    }
    const __m512i min = _mm512_castps_si512(widen_u8(six.second));
    const __m512i twice = _mm512_or_si512(min, _mm512_srli_epi32(min, 16));
    _mm512_store_si512(w.mins[b % 8 * 2], twice);
    _mm512_store_si512(w.mins[b % 8 * 2 + 1], twice);
  }
}

template <Format F>
void lay_out_w(const uint8_t* panel, const PanelPlan& plan, int64_t s, WSuper& w) {
  for (int64_t b = s * 8; b < s * 8 + 8; ++b) lay_out_block<F>(panel, plan, b, w);
  const uint8_t* super = panel + plan.extra + s * (kSuperScales<F> ? 4 : 2) * R;
  _mm512_store_ps(w.d, load_f16(super));
  if constexpr (kSuperScales<F>) _mm512_store_ps(w.dmin, load_f16(super + 2 * R));
}

}  // namespace
}  // namespace sluice::cpu
