// int_row kernels for AVX-512 VNNI. Lanes are the 16 rows of a group; a tile is G groups (read
// streams) by MT rows of x. Nothing but loads and products happens before the end of K. Weights are
// stored plus 128, which is taken off through the sum of the row of x.
#include <immintrin.h>

#include "backend/cpu/matmul/fetch_output_avx512.h"
#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_panels_avx512.h"
#include "backend/cpu/matmul/matmul_tile_avx512.h"

namespace sluice::cpu {
namespace {

constexpr int R = kPanelRows;

// The rows' scales come off the dots at the end of K.
template <int G, int MT>
[[gnu::always_inline]] inline void finish(const Tile& t,
                                          const RowPanelPlan& plan,
                                          const __m512i (&dot)[G][MT]) {
  __m512 acc[G][MT];
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    const __m512 dw = _mm512_loadu_ps(t.w + g * plan.bytes + plan.scale);
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(t.scale[m]), dw);
      acc[g][m] = _mm512_mul_ps(_mm512_cvtepi32_ps(dot[g][m]), scale);
    }
  }
  store<G, MT>(t, acc);
}

template <int G, int MT>
void row_tile(const Tile& t) {
  const RowPanelPlan plan = row_panel_plan<R>(t.cols);
  __m512i dot[G][MT];
  SLUICE_UNROLL
  for (int m = 0; m < MT; ++m) {
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) dot[g][m] = _mm512_set1_epi32(-128 * t.sum[m]);
  }
  const uint8_t* w = t.w;
  const int8_t* x = t.q;
  for (int64_t b = 0; b < t.cols / 32; ++b) {
    if (b < MT) {
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) fetch_output(t.out + b * t.out_stride + g * R);
    }
    prefetch(t, b);
    SLUICE_UNROLL
    for (int u = 0; u < 8; ++u) {
      __m512i wv[G];
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) wv[g] = load64(w + g * plan.bytes + u * 64);
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) {
        const __m512i xv = broadcast4(x + m * t.cols + u * 4);
        SLUICE_UNROLL
        for (int g = 0; g < G; ++g) dot[g][m] = _mm512_dpbusd_epi32(dot[g][m], wv[g], xv);
      }
      hold_loads();
    }
    w += 8 * 64;
    x += 32;
  }
  finish<G, MT>(t, plan, dot);
}

struct Kernel {
  static constexpr int kRows = R, kStep = 1;
  static constexpr Heights kMost{6, 6, 6};  // 24 accumulators

  template <int G, int MT>
  static constexpr TileFn tile = row_tile<G, MT>;
};

}  // namespace

void matmul_avx512_w8a8(const MatmulArgs& a) {
  run_tiles<Kernel>(a, row_panel_plan<R>(a.cols).bytes, 1);
}

}  // namespace sluice::cpu
