// f32_lanes16 kernels for AVX-512 over 16-bit floats in lines (pack_plan.h): one vector is the
// sixteen lanes of an output's chain. Weights are widened in registers for every tile of x, or for
// many rows of x a block at a time into the second-level cache.
#include <immintrin.h>

#include "backend/cpu/matmul/matmul_kernels.h"

namespace sluice::cpu {
namespace {

constexpr int kPanel = kLineRows;              // rows of W in a panel
constexpr int64_t kGroupPanels = 16 / kPanel;  // in a group
constexpr int kMaxTile = 6;                    // rows of x

struct F16 {
  static __m512 widen(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
  }
};
struct BF16 {
  static __m512 widen(const uint8_t* p) {
    const __m256i v = _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
  }
};

// The sums of four chains' lanes, as f32_lanes16 folds them.
[[gnu::always_inline]] inline __m128 fold(__m512 a, __m512 b, __m512 c, __m512 d) {
  const auto half = [](__m512 v) {
    return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  };
  const auto quarter = [](__m256 v, __m256 w) {  // [v, w], four lanes each
    return _mm256_add_ps(_mm256_permute2f128_ps(v, w, 0x20), _mm256_permute2f128_ps(v, w, 0x31));
  };
  const __m256 ab = quarter(half(a), half(b)), cd = quarter(half(c), half(d));
  // [a, c], [b, d], two lanes each
  const __m256 two =
      _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
  const __m256 one =
      _mm256_add_ps(_mm256_shuffle_ps(two, two, 0x88), _mm256_shuffle_ps(two, two, 0xdd));
  return _mm_unpacklo_ps(_mm256_castps256_ps128(one), _mm256_extractf128_ps(one, 1));
}

// Results of panel `p` for row `m` of x.
[[gnu::always_inline]] inline void put(const MatmulArgs& a, int64_t p, int64_t m, __m128 sums) {
  const int64_t row = p * kPanel, left = a.rows - row;
  const auto mask = static_cast<__mmask8>(left >= kPanel ? 0xf : (1u << left) - 1);
  const __m128 bias = a.bias ? _mm_maskz_loadu_ps(mask, a.bias + row) : _mm_setzero_ps();
  _mm_mask_storeu_ps(a.out + m * a.out_stride + row, mask, _mm_add_ps(sums, bias));
}

// Of sixteen columns from k on.
[[gnu::always_inline]] inline __mmask16 mask_of(int64_t cols, int64_t k) {
  const int64_t left = cols - k;
  return static_cast<__mmask16>(left >= 16 ? 0xffff : left > 0 ? (1u << left) - 1 : 0);
}

// MT rows of x by panels p, p + part, ... of S read streams. kAhead: bytes ahead of what is read in
// each stream; weights come from memory.
template <typename W, int S, int MT, int kAhead>
void tile(const MatmulArgs& a, int64_t p, int64_t part) {
  constexpr int R = S * kPanel;
  const size_t panel_bytes = line_panel_bytes(a.cols);
  const uint8_t* w[S];
  SLUICE_UNROLL
  for (int s = 0; s < S; ++s) {
    w[s] = static_cast<const uint8_t*>(a.w) + static_cast<size_t>(p + s * part) * panel_bytes;
  }
  __m512 acc[R][MT];
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) acc[r][m] = _mm512_setzero_ps();
  }
  int64_t k = 0;
  for (; k + kLine <= a.cols; k += kLine) {
    SLUICE_UNROLL
    for (int h = 0; h < 2; ++h) {
      __m512 x[MT];
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) x[m] = _mm512_loadu_ps(a.x + m * a.x_stride + k + 16 * h);
      SLUICE_UNROLL
      for (int r = 0; r < R; ++r) {
        const uint8_t* line = w[r / kPanel] + k * kPanel * 2 + r % kPanel * 64;
        if (h == 0) _mm_prefetch(line + kAhead, _MM_HINT_T0);
        const __m512 wv = W::widen(line + 32 * h);
        SLUICE_UNROLL
        for (int m = 0; m < MT; ++m) acc[r][m] = _mm512_fmadd_ps(wv, x[m], acc[r][m]);
      }
    }
  }
  for (int h = 0; k + 16 * h < a.cols; ++h) {
    const __mmask16 mask = mask_of(a.cols, k + 16 * h);
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      const __m512 x = _mm512_maskz_loadu_ps(mask, a.x + m * a.x_stride + k + 16 * h);
      SLUICE_UNROLL
      for (int r = 0; r < R; ++r) {
        const uint8_t* line = w[r / kPanel] + k * kPanel * 2 + r % kPanel * 64;
        acc[r][m] = _mm512_mask3_fmadd_ps(W::widen(line + 32 * h), x, acc[r][m], mask);
      }
    }
  }
  SLUICE_UNROLL
  for (int s = 0; s < S; ++s) {
    const auto& sums = acc + s * kPanel;
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      put(a, p + s * part, m, fold(sums[0][m], sums[1][m], sums[2][m], sums[3][m]));
    }
  }
}

// Panels [begin, end) in S stretches side by side: each is one read stream.
template <typename W, int S, int MT, int kAhead>
void stream(const MatmulArgs& a, int64_t begin, int64_t end) {
  const int64_t part = (end - begin) / S;
  for (int64_t p = begin; p < begin + part; ++p) tile<W, S, MT, kAhead>(a, p, part);
  for (int64_t p = begin + part * S; p < end; ++p) tile<W, 1, MT, kAhead>(a, p, 0);
}

constexpr int64_t kBlockPanels = 16;  // widened at once
constexpr int64_t kBlockSteps = 64;   // of sixteen columns: six rows of x stay in the first cache
constexpr int64_t kChunkRows = 60;    // of x whose sums wait between ranges of K

constexpr int64_t kWideRows = 31;  // of x from which widening first pays

struct Scratch {
  alignas(64) float w[kBlockPanels * kBlockSteps][kPanel][16];  // [panel][step]
  alignas(64) float sums[kBlockPanels][kChunkRows][kPanel][16];
};

// Steps [begin, end) of K.
struct Range {
  int64_t begin, end;
  bool first, last;
};

// MT rows of x from m0 on by the widened panel `p` of the matrix. next: weights that come from
// memory afterwards, as many bytes as this panel's have; null: none.
template <int MT>
void wide_tile(const MatmulArgs& a,
               const Range& range,
               const float (*w)[kPanel][16],
               float (*sums)[kPanel][16],
               int64_t p,
               int64_t m0,
               const uint8_t* next) {
  __m512 acc[kPanel][MT];
  SLUICE_UNROLL
  for (int r = 0; r < kPanel; ++r) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      acc[r][m] = range.first ? _mm512_setzero_ps() : _mm512_load_ps(sums[m][r]);
    }
  }
  const float* x = a.x + m0 * a.x_stride;
  const int64_t whole = range.end * 16 <= a.cols ? range.end : range.end - 1;
  int64_t step = range.begin;
  for (; step < whole; ++step, ++w) {
    if (next) {
      _mm_prefetch(next, _MM_HINT_T1);
      _mm_prefetch(next + 64, _MM_HINT_T1);
      next += kPanel * 32;
    }
    __m512 wv[kPanel];
    SLUICE_UNROLL
    for (int r = 0; r < kPanel; ++r) wv[r] = _mm512_load_ps((*w)[r]);
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      const __m512 xv = _mm512_loadu_ps(x + m * a.x_stride + step * 16);
      SLUICE_UNROLL
      for (int r = 0; r < kPanel; ++r) acc[r][m] = _mm512_fmadd_ps(wv[r], xv, acc[r][m]);
    }
  }
  if (step < range.end) {
    const __mmask16 mask = mask_of(a.cols, step * 16);
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      const __m512 xv = _mm512_maskz_loadu_ps(mask, x + m * a.x_stride + step * 16);
      SLUICE_UNROLL
      for (int r = 0; r < kPanel; ++r) {
        acc[r][m] = _mm512_mask3_fmadd_ps(_mm512_load_ps((*w)[r]), xv, acc[r][m], mask);
      }
    }
  }
  SLUICE_UNROLL
  for (int m = 0; m < MT; ++m) {
    if (range.last) {
      put(a, p, m0 + m, fold(acc[0][m], acc[1][m], acc[2][m], acc[3][m]));
      continue;
    }
    SLUICE_UNROLL
    for (int r = 0; r < kPanel; ++r) _mm512_store_ps(sums[m][r], acc[r][m]);
  }
}

// Steps `range` of panels [begin, end).
template <typename W>
void widen_block(const MatmulArgs& a, const Range& range, int64_t begin, int64_t end, Scratch& s) {
  const size_t panel_bytes = line_panel_bytes(a.cols);
  float(*to)[kPanel][16] = s.w;
  for (int64_t p = begin; p < end; ++p) {
    const uint8_t* panel = static_cast<const uint8_t*>(a.w) + static_cast<size_t>(p) * panel_bytes;
    for (int64_t step = range.begin; step < range.end; ++step, ++to) {
      const uint8_t* half = panel + step / 2 * kPanel * 64 + step % 2 * 32;
      SLUICE_UNROLL
      for (int r = 0; r < kPanel; ++r) _mm512_store_ps((*to)[r], W::widen(half + r * 64));
    }
  }
}

// Rows [m0, m0 + rows) of x by panels [begin, end), at most kBlockPanels. next: of the weights that
// follow, as many panels, or null.
template <typename W>
void run_block(const MatmulArgs& a,
               int64_t m0,
               int64_t rows,
               int64_t begin,
               int64_t end,
               const uint8_t* next,
               Scratch& s) {
  using TileFn = void (*)(const MatmulArgs&, const Range&, const float(*)[kPanel][16],
                          float(*)[kPanel][16], int64_t, int64_t, const uint8_t*);
  static constexpr TileFn kTiles[] = {wide_tile<1>, wide_tile<2>, wide_tile<3>,
                                      wide_tile<4>, wide_tile<5>, wide_tile<6>};
  const size_t panel_bytes = line_panel_bytes(a.cols);
  const int64_t steps = (a.cols + 15) / 16;
  const int64_t ranges = (steps + kBlockSteps - 1) / kBlockSteps;
  const int64_t tiles = (rows + kMaxTile - 1) / kMaxTile;
  for (int64_t i = 0; i < ranges; ++i) {
    const Range range{steps * i / ranges, steps * (i + 1) / ranges, i == 0, i + 1 == ranges};
    widen_block<W>(a, range, begin, end, s);
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t at = rows * t / tiles, m = rows * (t + 1) / tiles - at;
      for (int64_t p = 0; p < end - begin; ++p) {
        const uint8_t* fetch = next && t == 0 ? next + static_cast<size_t>(p) * panel_bytes +
                                                    range.begin / 2 * kPanel * 64
                                              : nullptr;
        kTiles[m - 1](a, range, s.w + p * (range.end - range.begin), s.sums[p] + at, begin + p,
                      m0 + at, fetch);
      }
    }
  }
}

template <typename W>
void run_wide(const MatmulArgs& a, int64_t begin, int64_t end) {
  Scratch scratch;
  const int64_t chunks = (a.m + kChunkRows - 1) / kChunkRows;
  for (int64_t c = 0; c < chunks; ++c) {
    const int64_t m0 = a.m * c / chunks, rows = a.m * (c + 1) / chunks - m0;
    for (int64_t p = begin, then; p < end; p = then) {
      then = p + kBlockPanels < end ? p + kBlockPanels : end;
      const uint8_t* next =
          static_cast<const uint8_t*>(a.w) + static_cast<size_t>(then) * line_panel_bytes(a.cols);
      run_block<W>(a, m0, rows, p, then, then < end ? next : nullptr, scratch);
    }
  }
}

// Tiles of x take turns over a few panels, which the first brings from memory.
template <typename W>
void run_narrow(const MatmulArgs& a, int64_t begin, int64_t end) {
  using StreamFn = void (*)(const MatmulArgs&, int64_t, int64_t);
  static constexpr StreamFn kStreams[] = {stream<W, 4, 1, 2048>, stream<W, 2, 2, 4096>,
                                          stream<W, 2, 3, 4096>, stream<W, 1, 4, 8192>,
                                          stream<W, 1, 5, 8192>, stream<W, 1, 6, 8192>};
  const int64_t tiles = (a.m + kMaxTile - 1) / kMaxTile;
  if (tiles == 1) return kStreams[a.m - 1](a, begin, end);
  const int64_t fit = (int64_t{64} << 10) / static_cast<int64_t>(line_panel_bytes(a.cols));
  const int64_t at_once = fit < 1 ? 1 : fit;
  for (int64_t p = begin; p < end; p += at_once) {
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t m0 = a.m * t / tiles;
      MatmulArgs part = a;
      part.m = a.m * (t + 1) / tiles - m0;
      part.x += m0 * a.x_stride;
      part.out += m0 * a.out_stride;
      kStreams[part.m - 1](part, p, p + at_once < end ? p + at_once : end);
    }
  }
}

template <typename W>
void run(const MatmulArgs& a) {
  const int64_t panels = (a.rows + kPanel - 1) / kPanel;
  const int64_t begin = a.group_begin * kGroupPanels;
  const int64_t end = a.group_end * kGroupPanels < panels ? a.group_end * kGroupPanels : panels;
  return a.m < kWideRows ? run_narrow<W>(a, begin, end) : run_wide<W>(a, begin, end);
}

}  // namespace

void matmul_avx512_f16(const MatmulArgs& a) { run<F16>(a); }
void matmul_avx512_bf16(const MatmulArgs& a) { run<BF16>(a); }

}  // namespace sluice::cpu
