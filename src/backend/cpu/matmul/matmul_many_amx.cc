// Many rows of x, in tiles (MatmulArgs::tiles), for the int_block32 kernels for AMX. As in
// matmul_strips_amx.h, but x is laid out once for all calls of a product and stays in the second
// cache, so that a group of W is unpacked for up to 512 rows.
#include <immintrin.h>

#include "backend/cpu/matmul/fetch_output.h"
#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_panels_amx.h"
#include "backend/cpu/matmul/matmul_strips_amx.h"
#include "backend/cpu/matmul/tiles_amx.h"

namespace sluice::cpu {
namespace {

constexpr int64_t kTiledBlocks = 48;  // of K at once

using XTile = XBlock<Format::q4_1>;  // a block, for formats without minimums too
static_assert(sizeof(XTile) == kXBlockBytes && kStep == kXBlockStep);

template <Format F>
struct TiledScratch {
  WBlock<F> w[kTiledBlocks];
  alignas(64) int32_t dots[kStep][kTileRows][R];
};

// Tiles of x against one group over a range of K.
template <Format F>
struct TiledStrip {
  const XTile* x;
  int64_t x_stride;  // from one tile of x to the next
  const WBlock<F>* w;
  int32_t (*dots)[kTileRows][R];  // kStep blocks
  int64_t blocks;                 // a multiple of kStep
  int64_t rows;
  float* out;
  int64_t out_stride;
  __mmask16 mask;       // of the group's rows
  const float* bias;    // null: none
  bool first, last;     // range of K
  bool past_cache;      // the output's lines do not go through the caches
  const uint8_t* next;  // memory that the next group reads: num_next lines in each turn
  int64_t num_next;
};

template <Format F>
[[gnu::always_inline]] inline void put_tile(const TiledStrip<F>& s,
                                            float* out,
                                            int64_t rows,
                                            const __m512 (&acc)[kTileRows]) {
  SLUICE_UNROLL
  for (int m = 0; m < kTileRows; ++m) {
    if (m >= rows) continue;
    if (s.past_cache) {
      _mm512_stream_ps(out + m * s.out_stride, acc[m]);
    } else {
      _mm512_mask_storeu_ps(out + m * s.out_stride, s.mask, acc[m]);
    }
  }
}

// Starts the product of blocks `x` and `w` into register C. Registers must be literals.
#define SLUICE_START(C, A, B, x, w)         \
  _tile_loadd(A, (x).q[0], sizeof(x).q[0]); \
  _tile_loadd(B, (w).q[0], sizeof(w).q[0]); \
  _tile_zero(C);                            \
  _tile_dpbssd(C, A, B)

#define SLUICE_STORE(C) _tile_stored(C, s.dots[C], sizeof s.dots[C][0])

// Four blocks are in work at a time: one is added up, the next is stored, two are multiplied. To
// load results right behind their store takes a tenth longer.
template <Format F>
void tiled_strip(const TiledStrip<F>& s) {
  constexpr int H = kTileRows;
  const XTile* x = s.x;
  const uint8_t* next = s.next;
  SLUICE_START(0, 4, 6, x[0], s.w[0]);
  SLUICE_START(1, 5, 7, x[1], s.w[1]);
  SLUICE_START(2, 4, 6, x[2], s.w[2]);
  SLUICE_STORE(0);
  for (int64_t m0 = 0; m0 < s.rows; m0 += H) {
    const int64_t rows = s.rows - m0 < H ? s.rows - m0 : H;
    const XTile* next_x = m0 + H < s.rows ? x + s.x_stride : s.x;
    float* out = s.out + m0 * s.out_stride;
    for (int64_t m = 0; m < rows && !s.past_cache; ++m) fetch_output(out + m * s.out_stride);
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
      const bool more = b + kStep < s.blocks;  // of this tile; or else on to the next
      const XTile* x4 = more ? x + b + kStep : next_x;
      const WBlock<F>*w0 = s.w + b, *w4 = more ? w0 + kStep : s.w;
      SLUICE_START(3, 5, 7, x[b + 3], w0[3]);
      SLUICE_STORE(1);
      add_block<F, H>(x[b], w0[0], s.dots[0], acc);
      SLUICE_START(0, 4, 6, x4[0], w4[0]);
      SLUICE_STORE(2);
      add_block<F, H>(x[b + 1], w0[1], s.dots[1], acc);
      SLUICE_START(1, 5, 7, x4[1], w4[1]);
      SLUICE_STORE(3);
      add_block<F, H>(x[b + 2], w0[2], s.dots[2], acc);
      SLUICE_START(2, 4, 6, x4[2], w4[2]);
      SLUICE_STORE(0);
      add_block<F, H>(x[b + 3], w0[3], s.dots[3], acc);
    }
    x = next_x;
    if (s.last) {
      const __m512 bias = s.bias ? _mm512_maskz_loadu_ps(s.mask, s.bias) : _mm512_setzero_ps();
      SLUICE_UNROLL
      for (int m = 0; m < H; ++m) acc[m] = _mm512_add_ps(acc[m], bias);
    }
    put_tile(s, out, rows, acc);
  }
}
#undef SLUICE_START
#undef SLUICE_STORE

// Blocks [b0, b0 + blocks) of K: s.x, s.out and s.rows are of the rows, s.first and s.last of them.
template <typename Source>
void run_range(const MatmulArgs& a,
               const PanelPlan& plan,
               int64_t b0,
               int64_t blocks,
               TiledStrip<Source::kFormat> s,
               TiledScratch<Source::kFormat>& scratch) {
  float* out = s.out;
  const bool past_cache = s.past_cache;
  s.blocks = round_up(blocks, kStep);
  const int64_t turns = (s.rows + kTileRows - 1) / kTileRows * s.blocks / kStep;
  const int64_t lines = blocks * Source::kCodeBytes / 64;
  for (int64_t g = a.group_begin; g < a.group_end; ++g) {
    const uint8_t* panel = static_cast<const uint8_t*>(a.w) + static_cast<size_t>(g) * plan.bytes;
    for (int64_t i = 0; i < blocks; ++i) Source::lay_out(panel, plan, b0 + i, scratch.w[i]);
    for (int64_t i = blocks; i < s.blocks; ++i) {
      for (auto& side : scratch.w[i].side) _mm512_store_ps(side, _mm512_setzero_ps());
    }
    s.out = out + g * R;
    s.bias = a.bias ? a.bias + g * R : nullptr;
    const int64_t left = a.rows - g * R;
    s.mask = static_cast<__mmask16>(left >= R ? 0xffff : (1u << left) - 1);
    s.past_cache = past_cache && left >= R;
    s.next = panel + plan.bytes + b0 * Source::kCodeBytes;
    s.num_next = g + 1 < a.group_end ? (lines + turns - 1) / turns : 0;
    hold_loads();  // tile loads read what was laid out
    tiled_strip(s);
  }
}

template <Format F>
void run(const MatmulArgs& a) {
  using Source = Panels<F>;
  const PanelPlan plan = Source::plan(a.cols);
  const int64_t ranges = (plan.num_blocks + kTiledBlocks - 1) / kTiledBlocks;
  const int64_t range = round_up((plan.num_blocks + ranges - 1) / ranges, kStep);
  configure_tiles(kTileRows, 32, 8);
  TiledScratch<F> scratch;
  TiledStrip<F> s{};
  s.x_stride = x_block_tile_bytes(a.cols) / kXBlockBytes;
  s.w = scratch.w;
  s.dots = scratch.dots;
  s.out_stride = a.out_stride;
  s.past_cache = plan.num_blocks <= range && writes_past_cache(a);
  for (int64_t m = 0; m < a.m; m += kTiledRows) {
    s.rows = a.m - m < kTiledRows ? a.m - m : kTiledRows;
    s.out = a.out + m * a.out_stride;
    for (int64_t b = 0; b < plan.num_blocks; b += range) {
      const int64_t left = plan.num_blocks - b;
      s.x = reinterpret_cast<const XTile*>(a.tiles) + m / kTileRows * s.x_stride + b;
      s.first = b == 0;
      s.last = left <= range;
      run_range<Source>(a, plan, b, left < range ? left : range, s, scratch);
    }
  }
  if (s.past_cache) _mm_sfence();  // done before anybody is told that this call is
  _tile_release();
}

}  // namespace

void lay_out_tile_amx_blocks(const int8_t* q,
                             const float* scale,
                             const int32_t* sum,
                             int64_t cols,
                             int64_t rows,
                             void* tile) {
  MatmulArgs a;
  a.q = q;
  a.scale = scale;
  a.sum = sum;
  a.cols = cols;
  lay_out_x<Format::q4_1>(a, 0, rows, 0, cols / 32, round_up(cols / 32, kStep),
                          static_cast<XTile*>(tile));
}

void matmul_amx_many_q8_0(const MatmulArgs& a) { run<Format::q8_0>(a); }
void matmul_amx_many_q4_0(const MatmulArgs& a) { run<Format::q4_0>(a); }
void matmul_amx_many_q4_1(const MatmulArgs& a) { run<Format::q4_1>(a); }
void matmul_amx_many_q5_0(const MatmulArgs& a) { run<Format::q5_0>(a); }
void matmul_amx_many_q5_1(const MatmulArgs& a) { run<Format::q5_1>(a); }
void matmul_amx_many_iq4_nl(const MatmulArgs& a) { run<Format::iq4_nl>(a); }
void matmul_amx_many_mxfp4(const MatmulArgs& a) { run<Format::mxfp4>(a); }
void matmul_amx_many_int4(const MatmulArgs& a) { run<Format::int4>(a); }

}  // namespace sluice::cpu
