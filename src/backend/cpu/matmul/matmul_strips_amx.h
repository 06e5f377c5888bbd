// The strips of the int_block32 kernels for AMX. A tile product is 16 rows of x by 16 rows of W
// over one block of 32 columns, exact in int32; it passes through a buffer in the first-level cache
// into f32 accumulators, which stay in registers over a range of K. Both operands are laid out for
// that first: x once per call, the codes of a group as signed bytes once per group and range. How a
// panel is read is the Source's. Each file that includes this has its own copy, compiled as it is.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/matmul/fetch_output.h"
#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_panels_avx512.h"
#include "backend/cpu/matmul/tiles_amx.h"

namespace sluice::cpu {
namespace {

constexpr int R = kPanelRows;
constexpr int kTileRows = 16;       // of x, at most
constexpr int64_t kMaxTiles = 8;    // of x at once: 128 rows
constexpr int64_t kMaxBlocks = 32;  // of K at once
constexpr int64_t kStep = 4;        // products of one turn of the loop

// Block b of 16 rows of x. side: d_x; d_x * sum, or q2_k's sums of either half.
template <Format F>
struct alignas(64) XBlock {
  int8_t q[kTileRows][32];
  float side[F == Format::q2_k ? 3 : kHasMin<F> ? 2 : 1][kTileRows];
};

// Block b of a group. side: d_w; m_w, and q2_k's two minimums in its units.
template <Format F>
struct alignas(64) WBlock {
  int8_t q[8][R * 4];  // [unit][row][column of the unit]
  float side[F == Format::q2_k ? 4 : kHasMin<F> ? 2 : 1][R];
};

template <Format F>
struct Scratch {
  XBlock<F> x[kMaxTiles * kMaxBlocks + kStep];  // [tile][block]; products run a little ahead
  WBlock<F> w[kMaxBlocks];
  alignas(64) int32_t dot[kTileRows][R];
};

// Tiles of x against one group over a range of K.
template <Format F>
struct Strip {
  const XBlock<F>* x;
  const WBlock<F>* w;
  int32_t (*dot)[R];
  int64_t blocks;  // a multiple of kStep
  int64_t rows, tile_rows;
  float* out;
  int64_t out_stride;
  __mmask16 mask;       // of the group's rows
  const float* bias;    // null: none
  bool first, last;     // range of K
  const uint8_t* next;  // memory that the next group reads: num_next lines in each turn
  int64_t num_next;
};

inline void transpose(__m512 (&r)[16]) {
  __m512 t[16];
  SLUICE_UNROLL
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  SLUICE_UNROLL
  for (int i = 0; i < 16; i += 4) {  // r[i + j]: lane L has column 4 L + j of rows i to i + 3
    SLUICE_UNROLL
    for (int j = 0; j < 2; ++j) {
      const __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + j + 2]);
      r[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      r[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  }
  SLUICE_UNROLL
  for (int j = 0; j < 4; ++j) {
    const __m512 even0 = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x88);
    const __m512 even1 = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88);
    const __m512 odd0 = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xdd);
    const __m512 odd1 = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xdd);
    t[j] = _mm512_shuffle_f32x4(even0, even1, 0x88);
    t[4 + j] = _mm512_shuffle_f32x4(odd0, odd1, 0x88);
    t[8 + j] = _mm512_shuffle_f32x4(even0, even1, 0xdd);
    t[12 + j] = _mm512_shuffle_f32x4(odd0, odd1, 0xdd);
  }
  SLUICE_UNROLL
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

// Blocks [b0, b0 + blocks) of rows [m0, m0 + rows) into one tile's blocks, zeros up to `padded`
// blocks and 16 rows.
template <Format F>
void lay_out_x(const MatmulArgs& a,
               int64_t m0,
               int64_t rows,
               int64_t b0,
               int64_t blocks,
               int64_t padded,
               XBlock<F>* x) {
  const int64_t num32 = a.cols / 32;
  for (int r = 0; r < kTileRows; ++r) {
    const int8_t* q = a.q + (m0 + r) * a.cols + b0 * 32;
    for (int64_t b = 0; b < padded; ++b) {
      const __m256i v = r < rows && b < blocks
                            ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + b * 32))
                            : _mm256_setzero_si256();
      _mm256_store_si256(reinterpret_cast<__m256i*>(x[b].q[r]), v);
      if constexpr (F == Format::q2_k) {
        const __m256i fours = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), v);
        const __m256i eights = _mm256_hadd_epi32(fours, fours);
        const __m256i sums = _mm256_hadd_epi32(eights, eights);
        x[b].side[1][r] = static_cast<float>(_mm256_extract_epi32(sums, 0));
        x[b].side[2][r] = static_cast<float>(_mm256_extract_epi32(sums, 4));
      }
    }
  }
  for (int64_t b = 0; b < padded; b += 16) {
    const int64_t left = blocks - b;
    const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffff : left > 0 ? (1u << left) - 1 : 0);
    __m512 scale[16], sum[16];
    for (int r = 0; r < kTileRows; ++r) {
      const int64_t at = (m0 + r) * num32 + b0 + b;
      const __mmask16 present = r < rows ? mask : __mmask16{0};
      scale[r] = _mm512_maskz_loadu_ps(present, a.scale + at);
      if constexpr (kHasMin<F>) {
        sum[r] = _mm512_mul_ps(scale[r],
                               _mm512_cvtepi32_ps(_mm512_maskz_loadu_epi32(present, a.sum + at)));
      }
    }
    transpose(scale);
    if constexpr (kHasMin<F>) transpose(sum);
    for (int64_t i = 0; i < 16 && b + i < padded; ++i) {
      _mm512_store_ps(x[b + i].side[0], scale[i]);
      if constexpr (kHasMin<F>) _mm512_store_ps(x[b + i].side[1], sum[i]);
    }
  }
}

[[gnu::always_inline]] inline void put64(int8_t* p, __m512i v) {
  _mm512_store_si512(reinterpret_cast<void*>(p), v);
}

// Exact for |dot| < 2^22. Beside tile instructions only one port converts and multiplies, while
// these two additions find another.
[[gnu::always_inline]] inline __m512 as_float(const int32_t* dot) {
  const __m512i bits = _mm512_add_epi32(_mm512_load_si512(dot), _mm512_set1_epi32(0x4b400000));
  return _mm512_sub_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(12582912.0f));
}

// acc += one block of H rows of x. X: XBlock<F>, or one with more sides.
template <Format F, int H, typename X>
[[gnu::always_inline]] inline void add_block(const X& x,
                                             const WBlock<F>& w,
                                             const int32_t (*dot)[R],
                                             __m512 (&acc)[H]) {
  const __m512 dw = _mm512_load_ps(w.side[0]);
  SLUICE_UNROLL
  for (int m = 0; m < H; ++m) {
    __m512 sum = as_float(dot[m]);
    const __m512 dx = _mm512_set1_ps(x.side[0][m]);
    if constexpr (F == Format::q2_k) {  // the minimums' sum is exact: below 2^24
      const __m512 first = _mm512_mul_ps(_mm512_load_ps(w.side[2]), _mm512_set1_ps(x.side[1][m]));
      const __m512 mins =
          _mm512_fmadd_ps(_mm512_load_ps(w.side[3]), _mm512_set1_ps(x.side[2][m]), first);
      sum = _mm512_fnmadd_ps(_mm512_load_ps(w.side[1]), mins, _mm512_mul_ps(dw, sum));
      acc[m] = _mm512_fmadd_ps(dx, sum, acc[m]);
    } else {
      acc[m] = _mm512_fmadd_ps(_mm512_mul_ps(dw, dx), sum, acc[m]);
    }
  }
  if constexpr (kHasMin<F>) {
    const __m512 mw = _mm512_load_ps(w.side[1]);
    SLUICE_UNROLL
    for (int m = 0; m < H; ++m) {
      const __m512 sum = _mm512_set1_ps(x.side[1][m]);
      acc[m] = _mm512_fmadd_ps(mw, sum, acc[m]);
    }
  }
}

template <int H>
[[gnu::always_inline]] inline void put_rows(
    float* out, int64_t stride, int64_t rows, __mmask16 mask, const __m512 (&acc)[H]) {
  SLUICE_UNROLL
  for (int m = 0; m < H; ++m) {
    if (m < rows) _mm512_mask_storeu_ps(out + m * stride, mask, acc[m]);
  }
}

// Starts the product of a block into register C. Registers must be literals.
#define SLUICE_START(C, A, B, x_block, w_block)        \
  _tile_loadd(A, x[x_block].q[0], sizeof x->q[0]);     \
  _tile_loadd(B, s.w[w_block].q[0], sizeof s.w->q[0]); \
  _tile_zero(C);                                       \
  _tile_dpbssd(C, A, B)

// Takes block b's product from register C and adds it.
#define SLUICE_FINISH(C, b)                \
  _tile_stored(C, s.dot, sizeof s.dot[0]); \
  add_block<F, H>(x[b], s.w[b], s.dot, acc)

// H rows of x to a tile. Products start two ahead of where they are taken: their latency, and that
// of the store after them, would show.
template <Format F, int H>
void strip(const Strip<F>& s) {
  const XBlock<F>* x = s.x;
  const uint8_t* next = s.next;
  SLUICE_START(0, 4, 6, 0, 0);
  SLUICE_START(1, 5, 7, 1, 1);
  for (int64_t m0 = 0; m0 < s.rows; m0 += s.tile_rows) {
    const int64_t rows = s.rows - m0 < s.tile_rows ? s.rows - m0 : s.tile_rows;
    float* out = s.out + m0 * s.out_stride;
    for (int64_t m = 0; m < rows; ++m) fetch_output(out + m * s.out_stride);
    __m512 acc[H];
    SLUICE_UNROLL
    for (int m = 0; m < H; ++m) acc[m] = _mm512_setzero_ps();
    if (!s.first) {
      SLUICE_UNROLL
      for (int m = 0; m < H; ++m) {
        if (m < rows) acc[m] = _mm512_maskz_loadu_ps(s.mask, out + m * s.out_stride);
      }
    }
    for (int64_t b = 0; b < s.blocks; b += kStep) {
      for (int64_t i = 0; i < s.num_next; ++i, next += 64) _mm_prefetch(next, _MM_HINT_T1);
      const int64_t after =
          b + kStep < s.blocks ? b + kStep : 0;  // of W; x goes on to its next tile
      SLUICE_START(2, 4, 6, b + 2, b + 2);
      SLUICE_FINISH(0, b);
      SLUICE_START(3, 5, 7, b + 3, b + 3);
      SLUICE_FINISH(1, b + 1);
      SLUICE_START(0, 4, 6, b + 4, after);
      SLUICE_FINISH(2, b + 2);
      SLUICE_START(1, 5, 7, b + 5, after + 1);
      SLUICE_FINISH(3, b + 3);
    }
    x += s.blocks;
    if (s.last) {
      const __m512 bias = s.bias ? _mm512_maskz_loadu_ps(s.mask, s.bias) : _mm512_setzero_ps();
      SLUICE_UNROLL
      for (int m = 0; m < H; ++m) acc[m] = _mm512_add_ps(acc[m], bias);
    }
    put_rows<H>(out, s.out_stride, rows, s.mask, acc);
  }
}
#undef SLUICE_START
#undef SLUICE_FINISH

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// From kMany rows on, tiles are 11 rows or higher: fewer kernels to compile.
constexpr int64_t kMany = 24;

template <typename Source>
auto pick(int64_t tile_rows) {
  constexpr Format F = Source::kFormat;
  using Fn = void (*)(const Strip<F>&);
  if constexpr (amx_rows_from(F) >= kMany) {
    return tile_rows <= 12 ? Fn{strip<F, 12>} : tile_rows <= 14 ? Fn{strip<F, 14>} : strip<F, 16>;
  } else {
    static constexpr Fn kStrips[] = {strip<F, 4>,  strip<F, 6>,  strip<F, 8>, strip<F, 10>,
                                     strip<F, 12>, strip<F, 14>, strip<F, 16>};
    return kStrips[tile_rows <= 4 ? 0 : (tile_rows - 3) / 2];
  }
}

// Rows [m0, m0 + rows) of x, at most kMaxTiles * kTileRows.
template <typename Source>
void run_rows(const MatmulArgs& a, int64_t m0, int64_t rows, Scratch<Source::kFormat>& scratch) {
  constexpr Format F = Source::kFormat;
  const auto plan = Source::plan(a.cols);
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  const int64_t tile_rows = (rows + tiles - 1) / tiles;
  for (int64_t b0 = 0; b0 < plan.num_blocks; b0 += kMaxBlocks) {
    const int64_t blocks = plan.num_blocks - b0 < kMaxBlocks ? plan.num_blocks - b0 : kMaxBlocks;
    const int64_t padded = round_up(blocks, kStep);
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t left = rows - t * tile_rows;
      lay_out_x<F>(a, m0 + t * tile_rows, left < tile_rows ? left : tile_rows, b0, blocks, padded,
                   scratch.x + t * padded);
    }
    Strip<F> s{};
    s.x = scratch.x;
    s.w = scratch.w;
    s.dot = scratch.dot;
    s.blocks = padded;
    s.rows = rows;
    s.tile_rows = tile_rows;
    s.out_stride = a.out_stride;
    s.first = b0 == 0;
    s.last = b0 + blocks == plan.num_blocks;
    const int64_t turns = tiles * padded / kStep;
    const int64_t lines = blocks * Source::kCodeBytes / 64;
    for (int64_t g = a.group_begin; g < a.group_end; ++g) {
      const uint8_t* panel = static_cast<const uint8_t*>(a.w) + static_cast<size_t>(g) * plan.bytes;
      for (int64_t i = 0; i < blocks; ++i) Source::lay_out(panel, plan, b0 + i, scratch.w[i]);
      for (int64_t i = blocks; i < padded; ++i) {
        for (auto& side : scratch.w[i].side) _mm512_store_ps(side, _mm512_setzero_ps());
      }
      s.out = a.out + m0 * a.out_stride + g * R;
      s.bias = a.bias ? a.bias + g * R : nullptr;
      const int64_t left = a.rows - g * R;
      s.mask = static_cast<__mmask16>(left >= R ? 0xffff : (1u << left) - 1);
      s.next = panel + plan.bytes + b0 * Source::kCodeBytes;
      s.num_next = g + 1 < a.group_end ? (lines + turns - 1) / turns : 0;
      hold_loads();  // tile loads read what was laid out
      pick<Source>(tile_rows)(s);
    }
  }
}

// All rows of x, or few_rows where they are few. Source::kFormat, ::kCodeBytes of a block of a
// group;
// ::plan(cols) with num_blocks and bytes; ::lay_out(panel, plan, b, w) makes block b.
template <typename Source>
void run_strips(const MatmulArgs& a, void (*few_rows)(const MatmulArgs&)) {
  constexpr Format F = Source::kFormat;
  if (a.m < amx_rows_from(F)) return few_rows(a);
  configure_tiles(kTileRows, 32, 8);
  Scratch<F> scratch;
  const int64_t chunks = (a.m + kMaxTiles * kTileRows - 1) / (kMaxTiles * kTileRows);
  for (int64_t i = 0; i < chunks; ++i) {
    const int64_t begin = a.m * i / chunks, end = a.m * (i + 1) / chunks;
    run_rows<Source>(a, begin, end - begin, scratch);
  }
  _tile_release();
}

}  // namespace
}  // namespace sluice::cpu
