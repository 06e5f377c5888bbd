// int_row kernels for AVX2 without VNNI. Lanes are the 8 rows of a group; a tile is G groups (read
// streams) by MT rows of x. VPMADDUBSW takes |w| and x with w's sign: 2 * 127 * 127 < 2^15, so its
// 16-bit pair sums do not saturate; they are widened at once.
#include <immintrin.h>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_tile_avx2.h"

namespace sluice::cpu {
namespace {

// The rows' scales come off the dots at the end of K.
template <int G, int MT>
[[gnu::always_inline]] inline void finish(const Tile& t,
                                          const RowPanelPlan& plan,
                                          const __m256i (&dot)[G][MT]) {
  __m256 acc[G][MT];
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    const __m256 dw =
        _mm256_loadu_ps(reinterpret_cast<const float*>(t.w + g * plan.bytes + plan.scale));
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      const __m256 scale = _mm256_mul_ps(_mm256_set1_ps(t.scale[m]), dw);
      acc[g][m] = _mm256_mul_ps(_mm256_cvtepi32_ps(dot[g][m]), scale);
    }
  }
  store<G, MT>(t, acc);
}

template <int G, int MT>
void row_tile(const Tile& t) {
  const RowPanelPlan plan = row_panel_plan<R>(t.cols);
  __m256i dot[G][MT];
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) dot[g][m] = _mm256_setzero_si256();
  }
  const uint8_t* w = t.w;
  Rows<int8_t, MT> x(t.q, t.cols);
  for (int64_t b = 0; b < t.cols / 32; ++b) {
    prefetch(t, b);
    SLUICE_UNROLL
    for (int u = 0; u < 8; ++u) {
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) {
        const __m256i wv = load32(w + g * plan.bytes + u * 32);
        const __m256i magnitude = _mm256_abs_epi8(wv);
        SLUICE_UNROLL
        for (int m = 0; m < MT; ++m) {
          const __m256i xv = _mm256_sign_epi8(broadcast4(x.row(m) + u * 4), wv);
          dot[g][m] = _mm256_add_epi32(dot[g][m], widen_add(_mm256_maddubs_epi16(magnitude, xv)));
          keep(dot[g][m]);
        }
      }
    }
    w += 8 * 32;
    x.advance(32);
  }
  finish<G, MT>(t, plan, dot);
}

struct Kernel {
  static constexpr int kRows = R, kStep = 1;
  static constexpr Heights kMost{4, 4, 2};  // eight accumulators

  template <int G, int MT>
  static constexpr TileFn tile = row_tile<G, MT>;
};

}  // namespace

void matmul_avx2_w8a8(const MatmulArgs& a) {
  run_tiles<Kernel>(a, row_panel_plan<R>(a.cols).bytes, 1);
}

}  // namespace sluice::cpu
