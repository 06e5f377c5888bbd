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

void quantize_supers_avx512(const float* x, int64_t cols, int8_t* q, float* scale, int16_t* sum) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int64_t b = 0; b < cols / 256; ++b, x += 256, q += 256, sum += 16) {
    __m512i most[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (int i = 0; i < 16; ++i) {
      const __m512i v = _mm512_castps_si512(_mm512_loadu_ps(x + 16 * i));
      most[i % 2] = _mm512_max_epu32(most[i % 2], _mm512_and_si512(v, magnitude));
    }
    const Int8Scale s = int8_scale(
        static_cast<uint32_t>(_mm512_reduce_max_epu32(_mm512_max_epu32(most[0], most[1]))));
    scale[b] = s.scale;
    if (s.zero) {
      __builtin_memset(q, 0, 256);
      __builtin_memset(sum, 0, 32);
      continue;
    }
    const __m512 inverse = _mm512_set1_ps(s.inverse);
    for (int i = 0; i < 16; ++i) {
      const __m512i n = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * i), inverse));
      const __m128i bytes = _mm512_cvtepi32_epi8(n);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16 * i), bytes);
      // Sums of eight of the bytes plus 128.
      const __m128i eights = _mm_sad_epu8(
          _mm_xor_si128(bytes, _mm_set1_epi8(static_cast<char>(0x80))), _mm_setzero_si128());
      sum[i] =
          static_cast<int16_t>(_mm_cvtsi128_si32(eights) + _mm_extract_epi16(eights, 4) - 16 * 128);
    }
  }
}

}  // namespace sluice::cpu
