// int_block32 kernels of q2_k and q3_k for AVX-512 VNNI. Lanes are the 16 rows of a group; a tile
// is G groups (read streams) by MT rows of x. Each sixteen columns of a block have their own scale:
// VPDPBUSD sums them in 32 bits, and since such a sum fits 16, VPMADDWD and VPDPWSSD multiply it by
// the scale. q3_k's codes stand 4 above the quants; that comes off through sums of the activations.
#include <immintrin.h>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_low_bits_avx512.h"
#include "backend/cpu/matmul/matmul_panels_avx512.h"
#include "backend/cpu/matmul/matmul_tile_avx512.h"

namespace sluice::cpu {
namespace {

constexpr int R = kPanelRows;

// Sums of the sixteens of 256 columns of MT rows of x. q3_k: minus four times the sum of sixteen
// 2 b + half. q2_k: both sums of block b, as halves of an integer.
template <Format F, int MT>
struct Sums {
  alignas(64) int32_t of[MT][kThreeBits<F> ? 16 : 8];
};

template <Format F, int MT>
[[gnu::always_inline]] inline void add_up(const Tile& t, int64_t b, Sums<F, MT>& sums) {
  SLUICE_UNROLL
  for (int m = 0; m < MT; ++m) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i in_order =
        _mm512_permutexvar_epi32(order, sum_sixteens<1>(t.q + m * t.cols + b * 32));
    if constexpr (kThreeBits<F>) {
      _mm512_store_si512(sums.of[m],
                         _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(in_order, 2)));
    } else {
      _mm256_store_si256(reinterpret_cast<__m256i*>(sums.of[m]), _mm512_cvtepi32_epi16(in_order));
    }
  }
}

// The kHalf-th sixteen columns of a block: idot = start + codes times x.
template <Format F, int kHalf, int G, int MT>
[[gnu::always_inline]] inline void dot_half(const Tile& t,
                                            const LowBitPlan& plan,
                                            int64_t b,
                                            const Sums<F, MT>& sums,
                                            __m512i (&idot)[G][MT]) {
  __m512i v[G], top[G];
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    const LowBitBlock block = low_bit_block(t.w + g * plan.bytes, plan, b);
    v[g] = load64(block.codes + kHalf * 4 * R);
    top[g] = kThreeBits<F> ? load64(block.top) : v[g];
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      idot[g][m] =
          kThreeBits<F> ? _mm512_set1_epi32(sums.of[m][b % 8 * 2 + kHalf]) : _mm512_setzero_si512();
    }
  }
  const int8_t* x = t.q + b * 32 + kHalf * 16;
  __m512i w[G][4];
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) low_bit_units<F, kHalf>(v[g], top[g], w[g]);
  SLUICE_UNROLL
  for (int u = 0; u < 4; ++u) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      const __m512i xv = broadcast4(x + m * t.cols + u * 4);
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) idot[g][m] = _mm512_dpbusd_epi32(idot[g][m], w[g][u], xv);
    }
  }
}

// acc += block b. dw, dmin: of its super-block; bytes: its scales (q3_k).
template <Format F, int G, int MT>
[[gnu::always_inline]] inline void add_block(const Tile& t,
                                             const LowBitPlan& plan,
                                             int64_t b,
                                             const Sums<F, MT>& sums,
                                             const LowBitBytes (&bytes)[G],
                                             const __m512 (&dw)[G],
                                             const __m512 (&dmin)[G],
                                             __m512 (&acc)[G][MT]) {
  prefetch(t, b);
  __m512i idot[G][MT], dot[G][MT];
  LowBitScales scales[G];
  dot_half<F, 0, G, MT>(t, plan, b, sums, idot);
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    scales[g] = low_bit_scales<F>(t.w + g * plan.bytes, plan, b, bytes[g]);
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) dot[g][m] = _mm512_madd_epi16(idot[g][m], scales[g].first);
  }
  dot_half<F, 1, G, MT>(t, plan, b, sums, idot);
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      dot[g][m] = _mm512_dpwssd_epi32(dot[g][m], idot[g][m], scales[g].second);
      const __m512 dx = _mm512_set1_ps(t.scale[m * plan.num_blocks + b]);
      const __m512 value = _mm512_cvtepi32_ps(dot[g][m]);
      if constexpr (kThreeBits<F>) {
        acc[g][m] = _mm512_fmadd_ps(_mm512_mul_ps(dw[g], dx), value, acc[g][m]);
      } else {
        const __m512i sum = _mm512_madd_epi16(scales[g].mins, _mm512_set1_epi32(sums.of[m][b % 8]));
        const __m512 scaled = _mm512_mul_ps(dw[g], value);
        const __m512 term = _mm512_fnmadd_ps(dmin[g], _mm512_cvtepi32_ps(sum), scaled);
        acc[g][m] = _mm512_fmadd_ps(dx, term, acc[g][m]);
      }
    }
  }
}

template <Format F, int G, int MT>
void block_tile(const Tile& t) {
  const LowBitPlan plan = low_bit_plan<F, R>(t.cols);
  __m512 acc[G][MT];
  clear(acc);
  Sums<F, MT> sums;
  LowBitBytes bytes[G];
  for (int64_t super = 0; super < plan.num_blocks / 8; ++super) {
    add_up<F, MT>(t, super * 8, sums);
    __m512 dw[G], dmin[G];
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      const uint8_t* panel = t.w + g * plan.bytes;
      const uint8_t* halves = panel + plan.extra + super * (kThreeBits<F> ? 2 : 4) * R;
      dw[g] = load_f16(halves);
      dmin[g] = kThreeBits<F> ? dw[g] : load_f16(halves + 2 * R);
      if constexpr (kThreeBits<F>) low_bit_unpack(panel, plan, super, bytes[g]);
    }
    for (int64_t b = super * 8; b < super * 8 + 8; ++b) {
      add_block<F, G, MT>(t, plan, b, sums, bytes, dw, dmin, acc);
    }
  }
  store<G, MT>(t, acc);
}

template <Format F>
struct Kernel {
  static constexpr int kRows = R, kStep = 1;
  static constexpr Heights kMost{8, 4, 2};  // of three accumulators for each row and group

  template <int G, int MT>
  static constexpr TileFn tile = block_tile<F, G, MT>;
};

template <Format F>
void run(const MatmulArgs& a) {
  run_tiles<Kernel<F>>(a, low_bit_plan<F, R>(a.cols).bytes, a.cols / 32);
}

}  // namespace

void matmul_avx512_q2_k(const MatmulArgs& a) { run<Format::q2_k>(a); }
void matmul_avx512_q3_k(const MatmulArgs& a) { run<Format::q3_k>(a); }

}  // namespace sluice::cpu
