// int_row kernels for AVX-512 VNNI. Lanes are the 16 rows of a group; a tile is G groups (read
// streams) by MT rows of x. Nothing but loads and products happens before the end of K. Weights are
// stored plus 128, which is taken off through the sum of the row of x.
#include <immintrin.h>

#include "backend/cpu/fetch_output_avx512.h"
#include "backend/cpu/matmul_kernels.h"

namespace sluice::cpu {
namespace {

constexpr int R = 16;

struct Tile {
  const uint8_t* w;  // first group's panel
  const int8_t* q;   // first row's activations
  const float* scale;
  const int32_t* sum;
  float* out;         // first row, first group's first column
  const float* bias;  // first group's, or null
  int64_t cols;
  int64_t out_stride;
  int64_t rows_left;    // rows of W from the first group's on
  const uint8_t* next;  // memory that the next tiles read: num_next lines of it for 32 columns
  int num_next;
};

[[gnu::always_inline]] inline __m512i broadcast4(const int8_t* x) {
  int32_t v;
  std::memcpy(&v, x, 4);
  return _mm512_set1_epi32(v);
}

template <int G, int MT>
[[gnu::always_inline]] inline void store(const Tile& t,
                                         const RowPanelPlan& plan,
                                         const __m512i (&dot)[G][MT]) {
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    const int64_t left = t.rows_left - g * R;
    const auto mask = static_cast<__mmask16>(left >= R ? 0xffff : (1u << left) - 1);
    const __m512 bias = t.bias ? _mm512_maskz_loadu_ps(mask, t.bias + g * R) : _mm512_setzero_ps();
    const __m512 dw = _mm512_loadu_ps(t.w + g * plan.bytes + plan.scale);
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(t.scale[m]), dw);
      const __m512 acc = _mm512_mul_ps(_mm512_cvtepi32_ps(dot[g][m]), scale);
      _mm512_mask_storeu_ps(t.out + m * t.out_stride + g * R, mask, _mm512_add_ps(acc, bias));
    }
  }
}

template <int G, int MT>
void tile(const Tile& t) {
  const RowPanelPlan plan = row_panel_plan<R>(t.cols);
  __m512i dot[G][MT];
  SLUICE_UNROLL
  for (int m = 0; m < MT; ++m) {
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) dot[g][m] = _mm512_set1_epi32(-128 * t.sum[m]);
  }
  const uint8_t* w = t.w;
  const int8_t* x = t.q;
  const uint8_t* next = t.next;
  for (int64_t b = 0; b < t.cols / 32; ++b) {
    if (b < MT) {
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) fetch_output(t.out + b * t.out_stride + g * R);
    }
    for (int i = 0; i < t.num_next; ++i) _mm_prefetch(next + i * 64, _MM_HINT_T1);
    next += t.num_next * 64;
    SLUICE_UNROLL
    for (int u = 0; u < 8; ++u) {
      __m512i wv[G];
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) wv[g] = _mm512_loadu_si512(w + g * plan.bytes + u * 64);
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
  store<G, MT>(t, plan, dot);
}

using TileFn = void (*)(const Tile&);

// Rows of x whose accumulators fit the registers beside four groups. More rows run as tiles of
// nearly equal height over panels that the first of them has brought into the cache.
constexpr int kMaxTile = 6;
constexpr int kMaxGroups = 4;

template <int G>
TileFn pick(int64_t m) {
  static constexpr TileFn kTiles[] = {tile<G, 1>, tile<G, 2>, tile<G, 3>,
                                      tile<G, 4>, tile<G, 5>, tile<G, 6>};
  return kTiles[m - 1];
}

TileFn pick(int groups, int64_t m) {
  return groups == 4   ? pick<4>(m)
         : groups == 3 ? pick<3>(m)
         : groups == 2 ? pick<2>(m)
                       : pick<1>(m);
}

}  // namespace

void matmul_avx512_w8a8(const MatmulArgs& a) {
  const size_t panel = row_panel_plan<R>(a.cols).bytes;
  const int64_t blocks = a.cols / 32;
  const int64_t tiles = (a.m + kMaxTile - 1) / kMaxTile;
  for (int64_t g = a.group_begin; g < a.group_end;) {
    const int64_t left = a.group_end - g;
    const int groups = static_cast<int>(left < kMaxGroups ? left : kMaxGroups);
    const uint8_t* w = static_cast<const uint8_t*>(a.w) + static_cast<size_t>(g) * panel;
    // Every tile fetches its share of the next groups.
    const int64_t next_groups = left - groups < kMaxGroups ? left - groups : kMaxGroups;
    const int64_t next_lines = next_groups * static_cast<int64_t>(panel) / 64;
    const int64_t lines = (next_lines + tiles * blocks - 1) / (tiles * blocks);
    for (int64_t i = 0, m0 = 0; i < tiles; ++i) {
      const int64_t m = a.m / tiles + (i < a.m % tiles ? 1 : 0);
      pick(groups,
           m)({w, a.q + m0 * a.cols, a.scale + m0, a.sum + m0, a.out + m0 * a.out_stride + g * R,
               a.bias ? a.bias + g * R : nullptr, a.cols, a.out_stride, a.rows - g * R,
               w + static_cast<size_t>(groups) * panel + i * blocks * lines * 64,
               static_cast<int>(lines)});
      m0 += m;
    }
    g += groups;
  }
}

}  // namespace sluice::cpu
