// int_row kernels for AMX, over the panels of matmul_w8a8_avx512.cc and with its bits. Up to two
// tiles of x by two groups, or one by four: four int32 results stay in registers over the whole of
// K. They are scaled while the next four are computed: the tile unit leaves the vector ports idle.
// Weights are stored plus 128, which is taken off through the sum of the row of x.
//
// A product takes 16 cycles and, two by two, reads 1 KB of new operands. The second cache does not
// give that: two groups stay in the first, and many rows of x, which come by in between, are read
// from tiles that lie in one piece (MatmulArgs::tiles) by loads that do not displace the groups.
#include <immintrin.h>

#include "backend/cpu/matmul/fetch_output.h"
#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/tiles_amx.h"

namespace sluice::cpu {
namespace {

constexpr int R = 16;
constexpr int64_t kTileRows = 16;      // of x, at most
constexpr int64_t kStep = 64;          // columns of one product
constexpr int64_t kInPlaceRows = 128;  // of x in one pass over the panels, where it is no tiles

using Dots = int32_t[kTileRows][R];

// K may end in half a step: both sides are completed by zeros.
struct Scratch {
  alignas(64) int8_t x[kInPlaceRows][kStep];
  alignas(64) uint8_t w[4][R * kStep];
  alignas(64) Dots dot[2][4];
};

// Results that wait to be scaled: tiles of `height` rows of x by `groups` groups.
struct Pending {
  const Dots* dot = nullptr;     // (a, b) at 2 a + b
  int64_t m0[2] = {};            // first row of each tile
  int64_t height = 0, rows = 0;  // of a tile; of all
  int64_t done = 0;
  int64_t group = 0;
  int groups = 0;
  bool whole = false;              // all groups have R rows
  bool past_cache = false;         // the output's lines do not go through the caches
  const uint8_t* scale = nullptr;  // d_w of the first group, in its panel
  const float* bias = nullptr;
  size_t panel = 0;
};

struct Tile {
  const uint8_t* w;  // first group's panel
  size_t panel;      // bytes from group to group
  const int8_t* x[2];
  int64_t x_stride, x_step;  // bytes to the next row, to the next step
  const int8_t* tail_x[2];   // rows kStep apart; null where K is a multiple of kStep
  const uint8_t* tail_w;
  Dots* dot;
  const Pending* result;  // what these tiles leave to be scaled
  const uint8_t* next;    // memory that the next tiles read: num_next lines of it in each step
  int64_t num_next;
};

// Row i's lines of the output.
template <int NB>
[[gnu::always_inline]] inline void fetch_row(const MatmulArgs& a, const Pending& p, int64_t i) {
  const int64_t tile = i >= p.height ? 1 : 0;
  const int64_t m = p.m0[tile] + i - tile * p.height;
  const float* out = a.out + m * a.out_stride + p.group * R;
  SLUICE_UNROLL
  for (int b = 0; b < NB; ++b) fetch_output(out + b * R);
}

alignas(64) constexpr float kNoBias[4 * R] = {};

// The next row of what is pending: G whole groups.
template <int G>
[[gnu::always_inline]] inline void finish_row(const MatmulArgs& a, Pending& p) {
  const int64_t tile = p.done >= p.height ? 1 : 0;
  const int64_t row = p.done - tile * p.height;
  ++p.done;
  const int64_t m = p.m0[tile] + row;
  const __m512i offset = _mm512_slli_epi32(_mm512_set1_epi32(a.sum[m]), 7);
  const __m512 dx = _mm512_set1_ps(a.scale[m]);
  float* out = a.out + m * a.out_stride + p.group * R;
  const Dots* dot = p.dot + 2 * tile;
  SLUICE_UNROLL
  for (int i = 0; i < G; ++i) {
    const __m512i sum = _mm512_sub_epi32(_mm512_load_si512(dot[i][row]), offset);
    const __m512 scale =
        _mm512_mul_ps(dx, _mm512_loadu_ps(p.scale + static_cast<size_t>(i) * p.panel));
    const __m512 acc = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale);
    const __m512 y = _mm512_add_ps(acc, _mm512_loadu_ps(p.bias + i * R));
    if (p.past_cache) {
      _mm512_stream_ps(out + i * R, y);
    } else {
      _mm512_storeu_ps(out + i * R, y);
    }
  }
}

// All rows that are pending, of groups that may end early.
[[gnu::noinline]] void finish_all(const MatmulArgs& a, Pending& p) {
  for (; p.done < p.rows; ++p.done) {
    const int64_t tile = p.done >= p.height ? 1 : 0;
    const int64_t row = p.done - tile * p.height;
    const int64_t m = p.m0[tile] + row;
    const __m512i offset = _mm512_slli_epi32(_mm512_set1_epi32(a.sum[m]), 7);
    const __m512 dx = _mm512_set1_ps(a.scale[m]);
    float* out = a.out + m * a.out_stride + p.group * R;
    for (int i = 0; i < p.groups; ++i) {
      const int64_t left = a.rows - (p.group + i) * R;
      const auto mask = static_cast<__mmask16>(left >= R ? 0xffff : (1u << left) - 1);
      const __m512 bias =
          a.bias ? _mm512_maskz_loadu_ps(mask, a.bias + (p.group + i) * R) : _mm512_setzero_ps();
      const __m512i sum = _mm512_sub_epi32(_mm512_load_si512(p.dot[2 * tile + i][row]), offset);
      const __m512 scale =
          _mm512_mul_ps(dx, _mm512_loadu_ps(p.scale + static_cast<size_t>(i) * p.panel));
      const __m512 acc = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale);
      _mm512_mask_storeu_ps(out + i * R, mask, _mm512_add_ps(acc, bias));
    }
  }
}

// Loads a tile of x. Registers must be literals.
#define SLUICE_LOAD_X(C, x, stride)   \
  if constexpr (kTiles) {             \
    _tile_stream_loadd(C, x, stride); \
  } else {                            \
    _tile_loadd(C, x, stride);        \
  }

// NA tiles of x by NB groups; result (a, b) is in register 2 a + b. Registers must be literals.
#define SLUICE_STEP(x0, x1, x_stride, w0, w_panel) \
  SLUICE_LOAD_X(4, x0, x_stride)                   \
  if constexpr (NA == 2) {                         \
    SLUICE_LOAD_X(5, x1, x_stride)                 \
  }                                                \
  _tile_loadd(6, w0, 64);                          \
  _tile_dpbsud(0, 4, 6);                           \
  if constexpr (NA == 2) _tile_dpbsud(2, 5, 6);    \
  if constexpr (NB > 1) {                          \
    _tile_loadd(7, (w0) + (w_panel), 64);          \
    _tile_dpbsud(1, 4, 7);                         \
    if constexpr (NA == 2) _tile_dpbsud(3, 5, 7);  \
  }                                                \
  if constexpr (NB > 2) {                          \
    _tile_loadd(6, (w0) + 2 * (w_panel), 64);      \
    _tile_dpbsud(2, 4, 6);                         \
  }                                                \
  if constexpr (NB > 3) {                          \
    _tile_loadd(7, (w0) + 3 * (w_panel), 64);      \
    _tile_dpbsud(3, 4, 7);                         \
  }

template <int NA, int NB, bool kTiles>
void product(const Tile& t, const MatmulArgs& a, Pending& pending) {
  static_assert(NA * NB <= 4);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const int8_t *x0 = t.x[0], *x1 = t.x[NA > 1 ? 1 : 0];
  const uint8_t *w = t.w, *next = t.next;
  const int64_t steps = a.cols / kStep;
  if (pending.groups != NB || !pending.whole) finish_all(a, pending);
  const int64_t rows_per_step = steps > 0 ? (pending.rows + steps - 1) / steps : 0;
  const int64_t fetch_per_step =
      steps > 0 && !t.result->past_cache ? (t.result->rows + steps - 1) / steps : 0;
  int64_t fetched = 0;
  for (int64_t k = 0; k < steps; ++k) {
    for (int64_t i = 0; i < t.num_next; ++i, next += 64) _mm_prefetch(next, _MM_HINT_T1);
    SLUICE_STEP(x0, x1, t.x_stride, w, t.panel)
    for (int64_t i = 0; i < fetch_per_step && fetched < t.result->rows; ++i) {
      fetch_row<NB>(a, *t.result, fetched++);
    }
    x0 += t.x_step;
    x1 += t.x_step;
    w += R * kStep;
    for (int64_t i = 0; i < rows_per_step && pending.done < pending.rows; ++i) {
      finish_row<NB>(a, pending);
    }
  }
  if (t.tail_x[0]) {
    SLUICE_STEP(t.tail_x[0], t.tail_x[1], kStep, t.tail_w, R * kStep)
  }
  finish_all(a, pending);
  _tile_stored(0, t.dot[0], sizeof t.dot[0][0]);
  if constexpr (NB > 1) {
    _tile_stored(1, t.dot[1], sizeof t.dot[0][0]);
  }
  if constexpr (NA > 1 || NB > 2) {
    _tile_stored(2, t.dot[2], sizeof t.dot[0][0]);
  }
  if constexpr (NA * NB > 3) {
    _tile_stored(3, t.dot[3], sizeof t.dot[0][0]);
  }
}
#undef SLUICE_STEP
#undef SLUICE_LOAD_X

template <bool kTiles>
void multiply(int tiles, int groups, const Tile& t, const MatmulArgs& a, Pending& pending) {
  if (tiles == 2) {
    return groups == 2 ? product<2, 2, kTiles>(t, a, pending)
                       : product<2, 1, kTiles>(t, a, pending);
  }
  switch (groups) {
    case 1:
      return product<1, 1, kTiles>(t, a, pending);
    case 2:
      return product<1, 2, kTiles>(t, a, pending);
    case 3:
      return product<1, 3, kTiles>(t, a, pending);
    default:
      return product<1, 4, kTiles>(t, a, pending);
  }
}

void lay_out_tail(const uint8_t* panel, int64_t cols, uint8_t* to) {
  const uint8_t* from = panel + cols / kStep * kStep * R;
  for (int i = 0; i < 8; ++i) {
    _mm512_store_si512(to + i * 64, _mm512_loadu_si512(from + i * 64));
    _mm512_store_si512(to + (8 + i) * 64, _mm512_setzero_si512());
  }
}

// Where the tiles of `height` rows begin: the last one early enough to be a whole one. It repeats
// rows.
int64_t tile_begin(int64_t tile, int64_t height, int64_t m) {
  return (tile + 1) * height <= m ? tile * height : m - height;
}

// x in tiles, or at most kInPlaceRows rows in place.
void run_rows(const MatmulArgs& a, Scratch& s) {
  const RowPanelPlan plan = row_panel_plan<R>(a.cols);
  const int64_t tiles = (a.m + kTileRows - 1) / kTileRows;
  const int64_t height = a.tiles ? kTileRows : (a.m + tiles - 1) / tiles;
  configure_tiles(static_cast<int>(height), kStep, kStep / 4);
  const bool tail = a.cols % kStep != 0;
  for (int64_t m = 0; tail && !a.tiles && m < a.m; ++m) {
    const auto* from = reinterpret_cast<const __m256i*>(a.q + (m + 1) * a.cols - 32);
    _mm512_store_si512(s.x[m], _mm512_zextsi256_si512(_mm256_loadu_si256(from)));
  }
  const bool past_cache = writes_past_cache(a);
  Pending pending[2];  // by turns: what is computed now, what waits
  int turn = 0;
  const int64_t at_once = tiles == 1 ? 4 : 2;
  const int64_t steps = (tiles + 1) / 2 * (a.cols / kStep);  // with a group
  for (int64_t g = a.group_begin; g < a.group_end; g += at_once) {
    const int64_t left = a.group_end - g;
    const int groups = static_cast<int>(left < at_once ? left : at_once);
    Tile t{};
    t.w = static_cast<const uint8_t*>(a.w) + static_cast<size_t>(g) * plan.bytes;
    t.panel = plan.bytes;
    t.x_stride = a.tiles ? kStep : a.cols;
    t.x_step = a.tiles ? kTileRows * kStep : kStep;
    t.tail_w = s.w[0];
    for (int i = 0; tail && i < groups; ++i) {
      lay_out_tail(t.w + static_cast<size_t>(i) * plan.bytes, a.cols, s.w[i]);
    }
    hold_loads();  // tile loads read what was laid out
    // Every step fetches its share of the next groups.
    const int64_t after = left - groups < at_once ? left - groups : at_once;
    const int64_t lines = after * static_cast<int64_t>(plan.bytes) / 64;
    t.num_next = steps > 0 ? (lines + steps - 1) / steps : 0;
    t.next = t.w + static_cast<size_t>(groups) * plan.bytes;
    for (int64_t i = 0; i < tiles; i += 2) {
      const int pair = i + 1 < tiles ? 2 : 1;
      Pending& now = pending[turn];
      now.dot = s.dot[turn];
      now.height = height;
      now.group = g;
      now.groups = groups;
      now.done = 0;
      now.whole = a.rows - g * R >= groups * R;
      now.past_cache = now.whole && past_cache;
      now.bias = a.bias ? a.bias + g * R : kNoBias;
      now.scale = t.w + plan.scale;
      now.panel = plan.bytes;
      for (int j = 0; j < pair; ++j) {
        if (a.tiles) {
          now.m0[j] = (i + j) * kTileRows;
          t.x[j] = a.tiles + (i + j) * x_tile_bytes(a.cols);
          t.tail_x[j] = tail ? t.x[j] + a.cols / kStep * t.x_step : nullptr;
        } else {
          now.m0[j] = tile_begin(i + j, height, a.m);
          t.x[j] = a.q + now.m0[j] * a.cols;
          t.tail_x[j] = tail ? s.x[now.m0[j]] : nullptr;
        }
      }
      const int64_t left_rows = a.m - now.m0[0];  // the last of x's own tiles may be a part
      now.rows = a.tiles && left_rows < pair * height ? left_rows : pair * height;
      t.dot = s.dot[turn];
      t.result = &now;
      turn ^= 1;
      a.tiles ? multiply<true>(pair, groups, t, a, pending[turn])
              : multiply<false>(pair, groups, t, a, pending[turn]);
      t.next += t.num_next * (a.cols / kStep) * 64;
    }
  }
  Pending& rest = pending[turn ^ 1];
  finish_all(a, rest);
}

constexpr int64_t kMinRows = 4;  // of x, from which tiles win

}  // namespace

void matmul_amx_w8a8(const MatmulArgs& a) {
  if (a.m < kMinRows) return matmul_avx512_w8a8(a);
  Scratch scratch;
  if (a.tiles) {
    run_rows(a, scratch);
    _mm_sfence();  // stores past the caches: done before anybody is told that this call is
  } else {
    const int64_t chunks = (a.m + kInPlaceRows - 1) / kInPlaceRows;
    for (int64_t i = 0; i < chunks; ++i) {
      const int64_t m0 = a.m * i / chunks;
      MatmulArgs part = a;
      part.m = a.m * (i + 1) / chunks - m0;
      part.q += m0 * a.cols;
      part.scale += m0;
      part.sum += m0;
      part.out += m0 * a.out_stride;
      run_rows(part, scratch);
    }
  }
  _tile_release();
}

}  // namespace sluice::cpu
