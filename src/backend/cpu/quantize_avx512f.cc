#include <immintrin.h>

#include "backend/cpu/quantize.h"

namespace sluice::cpu {
namespace {

float as_float(uint32_t bits) {
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(bits))));
}

}  // namespace

void quantize_row_avx512(const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int64_t b = 0; b < cols / 32; ++b, x += 32, q += 32) {
    const __m512 v0 = _mm512_loadu_ps(x);
    const __m512 v1 = _mm512_loadu_ps(x + 16);
    const auto bits = static_cast<uint32_t>(_mm512_reduce_max_epu32(
        _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(v0), magnitude),
                         _mm512_and_si512(_mm512_castps_si512(v1), magnitude))));
    const float absmax = as_float(bits);
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
  const float absmax = as_float(bits);
  const bool finite = bits < 0x7f800000u, zero = absmax < 1e-30f;
  *scale = !finite ? __builtin_nanf("") : zero ? 0 : absmax / 127;
  if (!finite || zero) {
    __builtin_memset(q, 0, static_cast<size_t>(cols));
    *sum = 0;
    return;
  }
  const __m512 inverse = _mm512_set1_ps(127 / absmax);
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
