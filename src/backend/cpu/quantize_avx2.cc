#include <immintrin.h>

#include "backend/cpu/quantize.h"

namespace sluice::cpu {
namespace {

int32_t low_lane(__m256i v) { return _mm_cvtsi128_si32(_mm256_castsi256_si128(v)); }

// Every lane becomes op over all eight.
template <typename Op>
__m256i across(__m256i v, Op op) {
  v = op(v, _mm256_permute2x128_si256(v, v, 1));
  v = op(v, _mm256_shuffle_epi32(v, 0x4e));
  return op(v, _mm256_shuffle_epi32(v, 0xb1));
}

}  // namespace

void quantize_row_avx2(const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  const auto larger = [](__m256i a, __m256i b) { return _mm256_max_epu32(a, b); };
  const auto add = [](__m256i a, __m256i b) { return _mm256_add_epi32(a, b); };
  for (int64_t b = 0; b < cols / 32; ++b, x += 32, q += 32) {
    __m256 v[4];
    __m256i most = _mm256_setzero_si256();
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + 8 * i);
      most = larger(most, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
    }
    most = across(most, larger);
    const Int8Scale s = int8_scale(static_cast<uint32_t>(low_lane(most)));
    scale[b] = s.scale;
    __m256i n[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                    _mm256_setzero_si256()};
    if (!s.zero) {
      const __m256 inverse = _mm256_set1_ps(s.inverse);
      for (int i = 0; i < 4; ++i) n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    }
    sum[b] = low_lane(across(add(add(n[0], n[1]), add(n[2], n[3])), add));
    // The packs work within 128-bit halves; the permutation puts quarters of four back in order.
    const __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_permutevar8x32_epi32(bytes, order));
  }
}

void quantize_whole_row_avx2(const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  const auto larger = [](__m256i a, __m256i b) { return _mm256_max_epu32(a, b); };
  const auto add = [](__m256i a, __m256i b) { return _mm256_add_epi32(a, b); };
  __m256i most = _mm256_setzero_si256();
  for (int64_t i = 0; i < cols; i += 8) {
    most = larger(most, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + i)), magnitude));
  }
  most = across(most, larger);
  const Int8Scale s = int8_scale(static_cast<uint32_t>(low_lane(most)));
  *scale = s.scale;
  if (s.zero) {
    __builtin_memset(q, 0, static_cast<size_t>(cols));
    *sum = 0;
    return;
  }
  const __m256 inverse = _mm256_set1_ps(s.inverse);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // as above
  __m256i total = _mm256_setzero_si256();
  for (int64_t i = 0; i < cols; i += 32) {
    __m256i n[4];
    for (int j = 0; j < 4; ++j) {
      n[j] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8 * j), inverse));
      total = add(total, n[j]);
    }
    const __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + i),
                        _mm256_permutevar8x32_epi32(bytes, order));
  }
  *sum = low_lane(across(total, add));
}

void quantize_supers_avx2(const float* x, int64_t cols, int8_t* q, float* scale, int16_t* sum) {
  for (int64_t b = 0; b < cols / 256; ++b, x += 256, q += 256, sum += 16) {
    int32_t whole;
    quantize_whole_row_avx2(x, 256, q, scale + b, &whole);
    for (int i = 0; i < 16; ++i) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q + 16 * i));
      // Sums of eight of the bytes plus 128.
      const __m128i eights = _mm_sad_epu8(
          _mm_xor_si128(bytes, _mm_set1_epi8(static_cast<char>(0x80))), _mm_setzero_si128());
      sum[i] =
          static_cast<int16_t>(_mm_cvtsi128_si32(eights) + _mm_extract_epi16(eights, 4) - 16 * 128);
    }
  }
}

}  // namespace sluice::cpu
