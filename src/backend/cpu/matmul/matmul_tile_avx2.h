// Loads and stores of register tiles, shared by the integer kernels for AVX2 that read panels of 8
// rows. Each file that includes this has its own copy, compiled with its flags.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_tiles_inl.h"

namespace sluice::cpu {
namespace {

constexpr int R = 8;  // rows of a group

[[gnu::always_inline]] inline __m256i broadcast4(const int8_t* x) {
  int32_t v;
  std::memcpy(&v, x, 4);
  return _mm256_set1_epi32(v);
}

[[gnu::always_inline]] inline __m256i load32(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

[[gnu::always_inline]] inline __m128i load8(const uint8_t* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}

[[gnu::always_inline]] inline __m256 load_f16(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

[[gnu::always_inline]] inline __m256 load_bf16(const uint8_t* p) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

[[gnu::always_inline]] inline __m256i widen_add(__m256i pairs) {
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

// Makes the compiler add to `sum` here. Else GCC adds a block's products up pairwise and needs more
// registers than there are.
[[gnu::always_inline]] inline void keep(__m256i& sum) { __asm__("" : "+x"(sum)); }

template <int G, int MT>
[[gnu::always_inline]] inline void clear(__m256 (&acc)[G][MT]) {
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) acc[g][m] = _mm256_setzero_ps();
  }
}

template <int G, int MT>
[[gnu::always_inline]] inline void store(const Tile& t, const __m256 (&acc)[G][MT]) {
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    const int64_t left = t.rows_left - g * R;
    if (left >= R) {
      const __m256 bias = t.bias ? _mm256_loadu_ps(t.bias + g * R) : _mm256_setzero_ps();
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) {
        _mm256_storeu_ps(t.out + m * t.out_stride + g * R, _mm256_add_ps(acc[g][m], bias));
      }
    } else {
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) {
        float lanes[R];
        _mm256_storeu_ps(lanes, acc[g][m]);
        for (int64_t i = 0; i < left; ++i) {
          t.out[m * t.out_stride + g * R + i] = lanes[i] + (t.bias ? t.bias[g * R + i] : 0);
        }
      }
    }
  }
}

// Sixteen registers hold four rows of x beside one group, two beside two, or one beside four. Where
// codes are put together from bits, more rows share that work, and their sums are in memory.
struct Avx2Blocks {
  static constexpr int kRows = R, kStep = 1;
  static constexpr Heights kMost{4, 2, 1};
};

}  // namespace
}  // namespace sluice::cpu
