// int_super kernels of q4_k, q5_k and q6_k for AVX-512 VNNI. Lanes are the 16 rows of a group; a
// tile is G groups (read streams) by MT rows of x. The dots of a block of 32 columns are multiplied
// by its integer scale and added up over the super-block. All of that is exact, so other orders
// (AMX, AVX2) give the same bits.
#include <immintrin.h>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_panels_avx512.h"
#include "backend/cpu/matmul/matmul_tile_avx512.h"

namespace sluice::cpu {
namespace {

constexpr int R = kPanelRows;

// Sums of x over one super-block, for MT rows; kernels broadcast them from memory.
template <Format F, int MT>
struct Sums {
  // q6_k: minus 32 times the sums of 16. Others: sums of 32, two in a word.
  alignas(64) int32_t of[MT][F == Format::q6_k ? 16 : 4];
};

template <Format F, int MT>
[[gnu::always_inline]] inline void fill(const Tile& t, int64_t s, Sums<F, MT>& sums) {
  SLUICE_UNROLL
  for (int m = 0; m < MT; ++m) {
    const __m256i sixteens =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(t.sum16 + m * (t.cols / 16) + s * 16));
    if constexpr (F == Format::q6_k) {
      const __m512i shifted = _mm512_slli_epi32(_mm512_cvtepi16_epi32(sixteens), 5);
      _mm512_store_si512(sums.of[m], _mm512_sub_epi32(_mm512_setzero_si512(), shifted));
    } else {
      const __m256i wide = _mm256_madd_epi16(sixteens, _mm256_set1_epi16(1));
      _mm_store_si128(reinterpret_cast<__m128i*>(sums.of[m]), _mm256_cvtepi32_epi16(wide));
    }
  }
}

// A super-block's numbers of six bits as bytes: [block][row].
struct SixBits {
  alignas(64) uint8_t scale[8][R];
  alignas(64) uint8_t min[8][R];
};

[[gnu::always_inline]] inline void load_six_bits(const uint8_t* panel,
                                                 const PanelPlan& plan,
                                                 int64_t s,
                                                 SixBits& to) {
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

// Minimums of blocks b and b + 1 for each row: 16 bits each, the first low.
[[gnu::always_inline]] inline __m512i min_pair(const SixBits& six, int b) {
  return _mm512_or_si512(_mm512_cvtepu8_epi32(load16(six.min[b])),
                         _mm512_slli_epi32(_mm512_cvtepu8_epi32(load16(six.min[b + 1])), 16));
}

// Integers as the sums over a super-block are kept. Those of q4_k are f32, in two halves of the
// super-block: 128 * 15 * 63 * 127 < 2^24, so each is exact, and their sum is rounded as an int32
// is when it becomes f32. A multiplication of int32 takes twice as long.
template <Format F>
inline constexpr bool kInFloats = F == Format::q4_k;
template <bool kFloats>
struct TotalOf {
  using Type = __m512i;
};
template <>
struct TotalOf<true> {
  using Type = __m512;
};
template <Format F>
using Total = typename TotalOf<kInFloats<F>>::Type;

[[gnu::always_inline]] inline void add_scaled(__m512i scale, __m512i dot, __m512i& total) {
  total = _mm512_add_epi32(total, _mm512_mullo_epi32(scale, dot));
}
[[gnu::always_inline]] inline void add_scaled(__m512i scale, __m512i dot, __m512& total) {
  total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(scale), _mm512_cvtepi32_ps(dot), total);
}

template <Format F, int G, int MT>
[[gnu::always_inline]] inline void add_scaled(const __m512i (&scale)[G],
                                              const __m512i (&dot)[G][MT],
                                              Total<F> (&total)[G][MT]) {
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) add_scaled(scale[g], dot[g][m], total[g][m]);
  }
}

// total += scale * dot of block b of 32 columns.
template <Format F, int G, int MT>
[[gnu::always_inline]] inline void add_block(const Tile& t,
                                             const PanelPlan& plan,
                                             int64_t b,
                                             const SixBits (&six)[G],
                                             Total<F> (&total)[G][MT]) {
  __m512i dot[G][MT], scale[G];
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) dot[g][m] = _mm512_setzero_si512();
  }
  dot_codes<F, G, MT>(t.w + b * kLowBytes<F> * R, t.w + plan.high + b * 4 * R, plan.bytes,
                      t.q + b * 32, t.cols, dot);
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) scale[g] = _mm512_cvtepu8_epi32(load16(six[g].scale[b % 8]));
  add_scaled<F, G, MT>(scale, dot, total);
}

// The same of sixteen columns of q6_k.
template <int kHalf, int G, int MT>
[[gnu::always_inline]] inline void add_q6_half(const Tile& t,
                                               const PanelPlan& plan,
                                               int64_t b,
                                               const Sums<Format::q6_k, MT>& sums,
                                               __m512i (&total)[G][MT]) {
  __m512i dot[G][MT], scale[G];
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    const uint8_t* panel = t.w + g * plan.bytes;
    __m512i w[4];
    q6_units<kHalf>(panel + b * 16 * R, panel + plan.high + b * 8 * R, w);
    scale[g] = _mm512_cvtepi8_epi32(load16(panel + plan.scale + (b * 2 + kHalf) * R));
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      const int8_t* x = t.q + m * t.cols + b * 32 + kHalf * 16;
      dot[g][m] = _mm512_set1_epi32(sums.of[m][b % 8 * 2 + kHalf]);
      SLUICE_UNROLL
      for (int u = 0; u < 4; ++u) {
        dot[g][m] = _mm512_dpbusd_epi32(dot[g][m], w[u], broadcast4(x + u * 4));
      }
    }
  }
  add_scaled<Format::q6_k, G, MT>(scale, dot, total);
}

// acc += a super-block of one group. total: as f32.
template <Format F, int MT>
[[gnu::always_inline]] inline void add_super(const Tile& t,
                                             const PanelPlan& plan,
                                             const uint8_t* panel,
                                             int64_t s,
                                             const Sums<F, MT>& sums,
                                             const SixBits& six,
                                             const __m512 (&total)[MT],
                                             __m512 (&acc)[MT]) {
  const uint8_t* super = panel + plan.extra + s * (kSuperScales<F> ? 4 : 2) * R;
  const __m512 d = load_f16(super);
  __m512i mins[4];
  __m512 dmin;
  if constexpr (kSuperScales<F>) {
    dmin = load_f16(super + 2 * R);
    SLUICE_UNROLL
    for (int i = 0; i < 4; ++i) mins[i] = min_pair(six, i * 2);
  }
  SLUICE_UNROLL
  for (int m = 0; m < MT; ++m) {
    __m512 v = _mm512_mul_ps(d, total[m]);
    if constexpr (kSuperScales<F>) {
      __m512i sum = _mm512_setzero_si512();
      SLUICE_UNROLL
      for (int i = 0; i < 4; ++i) {
        sum = _mm512_dpwssd_epi32(sum, mins[i], _mm512_set1_epi32(sums.of[m][i]));
      }
      v = _mm512_fnmadd_ps(dmin, _mm512_cvtepi32_ps(sum), v);
    }
    acc[m] = _mm512_fmadd_ps(_mm512_set1_ps(t.scale[m * (t.cols / 256) + s]), v, acc[m]);
  }
}

// Blocks [begin, end) of a super-block.
template <Format F, int G, int MT>
[[gnu::always_inline]] inline void add_blocks(const Tile& t,
                                              const PanelPlan& plan,
                                              int64_t begin,
                                              int64_t end,
                                              const Sums<F, MT>& sums,
                                              const SixBits (&six)[G],
                                              Total<F> (&total)[G][MT]) {
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) total[g][m] = Total<F>{};
  }
  for (int64_t b = begin; b < end; ++b) {
    prefetch(t, b);
    if constexpr (F == Format::q6_k) {
      add_q6_half<0, G, MT>(t, plan, b, sums, total);
      add_q6_half<1, G, MT>(t, plan, b, sums, total);
    } else {
      add_block<F, G, MT>(t, plan, b, six, total);
    }
  }
}

template <Format F, int G, int MT>
void super_tile(const Tile& t) {
  const PanelPlan plan = panel_plan<F, R>(t.cols);
  __m512 acc[G][MT];
  clear(acc);
  for (int64_t s = 0; s < t.cols / 256; ++s) {
    Sums<F, MT> sums;
    fill(t, s, sums);
    SixBits six[G];  // not of q6_k
    if constexpr (kSuperScales<F>) {
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) load_six_bits(t.w + g * plan.bytes, plan, s, six[g]);
    }
    __m512 total[G][MT];
    if constexpr (kInFloats<F>) {
      __m512 second[G][MT];
      add_blocks<F, G, MT>(t, plan, s * 8, s * 8 + 4, sums, six, total);
      add_blocks<F, G, MT>(t, plan, s * 8 + 4, s * 8 + 8, sums, six, second);
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) {
        SLUICE_UNROLL
        for (int m = 0; m < MT; ++m) total[g][m] = _mm512_add_ps(total[g][m], second[g][m]);
      }
    } else {
      __m512i whole[G][MT];
      add_blocks<F, G, MT>(t, plan, s * 8, s * 8 + 8, sums, six, whole);
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) {
        SLUICE_UNROLL
        for (int m = 0; m < MT; ++m) total[g][m] = _mm512_cvtepi32_ps(whole[g][m]);
      }
    }
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      add_super<F, MT>(t, plan, t.w + g * plan.bytes, s, sums, six[g], total[g], acc[g]);
    }
  }
  store<G, MT>(t, acc);
}

// q6_k's codes cost the most to put together: high tiles pay for that.
template <Format F>
struct Kernel {
  static constexpr int kRows = R, kStep = 1;
  static constexpr Heights kMost = F == Format::q6_k ? Heights{8, 4, 2} : Heights{6, 6, 2};

  template <int G, int MT>
  static constexpr TileFn tile = super_tile<F, G, MT>;
};

}  // namespace

void matmul_avx512_q4_k(const MatmulArgs& a) { run_supers<Kernel, Format::q4_k>(a); }
void matmul_avx512_q5_k(const MatmulArgs& a) { run_supers<Kernel, Format::q5_k>(a); }
void matmul_avx512_q6_k(const MatmulArgs& a) { run_supers<Kernel, Format::q6_k>(a); }

}  // namespace sluice::cpu
