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
    __m512i i0 = _mm512_setzero_si512();
    __m512i i1 = i0;
    const Int8Scale s = int8_scale(bits);
    scale[b] = s.scale;
    if (!s.zero) {
      const __m512 inverse = _mm512_set1_ps(s.inverse);
      i0 = _mm512_cvtps_epi32(_mm512_mul_ps(v0, inverse));
      i1 = _mm512_cvtps_epi32(_mm512_mul_ps(v1, inverse));
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtepi32_epi8(i0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16), _mm512_cvtepi32_epi8(i1));
    sum[b] = _mm512_reduce_add_epi32(_mm512_add_epi32(i0, i1));
  }
}

void quantize_whole_row_avx512(
    const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i most[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  for (int64_t i = 0; i < cols; i += 32) {
    for (int j = 0; j < 2; ++j) {
      const __m512i v = _mm512_castps_si512(_mm512_loadu_ps(x + i + 16 * j));
      most[j] = _mm512_max_epu32(most[j], _mm512_and_si512(v, magnitude));
    }
  }
  const auto bits =
      static_cast<uint32_t>(_mm512_reduce_max_epu32(_mm512_max_epu32(most[0], most[1])));
  const Int8Scale s = int8_scale(bits);
  *scale = s.scale;
  if (s.zero) {
    __builtin_memset(q, 0, static_cast<size_t>(cols));
    *sum = 0;
    return;
  }
  const __m512 inverse = _mm512_set1_ps(s.inverse);
  __m512i total[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  for (int64_t i = 0; i < cols; i += 32) {
    for (int j = 0; j < 2; ++j) {
      const __m512i n = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i + 16 * j), inverse));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(q + i + 16 * j), _mm512_cvtepi32_epi8(n));
      total[j] = _mm512_add_epi32(total[j], n);
    }
  }
  *sum = _mm512_reduce_add_epi32(_mm512_add_epi32(total[0], total[1]));
}

}  // namespace sluice::cpu
