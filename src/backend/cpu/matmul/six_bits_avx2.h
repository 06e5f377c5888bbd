// Scales of six bits in the panels of pack_plan.h, as bytes of their rows. For kernels built with
// AVX2 or AVX-512 only.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace sluice::cpu {

struct SixBitPair {
  __m128i first, second;
};

// Block b's two numbers for each row. low: their low nibbles; tops: the top bits, those of an even
// and of an odd block together.
[[gnu::always_inline]] inline SixBitPair six_bits(__m128i low, __m128i tops, int64_t b) {
  const __m128i low4 = _mm_set1_epi8(15);
  const __m128i t = _mm_srl_epi16(tops, _mm_cvtsi32_si128(static_cast<int>(b % 2 * 4)));
  const __m128i top0 = _mm_slli_epi16(_mm_and_si128(t, _mm_set1_epi8(3)), 4);
  const __m128i top1 = _mm_slli_epi16(_mm_and_si128(t, _mm_set1_epi8(12)), 2);
  return {_mm_or_si128(_mm_and_si128(low, low4), top0),
          _mm_or_si128(_mm_and_si128(_mm_srli_epi16(low, 4), low4), top1)};
}

}  // namespace sluice::cpu
