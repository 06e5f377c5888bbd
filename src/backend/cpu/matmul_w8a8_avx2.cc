// int_row kernels for AVX2 without VNNI. Lanes are the 8 rows of a group; a tile is G groups (read
// streams) by MT rows of x. VPMADDUBSW takes |w| and x with w's sign: 2 * 127 * 127 < 2^15, so its
// 16-bit pair sums do not saturate; they are widened at once.
#include <immintrin.h>

#include "backend/cpu/matmul_kernels.h"

namespace sluice::cpu {
namespace {

constexpr int R = 8;

struct Tile {
  const uint8_t* w;  // first group's panel
  const int8_t* q;   // first row's activations
  const float* scale;
  float* out;         // first row, first group's first column
  const float* bias;  // first group's, or null
  int64_t cols;
  int64_t out_stride;
  int64_t rows_left;    // rows of W from the first group's on
  const uint8_t* next;  // memory that the next tiles read: num_next lines of it for 32 columns
  int num_next;
};

[[gnu::always_inline]] inline __m256i broadcast4(const int8_t* x) {
  int32_t v;
  std::memcpy(&v, x, 4);
  return _mm256_set1_epi32(v);
}

[[gnu::always_inline]] inline __m256 load_f32(const uint8_t* p) {
  return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
}

template <int G, int MT>
[[gnu::always_inline]] inline void store(const Tile& t,
                                         const RowPanelPlan& plan,
                                         const __m256i (&dot)[G][MT]) {
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    const int64_t left = t.rows_left - g * R;
    const __m256 dw = load_f32(t.w + g * plan.bytes + plan.scale);
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      const __m256 scale = _mm256_mul_ps(_mm256_set1_ps(t.scale[m]), dw);
      const __m256 acc = _mm256_mul_ps(_mm256_cvtepi32_ps(dot[g][m]), scale);
      float* out = t.out + m * t.out_stride + g * R;
      if (left >= R) {
        const __m256 bias = t.bias ? _mm256_loadu_ps(t.bias + g * R) : _mm256_setzero_ps();
        _mm256_storeu_ps(out, _mm256_add_ps(acc, bias));
      } else {
        float lanes[R];
        _mm256_storeu_ps(lanes, acc);
        for (int64_t i = 0; i < left; ++i) out[i] = lanes[i] + (t.bias ? t.bias[g * R + i] : 0);
      }
    }
  }
}

template <int G, int MT>
void tile(const Tile& t) {
  const RowPanelPlan plan = row_panel_plan<R>(t.cols);
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i dot[G][MT];
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) dot[g][m] = _mm256_setzero_si256();
  }
  const uint8_t* w = t.w;
  const int8_t* x = t.q;
  const uint8_t* next = t.next;
  for (int64_t b = t.cols / 32; b > 0; --b) {
    for (int i = 0; i < t.num_next; ++i) _mm_prefetch(next + i * 64, _MM_HINT_T1);
    next += t.num_next * 64;
    for (int u = 0; u < 8; ++u) {
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) {
        const __m256i wv =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + g * plan.bytes + u * 32));
        const __m256i magnitude = _mm256_abs_epi8(wv);
        SLUICE_UNROLL
        for (int m = 0; m < MT; ++m) {
          const __m256i xv = _mm256_sign_epi8(broadcast4(x + m * t.cols + u * 4), wv);
          const __m256i pairs = _mm256_maddubs_epi16(magnitude, xv);
          dot[g][m] = _mm256_add_epi32(dot[g][m], _mm256_madd_epi16(pairs, ones));
        }
      }
    }
    w += 8 * 32;
    x += 32;
  }
  store<G, MT>(t, plan, dot);
}

using TileFn = void (*)(const Tile&);

// Eight accumulators stay in registers beside what they are made of.
constexpr int64_t kMaxTile = 4;

constexpr int groups_at_once(int64_t m) { return m <= 2 ? 4 : 2; }

TileFn pick(int groups, int64_t m) {
  static constexpr TileFn kTwo[] = {tile<2, 1>, tile<2, 2>, tile<2, 3>, tile<2, 4>};
  static constexpr TileFn kOne[] = {tile<1, 1>, tile<1, 2>, tile<1, 3>, tile<1, 4>};
  if (groups == 4) return m == 1 ? tile<4, 1> : tile<4, 2>;
  return groups == 2 ? kTwo[m - 1] : kOne[m - 1];
}

}  // namespace

void matmul_avx2_w8a8(const MatmulArgs& a) {
  const size_t panel = row_panel_plan<R>(a.cols).bytes;
  const int64_t blocks = a.cols / 32;
  const int64_t tiles = (a.m + kMaxTile - 1) / kMaxTile;
  const int wide = groups_at_once(a.m);
  for (int64_t g = a.group_begin; g < a.group_end;) {
    const int64_t left = a.group_end - g;
    const int groups = left >= wide ? wide : left >= 2 ? 2 : 1;
    const uint8_t* w = static_cast<const uint8_t*>(a.w) + static_cast<size_t>(g) * panel;
    // Every tile fetches its share of the next groups.
    const int64_t next_groups = left - groups < wide ? left - groups : wide;
    const int64_t next_lines = next_groups * static_cast<int64_t>(panel) / 64;
    const int64_t lines = (next_lines + tiles * blocks - 1) / (tiles * blocks);
    for (int64_t i = 0, m0 = 0; i < tiles; ++i) {
      const int64_t m = a.m / tiles + (i < a.m % tiles ? 1 : 0);
      pick(groups, m)({w, a.q + m0 * a.cols, a.scale + m0, a.out + m0 * a.out_stride + g * R,
                       a.bias ? a.bias + g * R : nullptr, a.cols, a.out_stride, a.rows - g * R,
                       w + static_cast<size_t>(groups) * panel + i * blocks * lines * 64,
                       static_cast<int>(lines)});
      m0 += m;
    }
    g += groups;
  }
}

}  // namespace sluice::cpu
