// Sixteen rows of a group in vectors of 512 bits, for the kernels of matmul_*vnni_inl.h. Only for
// files compiled for AVX-512 with VNNI.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_low_bits_avx512.h"
#include "backend/cpu/matmul/matmul_panels_avx512.h"
#include "backend/cpu/matmul/matmul_tiles_inl.h"

namespace sluice::cpu {
namespace {

struct Vnni512 {
  using I = __m512i;
  using F32 = __m512;
  using Mask = __mmask16;
  static constexpr int kRows = kPanelRows;

  // Heights of tiles, in rows of x, by what a tile keeps in registers.
  static constexpr Heights kRowTiles{6, 6, 6};  // 24 accumulators
  static constexpr Heights kBlockTiles{6, 6, 2};
  static constexpr Heights kLowBitTiles{8, 4, 2};  // of three accumulators for each row and group
  static constexpr Heights kQ6Tiles{8, 4, 2};      // its codes cost the most to put together
  static constexpr bool kHoldLoads = false;
  // Rows of x that share a pointer (Rows), the fastest by measurement.
  template <Format F, int MT>
  static constexpr int kSharing = (MT < 5 && !kSuperScales<F>) || F == Format::iq4_nl ? 0
                                  : F == Format::q8_0                                 ? 2
                                  : F == Format::mxfp4                                ? 1
                                                                                      : 3;

  static I load(const uint8_t* p) { return load64(p); }
  static F32 load(const float* p) { return _mm512_loadu_ps(p); }
  static I load(const int32_t* p, Mask which) { return _mm512_maskz_loadu_epi32(which, p); }
  static F32 load(const float* p, Mask which) { return _mm512_maskz_loadu_ps(which, p); }
  static void store(int32_t* p, I x) { _mm512_store_si512(p, x); }
  static void store(float* p, F32 x) { _mm512_store_ps(p, x); }
  static void store(float* p, F32 x, Mask which) { _mm512_mask_storeu_ps(p, which, x); }

  static I set(int32_t x) { return _mm512_set1_epi32(x); }
  static F32 set(float x) { return _mm512_set1_ps(x); }
  static I widen(const uint8_t* p) { return _mm512_cvtepu8_epi32(load16(p)); }
  static I widen(const int8_t* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static I widen(const int16_t* p) {
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F32 to_float(I x) { return _mm512_cvtepi32_ps(x); }

  static I add(I x, I y) { return _mm512_add_epi32(x, y); }
  static I sub(I x, I y) { return _mm512_sub_epi32(x, y); }
  static I mul(I x, I y) { return _mm512_mullo_epi32(x, y); }
  static I bit_or(I x, I y) { return _mm512_or_si512(x, y); }
  template <int kBits>
  static I shift_left(I x) {
    return _mm512_slli_epi32(x, kBits);
  }
  // sum + codes (unsigned bytes) times x (signed), four to a lane.
  static I dot(I sum, I codes, I x) { return _mm512_dpbusd_epi32(sum, codes, x); }
  // The same of 16-bit integers, two to a lane.
  static I dot16(I sum, I x, I y) { return _mm512_dpwssd_epi32(sum, x, y); }
  static I dot16(I x, I y) { return _mm512_madd_epi16(x, y); }

  static F32 add(F32 x, F32 y) { return _mm512_add_ps(x, y); }
  static F32 mul(F32 x, F32 y) { return _mm512_mul_ps(x, y); }
  static F32 fma(F32 x, F32 y, F32 sum) { return _mm512_fmadd_ps(x, y, sum); }
  static F32 fnma(F32 x, F32 y, F32 sum) { return _mm512_fnmadd_ps(x, y, sum); }

  // The first n lanes.
  static Mask first(int64_t n) { return static_cast<Mask>(n >= kRows ? 0xffff : (1u << n) - 1); }

  // Reading panels (pack_plan.h).
  template <Format F>
  static void load_units(const uint8_t* w, const uint8_t* tops, int u, I& low, I& high) {
    cpu::load_units<F>(w, tops, u, low, high);
  }
  template <Format F>
  static void load_scales(
      const uint8_t* panel, const PanelPlan& plan, int64_t b, F32& dw, F32& mw) {
    cpu::load_scales<F>(panel, plan, b, dw, mw);
  }
  template <int kHalf>
  static void q6_units(const uint8_t* low, const uint8_t* high, I (&w)[4]) {
    cpu::q6_units<kHalf>(low, high, w);
  }
  static F32 load_f16(const uint8_t* p) { return cpu::load_f16(p); }
  using LowBitBytes = cpu::LowBitBytes;
  using LowBitScales = cpu::LowBitScales;
  template <Format F, int kHalf>
  static void low_bit_units(I v, I top, I (&w)[4]) {
    cpu::low_bit_units<F, kHalf>(v, top, w);
  }
  static void low_bit_unpack(const uint8_t* panel,
                             const LowBitPlan& plan,
                             int64_t super,
                             LowBitBytes& out) {
    cpu::low_bit_unpack(panel, plan, super, out);
  }
  template <Format F>
  static LowBitScales low_bit_scales(const uint8_t* panel,
                                     const LowBitPlan& plan,
                                     int64_t b,
                                     const LowBitBytes& bytes) {
    return cpu::low_bit_scales<F>(panel, plan, b, bytes);
  }

  // Eight sums of 32, 16 bits each, from sixteen of 16.
  [[gnu::always_inline]] static void store_sums_of_32(const int16_t* sum16, int32_t (&to)[4]) {
    const __m256i sixteens = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sum16));
    const __m256i wide = _mm256_madd_epi16(sixteens, _mm256_set1_epi16(1));
    _mm_store_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtepi32_epi16(wide));
  }

  // Sums of the sixteen sixteens of 256 columns of x.
  [[gnu::always_inline]] static __m512i sum_sixteens(const int8_t* x) {
    __m512i s[4];  // of 4 columns each
    SLUICE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const __m512i v = _mm512_loadu_si512(reinterpret_cast<const void*>(x + i * 64));
      s[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), v);
    }
    const __m512i s01 =
        _mm512_add_epi32(_mm512_unpacklo_epi32(s[0], s[1]), _mm512_unpackhi_epi32(s[0], s[1]));
    const __m512i s23 =
        _mm512_add_epi32(_mm512_unpacklo_epi32(s[2], s[3]), _mm512_unpackhi_epi32(s[2], s[3]));
    const __m512i sums =
        _mm512_add_epi32(_mm512_unpacklo_epi64(s01, s23), _mm512_unpackhi_epi64(s01, s23));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, sums);
  }

  // Of q3_k minus four times those sums; of q2_k those of a block in a word, 16 bits each.
  [[gnu::always_inline]] static void store_low_bit_sums(const int8_t* x, int32_t (&to)[16]) {
    const __m512i fours = _mm512_slli_epi32(sum_sixteens(x), 2);
    _mm512_store_si512(to, _mm512_sub_epi32(_mm512_setzero_si512(), fours));
  }
  [[gnu::always_inline]] static void store_low_bit_sums(const int8_t* x, int32_t (&to)[8]) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(sum_sixteens(x)));
  }

  // A super-block's numbers of six bits (q4_k, q5_k) as bytes: [block][row].
  struct SixBits {
    alignas(64) uint8_t scale[8][kRows];
    alignas(64) uint8_t min[8][kRows];
  };

  [[gnu::always_inline]] static void load_six_bits(const uint8_t* panel,
                                                   const PanelPlan& plan,
                                                   int64_t s,
                                                   SixBits& to) {
    constexpr int R = kRows;
    const __m512i low4 = _mm512_set1_epi8(15), six = _mm512_set1_epi8(63);
    // Rotations that take the top bits of an even and of an odd block to bits 4 and 5.
    const __m512i for_scale =
        _mm512_set_epi64(0, 0, 0x400000004, 0x400000004, 0, 0, 0x400000004, 0x400000004);
    const __m512i for_min = _mm512_set_epi64(0x1e0000001e, 0x1e0000001e, 0x200000002, 0x200000002,
                                             0x1e0000001e, 0x1e0000001e, 0x200000002, 0x200000002);
    const __m512i tops = load64(panel + plan.tops + s * 4 * R);
    SLUICE_UNROLL
    for (int i = 0; i < 2; ++i) {  // four blocks
      const __m512i low = load64(panel + plan.scale + (s * 8 + i * 4) * R);
      const __m512i top =
          i == 0 ? _mm512_shuffle_i64x2(tops, tops, 0x50) : _mm512_shuffle_i64x2(tops, tops, 0xfa);
      const __m512i scale =
          _mm512_ternarylogic_epi32(low4, low, _mm512_rolv_epi32(top, for_scale), 0xca);
      const __m512i min = _mm512_ternarylogic_epi32(low4, _mm512_srli_epi16(low, 4),
                                                    _mm512_rolv_epi32(top, for_min), 0xca);
      _mm512_store_si512(to.scale[i * 4], _mm512_and_si512(scale, six));
      _mm512_store_si512(to.min[i * 4], _mm512_and_si512(min, six));
    }
  }
};

}  // namespace
}  // namespace sluice::cpu
