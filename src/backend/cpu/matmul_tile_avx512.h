// Register tiles of the int_block32 kernels for AVX-512 that read panels of 16 rows: where a tile's
// operands are, what it fetches ahead and stores, and how a call is cut into tiles. Each of
// those files has its own copy, compiled as it is.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "backend/cpu/matmul_kernels.h"
#include "backend/cpu/matmul_panels_avx512.h"

namespace sluice::cpu {
namespace {

// What one tile of a kernel computes.
struct Avx512Tile {
  const uint8_t* w;  // first group's panel
  const int8_t* q;   // first row's activations
  const float* scale;
  const int32_t* sum;
  float* out;         // first row, first group's first column
  const float* bias;  // first group's, or null
  int64_t cols;
  int64_t out_stride;
  int64_t rows_left;    // rows of W from the first group's on
  const uint8_t* next;  // memory that the next tiles read: num_next lines of it for each block
  int num_next;
};

[[gnu::always_inline]] inline __m512i broadcast4(const int8_t* x) {
  int32_t v;
  std::memcpy(&v, x, 4);
  return _mm512_set1_epi32(v);
}

// Weights of the next groups come from memory while this tile computes: without it the two take
// turns, since a tile of several rows outlasts what the processor looks ahead.
[[gnu::always_inline]] inline void prefetch(const Avx512Tile& t, int64_t b) {
  const uint8_t* p = t.next + b * t.num_next * 64;
  for (int i = 0; i < t.num_next; ++i) _mm_prefetch(p + i * 64, _MM_HINT_T1);
}

template <int G, int MT>
[[gnu::always_inline]] inline void store(const Avx512Tile& t, const __m512 (&acc)[G][MT]) {
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    const int64_t left = t.rows_left - g * kPanelRows;
    const auto mask = static_cast<__mmask16>(left >= kPanelRows ? 0xffff : (1u << left) - 1);
    const __m512 bias =
        t.bias ? _mm512_maskz_loadu_ps(mask, t.bias + g * kPanelRows) : _mm512_setzero_ps();
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      _mm512_mask_storeu_ps(t.out + m * t.out_stride + g * kPanelRows, mask,
                            _mm512_add_ps(acc[g][m], bias));
    }
  }
}

// Runs `pick(groups, m)` over all of a call: `wide` groups at a time (4, 2 or 1) while there are as
// many, and rows of x in tiles of nearly equal height.
template <int kMaxTile, typename Pick>
[[gnu::always_inline]] inline void run_tiles(const MatmulArgs& a,
                                             size_t panel,
                                             int wide,
                                             Pick pick) {
  const int64_t num32 = a.cols / 32;
  const int64_t tiles = (a.m + kMaxTile - 1) / kMaxTile;
  for (int64_t g = a.group_begin; g < a.group_end;) {
    const int64_t left = a.group_end - g;
    const int groups = left >= wide ? wide : left >= 2 ? 2 : 1;
    const uint8_t* w = static_cast<const uint8_t*>(a.w) + static_cast<size_t>(g) * panel;
    // Every tile fetches its share of the next groups.
    const int64_t next_groups = left - groups < wide ? left - groups : wide;
    const int64_t next_lines = next_groups * static_cast<int64_t>(panel) / 64;
    const int64_t lines = (next_lines + tiles * num32 - 1) / (tiles * num32);
    for (int64_t i = 0, m0 = 0; i < tiles; ++i) {
      const int64_t m = a.m / tiles + (i < a.m % tiles ? 1 : 0);
      const Avx512Tile t{w,
                         a.q + m0 * a.cols,
                         a.scale + m0 * num32,
                         a.sum + m0 * num32,
                         a.out + m0 * a.out_stride + g * kPanelRows,
                         a.bias ? a.bias + g * kPanelRows : nullptr,
                         a.cols,
                         a.out_stride,
                         a.rows - g * kPanelRows,
                         w + static_cast<size_t>(groups) * panel + i * num32 * lines * 64,
                         static_cast<int>(lines)};
      pick(groups, m)(t);
      m0 += m;
    }
    g += groups;
  }
}

}  // namespace
}  // namespace sluice::cpu
