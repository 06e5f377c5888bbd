// Loads and stores of register tiles, shared by the integer kernels for AVX-512 that read panels of
// 16 rows. Each file that includes this has its own copy, compiled with its flags.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_panels_avx512.h"
#include "backend/cpu/matmul/matmul_tiles_inl.h"

namespace sluice::cpu {
namespace {

[[gnu::always_inline]] inline __m512i broadcast4(const int8_t* x) {
  int32_t v;
  std::memcpy(&v, x, 4);
  return _mm512_set1_epi32(v);
}

// Sums of the sixteen sixteens of 256 columns of x, times kFactor: sixteen n is at
// n % 4 * 4 + n / 4.
template <int kFactor>
[[gnu::always_inline]] inline __m512i sum_sixteens(const int8_t* x) {
  __m512i s[4];  // of 4 columns each
  SLUICE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const __m512i v = _mm512_loadu_si512(reinterpret_cast<const void*>(x + i * 64));
    s[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(kFactor), v);
  }
  const __m512i s01 =
      _mm512_add_epi32(_mm512_unpacklo_epi32(s[0], s[1]), _mm512_unpackhi_epi32(s[0], s[1]));
  const __m512i s23 =
      _mm512_add_epi32(_mm512_unpacklo_epi32(s[2], s[3]), _mm512_unpackhi_epi32(s[2], s[3]));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(s01, s23), _mm512_unpackhi_epi64(s01, s23));
}

// idot += one 32-column block of 4-bit or 5-bit codes. tops: its high plane.
template <Format F, int G, int MT>
[[gnu::always_inline]] inline void dot_codes(const uint8_t* w,
                                             const uint8_t* tops,
                                             size_t panel,
                                             const int8_t* x,
                                             int64_t cols,
                                             __m512i (&idot)[G][MT]) {
  SLUICE_UNROLL
  for (int u = 0; u < 4; ++u) {
    __m512i low[G], high[G];
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      load_units<F>(w + g * panel, tops + g * panel, u, low[g], high[g]);
    }
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      const __m512i x0 = broadcast4(x + m * cols + u * 4);
      const __m512i x1 = broadcast4(x + m * cols + 16 + u * 4);
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) idot[g][m] = _mm512_dpbusd_epi32(idot[g][m], low[g], x0);
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) idot[g][m] = _mm512_dpbusd_epi32(idot[g][m], high[g], x1);
    }
  }
}

template <int G, int MT>
[[gnu::always_inline]] inline void clear(__m512 (&acc)[G][MT]) {
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) acc[g][m] = _mm512_setzero_ps();
  }
}

template <int G, int MT>
[[gnu::always_inline]] inline void store(const Tile& t, const __m512 (&acc)[G][MT]) {
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    const int64_t left = t.rows_left - g * kPanelRows;
    const auto mask = static_cast<__mmask16>(left >= kPanelRows ? 0xffff : (1u << left) - 1);
    const __m512 bias =
        t.bias ? _mm512_maskz_loadu_ps(mask, t.bias + g * kPanelRows) : _mm512_setzero_ps();
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      _mm512_mask_storeu_ps(t.out + m * t.out_stride + g * kPanelRows, mask,
                            _mm512_add_ps(acc[g][m], bias));
    }
  }
}

}  // namespace
}  // namespace sluice::cpu
