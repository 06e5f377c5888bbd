// int_block32 kernels of q2_k and q3_k for AVX2. Lanes are the 8 rows of a group; a tile is G
// groups (read streams) by MT rows of x. VPMADDUBSW's pair sums of sixteen columns stay below 4 * 2
// * 7 * 127, so they add up in 16 bits, and VPMADDWD multiplies them by the scale as it widens
// them. q3_k's codes stand 4 above the quants: the pairs begin with minus four times the sum of x.
#include <immintrin.h>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_tile_avx2.h"
#include "backend/cpu/matmul/six_bits_avx2.h"

namespace sluice::cpu {
namespace {

// Sums of both sixteens of block b of a row of x, in 16 bits each.
[[gnu::always_inline]] inline uint32_t sums_of(const int8_t* x) {
  const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  const __m256i fours = widen_add(_mm256_maddubs_epi16(_mm256_set1_epi8(1), v));
  const __m256i eights = _mm256_hadd_epi32(fours, fours);
  const __m256i sixteens = _mm256_hadd_epi32(eights, eights);
  const auto first = static_cast<uint32_t>(_mm256_extract_epi32(sixteens, 0));
  const auto second = static_cast<uint32_t>(_mm256_extract_epi32(sixteens, 4));
  return (first & 0xffff) | second << 16;
}

// Of 256 columns of MT rows of x. q2_k: both sums of block b. q3_k: minus four times each of them,
// in the low half of a lane.
template <Format F, int MT>
struct Sums {
  uint32_t of[MT][kThreeBits<F> ? 16 : 8];
};

template <Format F, int MT>
[[gnu::always_inline]] inline void add_up(const Tile& t, int64_t b, Sums<F, MT>& sums) {
  for (int m = 0; m < MT; ++m) {
    for (int i = 0; i < 8; ++i) {
      const uint32_t both = sums_of(t.q + m * t.cols + (b + i) * 32);
      if constexpr (kThreeBits<F>) {
        sums.of[m][2 * i] = (0 - 4 * (both & 0xffff)) & 0xffff;
        sums.of[m][2 * i + 1] = (0 - 4 * (both >> 16)) & 0xffff;
      } else {
        sums.of[m][i] = both;
      }
    }
  }
}

// 16-bit integers, twice in each row's lane. mins: both of q2_k's.
struct Scales {
  __m256i first, second;
  __m256i mins;
};

template <Format F>
[[gnu::always_inline]] inline Scales load_scales(const uint8_t* panel,
                                                 const LowBitPlan& plan,
                                                 int64_t b) {
  const __m256i low_twice = _mm256_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13,  //
                                             0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13);
  if constexpr (kThreeBits<F>) {
    const SixBitPair s =
        six_bits(load8(panel + plan.scale + b * R), load8(panel + plan.tops + b / 2 * R), b);
    const __m128i offset = _mm_set1_epi8(32);
    const __m128i s0 = _mm_sub_epi8(s.first, offset), s1 = _mm_sub_epi8(s.second, offset);
    return {_mm256_shuffle_epi8(_mm256_cvtepi8_epi32(s0), low_twice),
            _mm256_shuffle_epi8(_mm256_cvtepi8_epi32(s1), low_twice), _mm256_setzero_si256()};
  } else {
    const __m256i v = _mm256_cvtepu8_epi16(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(panel + plan.scale + b * 2 * R)));
    const __m256i nibbles = _mm256_and_si256(v, _mm256_set1_epi16(15));
    return {_mm256_shuffle_epi8(nibbles, low_twice),
            _mm256_shuffle_epi8(_mm256_srli_epi32(nibbles, 16), low_twice),
            _mm256_srli_epi16(v, 4)};
  }
}

// The kHalf-th sixteen columns of a block of one group, times `scale`.
template <Format F, int kHalf, int MT>
[[gnu::always_inline]] inline void dot_half(const uint8_t* codes,
                                            const uint8_t* tops,
                                            const Rows<int8_t, MT>& x,
                                            int64_t b,
                                            const Sums<F, MT>& sums,
                                            __m256i scale,
                                            __m256i (&dot)[MT]) {
  const __m256i v = load32(codes + kHalf * 4 * R);
  const __m256i top = kThreeBits<F> ? load32(tops) : v;
  __m256i pairs[MT];
  SLUICE_UNROLL
  for (int m = 0; m < MT; ++m) {
    pairs[m] = kThreeBits<F>
                   ? _mm256_set1_epi32(static_cast<int32_t>(sums.of[m][b % 8 * 2 + kHalf]))
                   : _mm256_setzero_si256();
  }
  __m256i even = v, odd = _mm256_srli_epi16(v, 2);
  if constexpr (kThreeBits<F>) {  // third bits beside those of units 0 and 2, and of 1 and 3
    const __m256i low = _mm256_set1_epi8(0x33), third = _mm256_set1_epi8(0x44);
    const __m256i top0 = kHalf == 0 ? top : _mm256_slli_epi16(top, 1);
    const __m256i top1 = kHalf == 0 ? _mm256_srli_epi16(top, 1) : _mm256_slli_epi16(top, 2);
    even = _mm256_or_si256(_mm256_and_si256(even, low), _mm256_and_si256(top0, third));
    odd = _mm256_or_si256(_mm256_and_si256(odd, low), _mm256_and_si256(top1, third));
  }
  const __m256i mask = _mm256_set1_epi8(kThreeBits<F> ? 7 : 3);
  SLUICE_UNROLL
  for (int u = 0; u < 4; ++u) {
    const __m256i two = u % 2 == 0 ? even : odd;
    const __m256i w = _mm256_and_si256(u < 2 ? two : _mm256_srli_epi16(two, 4), mask);
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      const __m256i xv = broadcast4(x.row(m) + kHalf * 16 + u * 4);
      pairs[m] = _mm256_add_epi16(pairs[m], _mm256_maddubs_epi16(w, xv));
      keep(pairs[m]);
    }
  }
  SLUICE_UNROLL
  for (int m = 0; m < MT; ++m) {
    const __m256i scaled = _mm256_madd_epi16(pairs[m], scale);
    dot[m] = kHalf == 0 ? scaled : _mm256_add_epi32(dot[m], scaled);
  }
}

template <Format F, int G, int MT>
void block_tile(const Tile& t) {
  const LowBitPlan plan = low_bit_plan<F, R>(t.cols);
  __m256 acc[G][MT];
  clear(acc);
  Sums<F, MT> sums;
  Rows<int8_t, MT> x(t.q, t.cols);
  Rows<float, MT> scale(t.scale, plan.num_blocks);
  for (int64_t b = 0; b < plan.num_blocks; ++b) {
    if (b % 8 == 0) add_up<F, MT>(t, b, sums);
    prefetch(t, b);
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      const uint8_t* panel = t.w + g * plan.bytes;
      const uint8_t* codes = panel + b * 8 * R;
      const uint8_t* tops = panel + plan.top + b * 4 * R;
      const uint8_t* super = panel + plan.extra + b / 8 * (kThreeBits<F> ? 2 : 4) * R;
      const Scales scales = load_scales<F>(panel, plan, b);
      __m256i dot[MT];
      dot_half<F, 0, MT>(codes, tops, x, b, sums, scales.first, dot);
      dot_half<F, 1, MT>(codes, tops, x, b, sums, scales.second, dot);
      const __m256 dw = load_f16(super);
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) {
        const __m256 dx = _mm256_set1_ps(*scale.row(m));
        const __m256 value = _mm256_cvtepi32_ps(dot[m]);
        if constexpr (kThreeBits<F>) {
          acc[g][m] = _mm256_fmadd_ps(_mm256_mul_ps(dw, dx), value, acc[g][m]);
        } else {
          const __m256i sum = _mm256_madd_epi16(
              scales.mins, _mm256_set1_epi32(static_cast<int32_t>(sums.of[m][b % 8])));
          const __m256 term = _mm256_fnmadd_ps(load_f16(super + 2 * R), _mm256_cvtepi32_ps(sum),
                                               _mm256_mul_ps(dw, value));
          acc[g][m] = _mm256_fmadd_ps(dx, term, acc[g][m]);
        }
      }
    }
    x.advance(32);
    scale.advance(1);
  }
  store<G, MT>(t, acc);
}

template <Format F>
struct Kernel : Avx2Blocks {
  static constexpr Heights kMost{8, 2, 1};

  template <int G, int MT>
  static constexpr TileFn tile = block_tile<F, G, MT>;
};

template <Format F>
void run(const MatmulArgs& a) {
  run_tiles<Kernel<F>>(a, low_bit_plan<F, R>(a.cols).bytes, a.cols / 32);
}

}  // namespace

void matmul_avx2_q2_k(const MatmulArgs& a) { run<Format::q2_k>(a); }
void matmul_avx2_q3_k(const MatmulArgs& a) { run<Format::q3_k>(a); }

}  // namespace sluice::cpu
