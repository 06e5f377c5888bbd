// int_block32 kernels for AVX2 without VNNI. Lanes are the 8 rows of a group; a tile is G groups
// (read streams) by MT rows of x. VPMADDUBSW multiplies unsigned with signed bytes and saturates
// its 16-bit pair sums, so operands are kept where they cannot:
//   q8_0  |w| <= 128 and x with w's sign: 2 * 128 * 127 < 2^15, then widened at once
//   4-bit q <= 15: a whole block sums to 8 * 2 * 15 * 127 < 2^15; -8 comes off through x's sum
//   5-bit q <= 31: half a block sums to 4 * 2 * 31 * 127 < 2^15; -16 comes off likewise
//   iq4_nl, mxfp4: levels as q8_0
#include <immintrin.h>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_tile_avx2.h"
#include "tensor/formats/iq4_levels.h"

namespace sluice::cpu {
namespace {

template <int G, int MT>
[[gnu::always_inline]] inline void dot_bytes(const uint8_t* w,
                                             size_t panel,
                                             const Rows<int8_t, MT>& x,
                                             __m256i (&idot)[G][MT]) {
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) idot[g][m] = _mm256_setzero_si256();
  }
  for (int u = 0; u < 8; ++u) {
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      const __m256i wv = load32(w + g * panel + u * 32);
      const __m256i magnitude = _mm256_abs_epi8(wv);
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) {
        const __m256i xv = _mm256_sign_epi8(broadcast4(x.row(m) + u * 4), wv);
        idot[g][m] = _mm256_add_epi32(idot[g][m], widen_add(_mm256_maddubs_epi16(magnitude, xv)));
        keep(idot[g][m]);
      }
    }
  }
}

// Sums of 16 bits stay below 2^15 for the whole block.
template <int G, int MT>
[[gnu::always_inline]] inline void dot_nibbles(const uint8_t* w,
                                               size_t panel,
                                               const Rows<int8_t, MT>& x,
                                               __m256i (&idot)[G][MT]) {
  const __m256i low4 = _mm256_set1_epi8(15);
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) idot[g][m] = _mm256_setzero_si256();
  }
  SLUICE_UNROLL
  for (int u = 0; u < 4; ++u) {
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      const __m256i v = load32(w + g * panel + u * 32);
      const __m256i low = _mm256_and_si256(v, low4);
      const __m256i high = _mm256_and_si256(_mm256_srli_epi16(v, 4), low4);
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) {
        const __m256i p0 = _mm256_maddubs_epi16(low, broadcast4(x.row(m) + u * 4));
        const __m256i p1 = _mm256_maddubs_epi16(high, broadcast4(x.row(m) + 16 + u * 4));
        idot[g][m] = _mm256_add_epi16(_mm256_add_epi16(idot[g][m], p0), p1);
        keep(idot[g][m]);
      }
    }
  }
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) idot[g][m] = widen_add(idot[g][m]);
  }
}

// 5 bits: the first sixteen columns, then the second, each summed in 16 bits.
template <int G, int MT>
[[gnu::always_inline]] inline void dot_fives(const uint8_t* w,
                                             const uint8_t* tops,
                                             size_t panel,
                                             const Rows<int8_t, MT>& x,
                                             __m256i (&idot)[G][MT]) {
  const __m256i low4 = _mm256_set1_epi8(15);
  const __m256i fifth = _mm256_set1_epi8(16);
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    const __m256i top = load32(tops + g * panel);
    SLUICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      __m256i pairs[MT];
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) pairs[m] = _mm256_setzero_si256();
      SLUICE_UNROLL
      for (int u = 0; u < 4; ++u) {
        const __m256i v = load32(w + g * panel + u * 32);
        const __m256i low = _mm256_and_si256(half == 0 ? v : _mm256_srli_epi16(v, 4), low4);
        const __m256i bit = half == 0 ? _mm256_sll_epi16(top, _mm_cvtsi32_si128(4 - u))
                                      : _mm256_srl_epi16(top, _mm_cvtsi32_si128(u));
        const __m256i q = _mm256_or_si256(low, _mm256_and_si256(bit, fifth));
        SLUICE_UNROLL
        for (int m = 0; m < MT; ++m) {
          const __m256i xv = broadcast4(x.row(m) + half * 16 + u * 4);
          pairs[m] = _mm256_add_epi16(pairs[m], _mm256_maddubs_epi16(q, xv));
          keep(pairs[m]);
        }
      }
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) {
        const __m256i sum = widen_add(pairs[m]);
        idot[g][m] = half == 0 ? sum : _mm256_add_epi32(idot[g][m], sum);
      }
    }
  }
}

template <Format F, int G, int MT>
[[gnu::always_inline]] inline void dot_levels(const uint8_t* w,
                                              size_t panel,
                                              const Rows<int8_t, MT>& x,
                                              __m256i (&idot)[G][MT]) {
  const __m256i low4 = _mm256_set1_epi8(15);
  const __m256i levels = _mm256_broadcastsi128_si256(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels_of<F>())));
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) idot[g][m] = _mm256_setzero_si256();
    for (int u = 0; u < 4; ++u) {
      const __m256i v = load32(w + g * panel + u * 32);
      SLUICE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const __m256i code = _mm256_and_si256(half == 0 ? v : _mm256_srli_epi16(v, 4), low4);
        const __m256i wv = _mm256_shuffle_epi8(levels, code);
        const __m256i magnitude = _mm256_abs_epi8(wv);
        SLUICE_UNROLL
        for (int m = 0; m < MT; ++m) {
          const __m256i xv = _mm256_sign_epi8(broadcast4(x.row(m) + half * 16 + u * 4), wv);
          idot[g][m] = _mm256_add_epi32(idot[g][m], widen_add(_mm256_maddubs_epi16(magnitude, xv)));
          keep(idot[g][m]);
        }
      }
    }
  }
}

// Scale and minimum of block b in one panel.
template <Format F>
[[gnu::always_inline]] inline void load_scales(
    const uint8_t* panel, const PanelPlan& plan, int64_t b, __m256& dw, __m256& mw) {
  const uint8_t* scale = panel + plan.scale + b * 2 * R;
  dw = F == Format::mxfp4 ? load_bf16(scale) : load_f16(scale);
  if constexpr (kHasMin<F>) mw = load_f16(panel + plan.extra + b * 2 * R);
  if constexpr (kScaledMin<F>) mw = _mm256_mul_ps(dw, mw);
}

// Terms of eight blocks of MT rows of x that need no weights; tiles broadcast them from memory.
template <int MT>
struct BlockTerms {
  alignas(32) int32_t offset[MT][8];  // the codes' offset times the sum
  alignas(32) float min[MT][8];       // d_x * sum
};

template <Format F, int MT>
[[gnu::always_inline]] inline void fill(const Tile& t,
                                        int64_t b,
                                        int64_t num_blocks,
                                        BlockTerms<MT>& side) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const int64_t n = num_blocks - b < 8 ? num_blocks - b : 8;
  const __m256i left = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(n)), lane);
  SLUICE_UNROLL
  for (int m = 0; m < MT; ++m) {
    const int64_t at = m * num_blocks + b;
    const __m256i sum = _mm256_maskload_epi32(t.sum + at, left);
    if constexpr (kCodeOffset<F> != 0) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(side.offset[m]),
                         _mm256_mullo_epi32(sum, _mm256_set1_epi32(kCodeOffset<F>)));
    }
    if constexpr (kHasMin<F>) {
      _mm256_store_ps(side.min[m], _mm256_mul_ps(_mm256_maskload_ps(t.scale + at, left),
                                                 _mm256_cvtepi32_ps(sum)));
    }
  }
}

template <Format F, int G, int MT>
void block_tile(const Tile& t) {
  constexpr int kBytes = kLowBytes<F> * R;
  const PanelPlan plan = panel_plan<F, R>(t.cols);
  __m256 acc[G][MT];
  clear(acc);
  BlockTerms<MT> side;
  Rows<int8_t, MT> x(t.q, t.cols);
  Rows<float, MT> scales(t.scale, plan.num_blocks);
  for (int64_t b = 0; b < plan.num_blocks; ++b) {
    constexpr bool kFill = kCodeOffset<F> != 0 || kHasMin<F>;
    if (kFill && b % 8 == 0) fill<F, MT>(t, b, plan.num_blocks, side);
    prefetch(t, b);
    __m256i idot[G][MT];
    const uint8_t* w = t.w + b * kBytes;
    if constexpr (F == Format::q8_0) {
      dot_bytes<G, MT>(w, plan.bytes, x, idot);
    } else if constexpr (kHasLevels<F>) {
      dot_levels<F, G, MT>(w, plan.bytes, x, idot);
    } else if constexpr (kHighBits<F> == 1) {
      const uint8_t* tops = t.w + plan.high + b * 4 * R;
      dot_fives<G, MT>(w, tops, plan.bytes, x, idot);
    } else {
      dot_nibbles<G, MT>(w, plan.bytes, x, idot);
    }
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      __m256 dw, mw;
      load_scales<F>(t.w + g * plan.bytes, plan, b, dw, mw);
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) {
        if constexpr (kCodeOffset<F> != 0) {
          idot[g][m] = _mm256_sub_epi32(idot[g][m], _mm256_set1_epi32(side.offset[m][b % 8]));
        }
        const __m256 scale = _mm256_mul_ps(dw, _mm256_set1_ps(*scales.row(m)));
        acc[g][m] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(idot[g][m]), acc[g][m]);
        if constexpr (kHasMin<F>) {
          acc[g][m] = _mm256_fmadd_ps(mw, _mm256_set1_ps(side.min[m][b % 8]), acc[g][m]);
        }
      }
    }
    x.advance(32);
    scales.advance(1);
  }
  store<G, MT>(t, acc);
}

template <Format F>
struct Kernel : Avx2Blocks {
  static constexpr Heights kMost = F == Format::q8_0   ? Avx2Blocks::kMost
                                   : kHighBits<F> == 1 ? Heights{12, 2, 1}
                                                       : Heights{8, 4, 2};

  template <int G, int MT>
  static constexpr TileFn tile = block_tile<F, G, MT>;
};

template <Format F>
void run(const MatmulArgs& a) {
  run_tiles<Kernel<F>>(a, panel_plan<F, R>(a.cols).bytes, a.cols / 32);
}

}  // namespace

void matmul_avx2_q8_0(const MatmulArgs& a) { run<Format::q8_0>(a); }
void matmul_avx2_q4_0(const MatmulArgs& a) { run<Format::q4_0>(a); }
void matmul_avx2_q4_1(const MatmulArgs& a) { run<Format::q4_1>(a); }
void matmul_avx2_q5_0(const MatmulArgs& a) { run<Format::q5_0>(a); }
void matmul_avx2_q5_1(const MatmulArgs& a) { run<Format::q5_1>(a); }
void matmul_avx2_int4(const MatmulArgs& a) { run<Format::int4>(a); }
void matmul_avx2_iq4_nl(const MatmulArgs& a) { run<Format::iq4_nl>(a); }
void matmul_avx2_mxfp4(const MatmulArgs& a) { run<Format::mxfp4>(a); }

}  // namespace sluice::cpu
