// Eight rows of a group in vectors of 256 bits, for the kernels of matmul_*vnni_inl.h. Only for
// files compiled for AVX2 with VNNI.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/matmul/matmul_panels_avxvnni.h"
#include "backend/cpu/matmul/matmul_tiles_inl.h"

namespace sluice::cpu {
namespace {

struct Vnni256 : Panels256 {
  using Mask = __m256i;

  // Heights of tiles, in rows of x: sixteen registers, and two groups share what is loaded of x.
  static constexpr Heights kRowTiles{6, 6, 2};
  static constexpr Heights kBlockTiles{3, 3, 1};
  static constexpr Heights kLowBitTiles{3, 3, 1};
  static constexpr Heights kQ6Tiles{3, 3, 1};
  static constexpr bool kHoldLoads = true;  // of codes, or accumulators are spilled
  template <Format F, int MT>
  static constexpr int kSharing = F == Format::q8_0                    ? 2
                                  : kHasLevels<F> || kHighBits<F> != 0 ? 0
                                                                       : 3;

  using Panels256::load;
  static F32 load(const float* p) { return _mm256_loadu_ps(p); }
  static I load(const int32_t* p, Mask which) { return _mm256_maskload_epi32(p, which); }
  static F32 load(const float* p, Mask which) { return _mm256_maskload_ps(p, which); }
  static void store(int32_t* p, I x) { _mm256_store_si256(reinterpret_cast<__m256i*>(p), x); }
  static void store(float* p, F32 x) { _mm256_store_ps(p, x); }
  static void store(float* p, F32 x, Mask which) { _mm256_maskstore_ps(p, which, x); }

  static I set(int32_t x) { return _mm256_set1_epi32(x); }
  static F32 set(float x) { return _mm256_set1_ps(x); }
  static I widen(const uint8_t* p) { return _mm256_cvtepu8_epi32(load8(p)); }
  static I widen(const int8_t* p) {
    return _mm256_cvtepi8_epi32(load8(reinterpret_cast<const uint8_t*>(p)));
  }
  static I widen(const int16_t* p) {
    return _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static F32 to_float(I x) { return _mm256_cvtepi32_ps(x); }

  static I add(I x, I y) { return _mm256_add_epi32(x, y); }
  static I sub(I x, I y) { return _mm256_sub_epi32(x, y); }
  static I mul(I x, I y) { return _mm256_mullo_epi32(x, y); }
  static I bit_or(I x, I y) { return _mm256_or_si256(x, y); }
  template <int kBits>
  static I shift_left(I x) {
    return _mm256_slli_epi32(x, kBits);
  }
  // dot: sum + codes (unsigned bytes) times x (signed), four to a lane. dot16: the same of 16-bit
  // integers, two to a lane.
#if defined(SLUICE_STAND_INS)
  static I dot(I sum, I codes, I x) { return _mm256_dpbusd_epi32(sum, codes, x); }
  static I dot16(I sum, I x, I y) { return _mm256_dpwssd_epi32(sum, x, y); }
#else
  static I dot(I sum, I codes, I x) { return _mm256_dpbusd_avx_epi32(sum, codes, x); }
  static I dot16(I sum, I x, I y) { return _mm256_dpwssd_avx_epi32(sum, x, y); }
#endif
  static I dot16(I x, I y) { return _mm256_madd_epi16(x, y); }

  static F32 add(F32 x, F32 y) { return _mm256_add_ps(x, y); }
  static F32 mul(F32 x, F32 y) { return _mm256_mul_ps(x, y); }
  static F32 fma(F32 x, F32 y, F32 sum) { return _mm256_fmadd_ps(x, y, sum); }
  static F32 fnma(F32 x, F32 y, F32 sum) { return _mm256_fnmadd_ps(x, y, sum); }

  // The first n lanes.
  static Mask first(int64_t n) {
    const I lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(n < kRows ? n : kRows)), lane);
  }

  // Eight sums of 32, 16 bits each, from sixteen of 16.
  [[gnu::always_inline]] static void store_sums_of_32(const int16_t* sum16, int32_t (&to)[4]) {
    const I sixteens = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sum16));
    const I wide = _mm256_madd_epi16(sixteens, _mm256_set1_epi16(1));
    const I twice = _mm256_permute4x64_epi64(_mm256_packs_epi32(wide, wide), 0x08);
    _mm_store_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(twice));
  }

  // Sums of the eight sixteens of 128 columns of x, first those of even number.
  [[gnu::always_inline]] static I sum_sixteens(const int8_t* x) {
    I s[4];
    SLUICE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const I v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i * 32));
      s[i] = dot(_mm256_setzero_si256(), _mm256_set1_epi8(1), v);
    }
    return _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3]));
  }

  // Of q3_k minus four times those sums; of q2_k those of a block in a word, 16 bits each.
  [[gnu::always_inline]] static void store_low_bit_sums(const int8_t* x, int32_t (&to)[16]) {
    const I order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    SLUICE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const I sums = _mm256_permutevar8x32_epi32(sum_sixteens(x + i * 128), order);
      store(to + i * 8, sub(_mm256_setzero_si256(), shift_left<2>(sums)));
    }
  }
  [[gnu::always_inline]] static void store_low_bit_sums(const int8_t* x, int32_t (&to)[8]) {
    const I low = _mm256_set1_epi32(0xffff);
    SLUICE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const I sums = sum_sixteens(x + i * 128);
      const I odd = _mm256_permute4x64_epi64(sums, 0x0e);
      const I both = bit_or(_mm256_and_si256(sums, low), shift_left<16>(odd));
      _mm_store_si128(reinterpret_cast<__m128i*>(to + i * 4), _mm256_castsi256_si128(both));
    }
  }
};

}  // namespace
}  // namespace sluice::cpu
