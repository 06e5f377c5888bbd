// bf16_tiles kernels for AMX, at every number of rows. Up to two tiles of x by two groups, or one
// by four: four f32 results in registers over a range of K; between ranges they wait in `out`. Rows
// of x are rounded to bf16 and laid out in tiles once per call and range; or, where they are many,
// for all calls before them (MatmulArgs::tiles), and then all of them pass by each two groups, so
// that the weights come from memory once.
#include <immintrin.h>

#include "backend/cpu/matmul/fetch_output.h"
#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/tiles_amx.h"

namespace sluice::cpu {
namespace {

constexpr int R = 16;
constexpr int64_t kTileRows = 16;  // of x, at most
constexpr int64_t kMaxRows = 128;  // of x at once
constexpr int64_t kRange = 32;     // steps of K whose weights stay in the first-level cache
constexpr int64_t kMaxLines = 256 * 1024 / 64;  // of x laid out at once: a row's step is a line
constexpr int64_t kTileBytes = kPairStep / 2 * R * 4;  // of W: one step of a group

using Dots = float[kTileRows][R];

struct Scratch {
  alignas(64) uint16_t x[kMaxLines][kPairStep];        // [tile][step][row]
  alignas(64) Dots acc[kMaxRows / kTileRows * 2 + 2];  // [tile][group]
};

// One product's place.
struct Tile {
  const uint8_t* w;  // first group's panel, from the range's first step on
  size_t panel;      // bytes from group to group
  const uint16_t (*x[2])[kPairStep];
  int64_t height;  // of a tile of x
  int64_t steps;
  Dots* acc;   // (a, b) at 2 a + b
  bool first;  // steps of K
};

// Bytes ahead of what is read in each stream: weights come from memory.
constexpr int64_t kAhead = 4096;

[[gnu::always_inline]] inline void prefetch_tile(const uint8_t* w) {
  SLUICE_UNROLL
  for (int i = 0; i < kTileBytes; i += 64) _mm_prefetch(w + kAhead + i, _MM_HINT_T0);
}

// NA tiles of x by NB groups; result (a, b) is in register 2 a + b. Registers must be literals.
template <int NA, int NB, bool kFetch>
void product(const Tile& t) {
  static_assert(NA * NB <= 4);
  if (t.first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, t.acc[0], sizeof t.acc[0][0]);
    _tile_loadd(1, t.acc[1], sizeof t.acc[0][0]);
    _tile_loadd(2, t.acc[2], sizeof t.acc[0][0]);
    _tile_loadd(3, t.acc[3], sizeof t.acc[0][0]);
  }
  const uint16_t(*x0)[kPairStep] = t.x[0];
  const uint16_t(*x1)[kPairStep] = t.x[1];
  const uint8_t* w = t.w;
  for (int64_t k = 0; k < t.steps; ++k, w += kTileBytes) {
    _tile_loadd(4, x0, sizeof *x0);
    x0 += t.height;
    if constexpr (NA == 2) {
      _tile_loadd(5, x1, sizeof *x1);
      x1 += t.height;
    }
    _tile_loadd(6, w, 64);
    if constexpr (kFetch) prefetch_tile(w);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (NA == 2) _tile_dpbf16ps(2, 5, 6);
    if constexpr (NB > 1) {
      _tile_loadd(7, w + t.panel, 64);
      if constexpr (kFetch) prefetch_tile(w + t.panel);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (NA == 2) _tile_dpbf16ps(3, 5, 7);
    }
    if constexpr (NB > 2) {
      _tile_loadd(6, w + 2 * t.panel, 64);
      if constexpr (kFetch) prefetch_tile(w + 2 * t.panel);
      _tile_dpbf16ps(2, 4, 6);
    }
    if constexpr (NB > 3) {
      _tile_loadd(7, w + 3 * t.panel, 64);
      if constexpr (kFetch) prefetch_tile(w + 3 * t.panel);
      _tile_dpbf16ps(3, 4, 7);
    }
  }
  _tile_stored(0, t.acc[0], sizeof t.acc[0][0]);
  if constexpr (NB > 1) {
    _tile_stored(1, t.acc[1], sizeof t.acc[0][0]);
  }
  if constexpr (NA > 1 || NB > 2) {
    _tile_stored(2, t.acc[2], sizeof t.acc[0][0]);
  }
  if constexpr (NA * NB > 3) {
    _tile_stored(3, t.acc[3], sizeof t.acc[0][0]);
  }
}

// The first pass over weights fetches them; later ones find them in the caches.
template <bool kFetch>
void multiply(int tiles, int groups, const Tile& t) {
  if (tiles == 2) return groups == 2 ? product<2, 2, kFetch>(t) : product<2, 1, kFetch>(t);
  switch (groups) {
    case 1:
      return product<1, 1, kFetch>(t);
    case 2:
      return product<1, 2, kFetch>(t);
    case 3:
      return product<1, 3, kFetch>(t);
    default:
      return product<1, 4, kFetch>(t);
  }
}

// Columns [k0, k0 + 32 steps) of rows [m0, m0 + height) as one tile's steps; zeros past the last
// column and from row `rows` on.
void lay_out_x(const MatmulArgs& a,
               int64_t m0,
               int64_t rows,
               int64_t height,
               int64_t k0,
               int64_t steps,
               uint16_t (*to)[kPairStep]) {
  for (int64_t r = 0; r < height; ++r) {
    const float* x = a.x + (m0 + r) * a.x_stride + k0;
    for (int64_t k = 0; k < steps; ++k) {
      const int64_t left = r < rows ? a.cols - k0 - k * kPairStep : 0;
      const auto mask = static_cast<__mmask32>(left >= kPairStep ? 0xffffffffu
                                               : left > 0        ? (1u << left) - 1
                                                                 : 0);
      const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), x + k * kPairStep);
      const __m512 high =
          _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), x + k * kPairStep + 16);
      const auto both = _mm512_cvtne2ps_pbh(high, low);
      std::memcpy(to[k * height + r], &both, sizeof both);
    }
  }
}

// Where the results of one tile and group stand.
struct Place {
  float* out;
  int64_t stride, rows;
  __mmask16 mask;
};

Place place_of(const MatmulArgs& a, int64_t m0, int64_t rows, int64_t g) {
  const int64_t left = a.rows - g * R;
  return {a.out + m0 * a.out_stride + g * R, a.out_stride, rows,
          static_cast<__mmask16>(left >= R ? 0xffff : (1u << left) - 1)};
}

void take_back(const Place& p, Dots& acc) {
  for (int64_t m = 0; m < p.rows; ++m) {
    _mm512_store_ps(acc[m], _mm512_maskz_loadu_ps(p.mask, p.out + m * p.stride));
  }
}

// bias: of the group, null before the last range of K.
void put(const Place& p, const Dots& acc, const float* bias) {
  const __m512 b = bias ? _mm512_maskz_loadu_ps(p.mask, bias) : _mm512_setzero_ps();
  for (int64_t m = 0; m < p.rows; ++m) {
    _mm512_mask_storeu_ps(p.out + m * p.stride, p.mask, _mm512_add_ps(_mm512_load_ps(acc[m]), b));
  }
}

// Steps [k0, k0 + steps) of K of rows [m0, m0 + rows) of x, laid out in s.x as `tiles` tiles.
struct Range {
  int64_t m0, rows, tiles, height;
  int64_t k0, steps;
  bool first, last;

  int64_t rows_of(int64_t tile) const {
    const int64_t left = rows - tile * height;
    return left < height ? left : height;
  }
};

// `groups` groups from g on. The steps are taken a few at a time for all tiles of x.
void run_groups(const MatmulArgs& a, const Range& r, int64_t g, int groups, Scratch& s) {
  const size_t panel = bf16_panel_bytes<R, kPairStep>(a.cols);
  const uint8_t* w = static_cast<const uint8_t*>(a.w) + static_cast<size_t>(g) * panel +
                     static_cast<size_t>(r.k0 * kTileBytes);
  const int64_t at_once = r.tiles == 1 ? r.steps : kRange;
  for (int64_t k = 0; k < r.steps; k += at_once) {
    const int64_t steps = r.steps - k < at_once ? r.steps - k : at_once;
    for (int64_t i = 0; i < r.tiles; i += 2) {
      const int pair = i + 1 < r.tiles ? 2 : 1;
      Tile t{w + k * kTileBytes, panel, {}, r.height, steps, s.acc + 2 * i, r.first && k == 0};
      for (int j = 0; j < pair; ++j) t.x[j] = s.x + ((i + j) * r.steps + k) * r.height;
      const auto each = [&](auto&& act) {
        for (int j = 0; j < pair; ++j) {
          for (int n = 0; n < groups; ++n) {
            act(place_of(a, r.m0 + (i + j) * r.height, r.rows_of(i + j), g + n), t.acc[2 * j + n],
                r.last && a.bias ? a.bias + (g + n) * R : nullptr);
          }
        }
      };
      if (!r.first && k == 0) {
        each([](const Place& p, Dots& acc, const float*) { take_back(p, acc); });
      }
      hold_loads();  // tile loads read what was laid out
      i == 0 ? multiply<true>(pair, groups, t) : multiply<false>(pair, groups, t);
      if (k + steps == r.steps) {
        each([](const Place& p, Dots& acc, const float* bias) { put(p, acc, bias); });
      }
    }
  }
}

// Rows [m0, m0 + rows) of x, at most kMaxRows.
void run_rows(const MatmulArgs& a, int64_t m0, int64_t rows, Scratch& s) {
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  const int64_t height = (rows + tiles - 1) / tiles;
  configure_tiles(static_cast<int>(height), kPairStep * 2, kPairStep / 2);
  const int64_t all_steps = (a.cols + kPairStep - 1) / kPairStep;
  const int64_t max_steps = kMaxLines / (tiles * height);
  const int64_t at_once = tiles == 1 ? 4 : 2;
  for (int64_t k0 = 0; k0 < all_steps; k0 += max_steps) {
    const int64_t steps = all_steps - k0 < max_steps ? all_steps - k0 : max_steps;
    const Range r{m0, rows, tiles, height, k0, steps, k0 == 0, k0 + steps == all_steps};
    for (int64_t i = 0; i < tiles; ++i) {
      lay_out_x(a, m0 + i * height, r.rows_of(i), height, k0 * kPairStep, steps,
                s.x + i * steps * height);
    }
    for (int64_t g = a.group_begin; g < a.group_end; g += at_once) {
      const int64_t left = a.group_end - g;
      run_groups(a, r, g, static_cast<int>(left < at_once ? left : at_once), s);
    }
  }
}

// A row's lines of the output come while its tiles are computed: stores would wait for them.
[[gnu::always_inline]] inline void fetch_rows(const Place& p, int64_t begin, int64_t end) {
  for (int64_t m = begin; m < end && m < p.rows; ++m) {
    fetch_output(p.out + m * p.stride);
  }
}

// Two tiles of x by two groups over the whole of K, both as they lie in memory; meanwhile the
// output's lines come, unless they are written past the caches, and num_next lines in every step of
// what the next groups are.
struct Pair {
  const uint8_t* w;
  size_t panel;
  const uint16_t (*x[2])[kPairStep];
  int64_t steps;
  const Place* out;  // (a, b) at 2 a + b; null: not to be fetched
  const uint8_t* next;
  int64_t num_next;
};

void product_pair(const Pair& t, Dots* acc) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const uint16_t(*x0)[kPairStep] = t.x[0];
  const uint16_t(*x1)[kPairStep] = t.x[1];
  const uint8_t *w = t.w, *next = t.next;
  const int64_t rows = (kTileRows + t.steps - 1) / t.steps;  // whose lines a step fetches
  for (int64_t k = 0; k < t.steps; ++k, w += kTileBytes, x0 += kTileRows, x1 += kTileRows) {
    for (int64_t i = 0; i < t.num_next; ++i, next += 64) _mm_prefetch(next, _MM_HINT_T1);
    _tile_stream_loadd(4, x0, sizeof *x0);
    _tile_stream_loadd(5, x1, sizeof *x1);
    _tile_loadd(6, w, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(2, 5, 6);
    _tile_loadd(7, w + t.panel, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
    if (t.out) {
      SLUICE_UNROLL
      for (int i = 0; i < 4; ++i) fetch_rows(t.out[i], k * rows, (k + 1) * rows);
    }
  }
  _tile_stored(0, acc[0], sizeof acc[0][0]);
  _tile_stored(1, acc[1], sizeof acc[0][0]);
  _tile_stored(2, acc[2], sizeof acc[0][0]);
  _tile_stored(3, acc[3], sizeof acc[0][0]);
}

// put() of 16 rows of W past the caches.
void put_past_cache(const Place& p, const Dots& acc, const float* bias) {
  const __m512 b = bias ? _mm512_loadu_ps(bias) : _mm512_setzero_ps();
  for (int64_t m = 0; m < p.rows; ++m) {
    _mm512_stream_ps(p.out + m * p.stride, _mm512_add_ps(_mm512_load_ps(acc[m]), b));
  }
}

// x in tiles of kTileRows rows; a single tile or group is taken twice.
void run_tiles(const MatmulArgs& a, Scratch& s) {
  const size_t panel = bf16_panel_bytes<R, kPairStep>(a.cols);
  const int64_t tiles = (a.m + kTileRows - 1) / kTileRows;
  const int64_t steps = (a.cols + kPairStep - 1) / kPairStep;
  const auto* x = reinterpret_cast<const uint16_t(*)[kPairStep]>(a.tiles);
  const bool past_cache = writes_past_cache(a);
  configure_tiles(kTileRows, kPairStep * 2, kPairStep / 2);
  for (int64_t g = a.group_begin; g < a.group_end; g += 2) {
    const int64_t left = a.group_end - g, after = left > 4 ? 2 : left > 2 ? left - 2 : 0;
    const int groups = left > 1 ? 2 : 1;
    const int64_t lines = after * static_cast<int64_t>(panel) / 64;
    const int64_t all_steps = (tiles + 1) / 2 * steps;
    Pair t{};
    t.w = static_cast<const uint8_t*>(a.w) + static_cast<size_t>(g) * panel;
    t.panel = groups == 2 ? panel : 0;
    t.steps = steps;
    t.num_next = (lines + all_steps - 1) / all_steps;
    t.next = t.w + 2 * panel;
    for (int64_t i = 0; i < tiles; i += 2) {
      const int pair = i + 1 < tiles ? 2 : 1;
      Place out[4];
      for (int j = 0; j < 4; ++j) {
        const int64_t tile = i + (pair == 2 ? j / 2 : 0), m0 = tile * kTileRows;
        const int64_t rows = a.m - m0 < kTileRows ? a.m - m0 : kTileRows;
        out[j] = place_of(a, m0, rows, g + (groups == 2 ? j % 2 : 0));
        t.x[j / 2] = x + tile * steps * kTileRows;
      }
      t.out = past_cache ? nullptr : out;
      product_pair(t, s.acc);
      t.next += t.num_next * steps * 64;
      for (int j = 0; j < 4; ++j) {
        if (j / 2 >= pair || j % 2 >= groups) continue;
        const float* bias = a.bias ? a.bias + (g + j % 2) * R : nullptr;
        past_cache&& out[j].mask == 0xffff ? put_past_cache(out[j], s.acc[j], bias)
                                           : put(out[j], s.acc[j], bias);
      }
    }
  }
  _mm_sfence();  // stores past the caches: done before anybody is told that this call is
}

}  // namespace

void lay_out_tile_amx_bf16(const float* x, int64_t stride, int64_t rows, int64_t cols, void* tile) {
  MatmulArgs a;
  a.x = x;
  a.x_stride = stride;
  a.cols = cols;
  lay_out_x(a, 0, rows, kTileRows, 0, (cols + kPairStep - 1) / kPairStep,
            static_cast<uint16_t(*)[kPairStep]>(tile));
}

void matmul_amx_bf16(const MatmulArgs& a) {
  Scratch scratch;
  if (a.tiles) {
    run_tiles(a, scratch);
    _tile_release();
    return;
  }
  const int64_t chunks = (a.m + kMaxRows - 1) / kMaxRows;
  for (int64_t i = 0; i < chunks; ++i) {
    const int64_t begin = a.m * i / chunks, end = a.m * (i + 1) / chunks;
    run_rows(a, begin, end - begin, scratch);
  }
  _tile_release();
}

}  // namespace sluice::cpu
