#include <immintrin.h>

#include "backend/cpu/quantize.h"

namespace sluice::cpu {

void quantize_row_avx512(const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int64_t b = 0; b < cols / 32; ++b, x += 32, q += 32) {
    const __m512 v0 = _mm512_loadu_ps(x);
    const __m512 v1 = _mm512_loadu_ps(x + 16);
    const auto bits = static_cast<uint32_t>(_mm512_reduce_max_epu32(
        _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(v0), magnitude),
                         _mm512_and_si512(_mm512_castps_si512(v1), magnitude))));
    const float absmax = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(bits))));
    __m512i i0 = _mm512_setzero_si512();
    __m512i i1 = i0;
    if (bits >= 0x7f800000u) {
      scale[b] = __builtin_nanf("");
    } else if (absmax < 1e-30f) {
      scale[b] = 0;
    } else {
      scale[b] = absmax / 127;
      const __m512 inverse = _mm512_set1_ps(127 / absmax);
      i0 = _mm512_cvtps_epi32(_mm512_mul_ps(v0, inverse));
      i1 = _mm512_cvtps_epi32(_mm512_mul_ps(v1, inverse));
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtepi32_epi8(i0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16), _mm512_cvtepi32_epi8(i1));
    sum[b] = _mm512_reduce_add_epi32(_mm512_add_epi32(i0, i1));
  }
}

}  // namespace sluice::cpu
