// int_block32 kernels for AVX-512 VNNI. Lanes are the 16 rows of a group; a tile is G groups (read
// streams) by MT rows of x, its integer and float accumulators in registers. VPDPBUSD multiplies
// unsigned weights with signed activations; the weights' offset (128 for q8_0, iq4_nl and mxfp4, 8
// for q4_0, 16 for q5_0) is taken off through the integer sum of the activations.
#include <immintrin.h>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_panels_avx512.h"
#include "backend/cpu/matmul/matmul_tile_avx512.h"

namespace sluice::cpu {
namespace {

constexpr int R = kPanelRows;

// idot += one 32-column block, q8_0. w: the block's bytes in each group; x: in each row.
template <int G, int MT>
[[gnu::always_inline]] inline void dot_bytes(
    const uint8_t* w, size_t panel, const int8_t* x, int64_t cols, __m512i (&idot)[G][MT]) {
  SLUICE_UNROLL
  for (int u = 0; u < 8; ++u) {
    __m512i wv[G];
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) wv[g] = load64(w + g * panel + u * 64);
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      const __m512i xv = broadcast4(x + m * cols + u * 4);
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) idot[g][m] = _mm512_dpbusd_epi32(idot[g][m], wv[g], xv);
    }
  }
}

// What sixteen blocks of MT rows of x add besides the dots: made at once, and read back as
// broadcasts from memory, which leave the arithmetic ports alone.
template <int MT>
struct SideTerms {
  alignas(64) int32_t start[MT][16];  // minus the codes' offset times the sum
  alignas(64) float min[MT][16];      // d_x * sum
};

template <Format F, int32_t kOffset, int MT>
[[gnu::always_inline]] inline void fill(const Tile& t,
                                        int64_t b,
                                        int64_t num_blocks,
                                        SideTerms<MT>& side) {
  const int64_t left = num_blocks - b;
  const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffff : (1u << left) - 1);
  SLUICE_UNROLL
  for (int m = 0; m < MT; ++m) {
    const int64_t at = m * num_blocks + b;
    const __m512i sum = _mm512_maskz_loadu_epi32(mask, t.sum + at);
    if constexpr (kOffset != 0) {
      _mm512_store_si512(side.start[m], _mm512_mullo_epi32(sum, _mm512_set1_epi32(-kOffset)));
    }
    if constexpr (kHasMin<F>) {
      const __m512 dx = _mm512_maskz_loadu_ps(mask, t.scale + at);
      _mm512_store_ps(side.min[m], _mm512_mul_ps(dx, _mm512_cvtepi32_ps(sum)));
    }
  }
}

template <Format F, int G, int MT>
void block_tile(const Tile& t) {
  constexpr int kBytes = kLowBytes<F> * R;
  constexpr int32_t kOffset = F == Format::q8_0 || kHasLevels<F> ? 128 : kCodeOffset<F>;
  const PanelPlan plan = panel_plan<F, R>(t.cols);
  __m512 acc[G][MT];
  clear(acc);
  SideTerms<MT> side;
  for (int64_t b = 0; b < plan.num_blocks; ++b) {
    if ((kOffset != 0 || kHasMin<F>)&&b % 16 == 0) {
      fill<F, kOffset, MT>(t, b, plan.num_blocks, side);
    }
    __m512i idot[G][MT];
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      const int32_t start = kOffset == 0 ? 0 : side.start[m][b % 16];
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) idot[g][m] = _mm512_set1_epi32(start);
    }
    const uint8_t* w = t.w + b * kBytes;
    prefetch(t, b);
    if constexpr (F == Format::q8_0) {
      dot_bytes<G, MT>(w, plan.bytes, t.q + b * 32, t.cols, idot);
    } else {
      dot_codes<F, G, MT>(w, t.w + plan.high + b * 4 * R, plan.bytes, t.q + b * 32, t.cols, idot);
    }
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      __m512 dw, mw;
      load_scales<F>(t.w + g * plan.bytes, plan, b, dw, mw);
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) {
        const __m512 dx = _mm512_set1_ps(t.scale[m * plan.num_blocks + b]);
        acc[g][m] =
            _mm512_fmadd_ps(_mm512_mul_ps(dw, dx), _mm512_cvtepi32_ps(idot[g][m]), acc[g][m]);
      }
      if constexpr (kHasMin<F>) {
        SLUICE_UNROLL
        for (int m = 0; m < MT; ++m) {
          const __m512 sum = _mm512_set1_ps(side.min[m][b % 16]);
          acc[g][m] = _mm512_fmadd_ps(mw, sum, acc[g][m]);
        }
      }
    }
  }
  store<G, MT>(t, acc);
}

template <Format F>
struct Kernel {
  static constexpr int kRows = R, kStep = 1;
  static constexpr Heights kMost{6, 6, 2};

  template <int G, int MT>
  static constexpr TileFn tile = block_tile<F, G, MT>;
};

template <Format F>
void run(const MatmulArgs& a) {
  run_tiles<Kernel<F>>(a, panel_plan<F, R>(a.cols).bytes, a.cols / 32);
}

}  // namespace

void matmul_avx512_q8_0(const MatmulArgs& a) { run<Format::q8_0>(a); }
void matmul_avx512_q4_0(const MatmulArgs& a) { run<Format::q4_0>(a); }
void matmul_avx512_q4_1(const MatmulArgs& a) { run<Format::q4_1>(a); }
void matmul_avx512_q5_0(const MatmulArgs& a) { run<Format::q5_0>(a); }
void matmul_avx512_q5_1(const MatmulArgs& a) { run<Format::q5_1>(a); }
void matmul_avx512_int4(const MatmulArgs& a) { run<Format::int4>(a); }
void matmul_avx512_iq4_nl(const MatmulArgs& a) { run<Format::iq4_nl>(a); }
void matmul_avx512_mxfp4(const MatmulArgs& a) { run<Format::mxfp4>(a); }

}  // namespace sluice::cpu
