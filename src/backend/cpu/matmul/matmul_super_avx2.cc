// int_super kernels of q4_k, q5_k and q6_k for AVX2 without VNNI. Lanes are the 8 rows of a group;
// a tile is G groups (read streams) by MT rows of x. VPMADDUBSW's pair sums stay within 16 bits for
// as many columns as share a scale, or half of them, and VPMADDWD multiplies them by that scale as
// it widens:
//   q4_k  q <= 15: 32 columns sum to 8 * 2 * 15 * 127 < 2^15
//   q5_k  q <= 31: 16 columns sum to 4 * 2 * 31 * 127 < 2^15
//   q6_k  |q - 32| <= 32 and x with its sign: 16 columns sum to 4 * 2 * 32 * 127 < 2^15
#include <immintrin.h>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_tile_avx2.h"
#include "backend/cpu/matmul/six_bits_avx2.h"

namespace sluice::cpu {
namespace {

// Each row's number twice, in 16 bits.
[[gnu::always_inline]] inline __m256i twice(__m256i v) {
  return _mm256_or_si256(_mm256_and_si256(v, _mm256_set1_epi32(0xffff)), _mm256_slli_epi32(v, 16));
}

// Unit u, 4 columns, of the kHalf-th sixteen columns of block b.
template <Format F, int kHalf>
[[gnu::always_inline]] inline __m256i load_codes(const uint8_t* panel,
                                                 const PanelPlan& plan,
                                                 int64_t b,
                                                 int u) {
  __m256i v = load32(panel + b * 16 * R + u * 32);
  if constexpr (kHalf == 1) v = _mm256_srli_epi16(v, 4);
  v = _mm256_and_si256(v, _mm256_set1_epi8(15));
  if constexpr (F == Format::q5_k) {
    const __m256i top = load32(panel + plan.high + b * 4 * R);
    const __m256i bit = kHalf == 0 ? _mm256_sll_epi16(top, _mm_cvtsi32_si128(4 - u))
                                   : _mm256_srl_epi16(top, _mm_cvtsi32_si128(u));
    v = _mm256_or_si256(v, _mm256_and_si256(bit, _mm256_set1_epi8(16)));
  }
  if constexpr (F == Format::q6_k) {
    const __m256i h = load32(panel + plan.high + b * 8 * R + kHalf * 32);
    const __m256i top = u == 0   ? _mm256_slli_epi16(h, 4)
                        : u == 1 ? _mm256_slli_epi16(h, 2)
                        : u == 2 ? h
                                 : _mm256_srli_epi16(h, 2);
    v = _mm256_or_si256(v, _mm256_and_si256(top, _mm256_set1_epi8(48)));
    v = _mm256_sub_epi8(v, _mm256_set1_epi8(32));
  }
  return v;
}

// pairs += sixteen columns of block b, in 16 bits.
template <Format F, int kHalf, int MT>
[[gnu::always_inline]] inline void add_sixteen(const uint8_t* panel,
                                               const PanelPlan& plan,
                                               int64_t b,
                                               const Rows<int8_t, MT>& x,
                                               __m256i (&pairs)[MT]) {
  SLUICE_UNROLL
  for (int u = 0; u < 4; ++u) {
    const __m256i w = load_codes<F, kHalf>(panel, plan, b, u);
    const __m256i magnitude = F == Format::q6_k ? _mm256_abs_epi8(w) : w;
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      __m256i xv = broadcast4(x.row(m) + kHalf * 16 + u * 4);
      if constexpr (F == Format::q6_k) xv = _mm256_sign_epi8(xv, w);
      pairs[m] = _mm256_add_epi16(pairs[m], _mm256_maddubs_epi16(magnitude, xv));
      keep(pairs[m]);
    }
  }
}

// total += scale * pairs, which become zero.
template <int MT>
[[gnu::always_inline]] inline void add_scaled(__m256i scale,
                                              __m256i (&pairs)[MT],
                                              __m256i (&total)[MT]) {
  SLUICE_UNROLL
  for (int m = 0; m < MT; ++m) {
    total[m] = _mm256_add_epi32(total[m], _mm256_madd_epi16(pairs[m], scale));
    pairs[m] = _mm256_setzero_si256();
  }
}

// total += scale * dot of block b, one group by MT rows of x.
template <Format F, int MT>
[[gnu::always_inline]] inline void add_block(const PanelPlan& plan,
                                             const uint8_t* panel,
                                             int64_t b,
                                             const Rows<int8_t, MT>& x,
                                             __m256i (&total)[MT]) {
  __m256i pairs[MT];
  SLUICE_UNROLL
  for (int m = 0; m < MT; ++m) pairs[m] = _mm256_setzero_si256();
  if constexpr (F == Format::q6_k) {
    const uint8_t* scales = panel + plan.scale + b * 2 * R;
    add_sixteen<F, 0, MT>(panel, plan, b, x, pairs);
    add_scaled<MT>(twice(_mm256_cvtepi8_epi32(load8(scales))), pairs, total);
    add_sixteen<F, 1, MT>(panel, plan, b, x, pairs);
    add_scaled<MT>(twice(_mm256_cvtepi8_epi32(load8(scales + R))), pairs, total);
  } else {
    const SixBitPair six =
        six_bits(load8(panel + plan.scale + b * R), load8(panel + plan.tops + b / 2 * R), b);
    const __m256i scale = twice(_mm256_cvtepu8_epi32(six.first));
    add_sixteen<F, 0, MT>(panel, plan, b, x, pairs);
    if constexpr (F == Format::q5_k) add_scaled<MT>(scale, pairs, total);
    add_sixteen<F, 1, MT>(panel, plan, b, x, pairs);
    add_scaled<MT>(scale, pairs, total);
  }
}

// Integer sums of minimums times activations of a super-block.
template <int MT>
[[gnu::always_inline]] inline void sum_mins(
    const Tile& t, const PanelPlan& plan, const uint8_t* panel, int64_t s, __m256i (&sum)[MT]) {
  SLUICE_UNROLL
  for (int m = 0; m < MT; ++m) sum[m] = _mm256_setzero_si256();
  for (int64_t b = s * 8; b < s * 8 + 8; ++b) {
    const SixBitPair six =
        six_bits(load8(panel + plan.scale + b * R), load8(panel + plan.tops + b / 2 * R), b);
    const __m256i min = twice(_mm256_cvtepu8_epi32(six.second));
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {  // two sums of 16 are one of 32
      int32_t pair;
      std::memcpy(&pair, t.sum16 + m * (t.cols / 16) + b * 2, 4);
      sum[m] = _mm256_add_epi32(sum[m], _mm256_madd_epi16(min, _mm256_set1_epi32(pair)));
    }
  }
}

template <Format F, int G, int MT>
void super_tile(const Tile& t) {
  const PanelPlan plan = panel_plan<F, R>(t.cols);
  __m256 acc[G][MT];
  clear(acc);
  Rows<int8_t, MT> x(t.q, t.cols);
  for (int64_t s = 0; s < t.cols / 256; ++s) {
    for (int64_t b = s * 8; b < s * 8 + 8; ++b) prefetch(t, b);
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      const uint8_t* panel = t.w + g * plan.bytes;
      const uint8_t* super = panel + plan.extra + s * (kSuperScales<F> ? 4 : 2) * R;
      __m256i total[MT], sum[MT];
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) total[m] = _mm256_setzero_si256();
      Rows<int8_t, MT> block = x;
      for (int64_t b = s * 8; b < s * 8 + 8; ++b) {
        add_block<F, MT>(plan, panel, b, block, total);
        block.advance(32);
      }
      if constexpr (kSuperScales<F>) sum_mins<MT>(t, plan, panel, s, sum);
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) {
        __m256 v = _mm256_mul_ps(load_f16(super), _mm256_cvtepi32_ps(total[m]));
        if constexpr (kSuperScales<F>) {
          v = _mm256_fnmadd_ps(load_f16(super + 2 * R), _mm256_cvtepi32_ps(sum[m]), v);
        }
        const __m256 dx = _mm256_set1_ps(t.scale[m * (t.cols / 256) + s]);
        acc[g][m] = _mm256_fmadd_ps(dx, v, acc[g][m]);
      }
    }
    x.advance(256);
  }
  store<G, MT>(t, acc);
}

template <Format F>
struct Kernel : Avx2Blocks {
  static constexpr Heights kMost{12, 2, 1};

  template <int G, int MT>
  static constexpr TileFn tile = super_tile<F, G, MT>;
};

}  // namespace

void matmul_avx2_q4_k(const MatmulArgs& a) { run_supers<Kernel, Format::q4_k>(a); }
void matmul_avx2_q5_k(const MatmulArgs& a) { run_supers<Kernel, Format::q5_k>(a); }
void matmul_avx2_q6_k(const MatmulArgs& a) { run_supers<Kernel, Format::q6_k>(a); }

}  // namespace sluice::cpu
