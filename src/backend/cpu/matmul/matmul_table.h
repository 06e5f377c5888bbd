// The table of CPU matmul kernels: out[M, N] f32 = x[M, K] · W[N, K]ᵀ + bias. One row per weight
// format and ISA, ordered by preference; a weight's row is chosen once, when it is packed.
//
// Arithmetic. Within one `arith` every row of the table gives the same bits, for every M, tile
// shape and thread split, so rows may be swapped freely:
//   int_block32  activations int8 per 32 (QuantView). One f32 chain per output over ascending
//                blocks of 32: acc = fma(d_w * d_x, float(dot), acc) with an exact int32 dot.
//                q4_0: dot of (q - 8). q5_0: of (q - 16). iq4_nl, mxfp4: of levels.
//                q4_1, q5_1: dot of q, then acc = fma(m_w, d_x * float(sum), acc).
//                int4: likewise with m_w = d_w * m, an exact product.
//                q3_k: dot = scale[0] * dot16[0] + scale[1] * dot16[1], exact (below 2^24).
//                q2_k: such a dot, and such a sum of minimums times sums of sixteen activations:
//                acc = fma(d_x, fma(-dmin, float(sum), d * float(dot)), acc).
//   int_super    activations int8 per 256 (SuperQuantView). One f32 chain per output over ascending
//                super-blocks: acc = fma(d_x, d * float(dot), acc) with an exact int32 dot of
//                scale * q over 256 columns, scales integers of 32 or 16 of them.
//                q4_k, q5_k: acc = fma(d_x, fma(-dmin, float(mins), d * float(dot)), acc) with an
//                exact int32 sum of the integer minimums times the sums of their activations.
//                q6_k: dot of scale * (q - 32).
//   int_row      activations int8 per row (RowQuantView), weights int8 per row. An exact int32 dot
//                over the whole of K, then acc = float(dot) * (d_x * d_w), both products rounded.
//   f32_lanes16  activations f32. Sixteen f32 chains, lane i over k = i, i + 16, ...; then lanes
//                i + 8, i + 4, i + 2, i + 1 are folded in that order.
//                u8: of the weights fma(q, d_w, m_w).
//   bf16_tiles   activations f32, rounded to bf16. For every 32 columns, completed by zeros, what
//                TDPBF16PS adds to an f32 accumulator: two chains over even and over odd columns,
//                then their sum. Subnormals count as zero.
//   bf16_quads   activations f32, rounded to bf16. One f32 chain over ascending pairs of
//                columns, as BFMMLA has it: acc = odd(acc + odd(w0 x0 + w1 x1)), where odd()
//                truncates and sets the last bit of what was not exact. Subnormals count as zero.
// Finally out = acc + bias.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cpu/matmul/weight_quant.h"
#include "tensor/tensor.h"

namespace sluice {

struct TensorInfo;

enum class Arith : uint8_t { int_block32, int_super, int_row, f32_lanes16, bf16_tiles, bf16_quads };

// One call computes groups [group_begin, group_end) of `w` for all `m` rows of x.
// Activations' int8 must lie in [-127, 127], as quantize_row leaves them.
struct MatmulArgs {
  const void* w = nullptr;     // as packed by the same MatmulRow
  int64_t rows = 0, cols = 0;  // N, K of the whole w
  int64_t group_begin = 0, group_end = 0;
  int64_t m = 0;
  const float* x = nullptr;  // [m, cols], rows x_stride apart; the float ariths
  int64_t x_stride = 0;
  const int8_t* q = nullptr;       // [m, cols]; the integer ariths
  const float* scale = nullptr;    // [m, cols / 32], [m, cols / 256] for int_super, [m] for int_row
  const int32_t* sum = nullptr;    // like scale; not for int_super
  const int16_t* sum16 = nullptr;  // [m, cols / 16]; int_super
  const int8_t* tiles = nullptr;   // q, or x as bf16, once more in tiles (XTiles), or null: the
                                   // integer ariths on AMX, bf16_tiles
  int64_t all_rows = 0;            // of x in all calls of the product
  float* out = nullptr;            // [m, rows], rows out_stride apart
  int64_t out_stride = 0;
  const float* bias = nullptr;  // [rows] or null
};

// Many rows of activations in the tiles that AMX loads: 16 rows by 64 bytes in one piece, for int8
// [row / 16][column / 64][row % 16][64], columns completed by zeros; bf16 the same of 32 columns.
// Rows past the last are anything.
inline constexpr int64_t kXTileRows = 16, kXTileCols = 64;
[[gnu::always_inline]] constexpr int64_t x_tile_bytes(int64_t row_bytes) {  // of 16 rows
  return (row_bytes + kXTileCols - 1) / kXTileCols * kXTileCols * kXTileRows;
}

// int_super: [row / 16][column / 256] of 16 rows by 256 columns with their sums and scales, as
// lay_out_tile_amx_super has them.
inline constexpr int64_t kXSuperBytes = 16 * (256 + 16 * 4 + 4);

// int_block32: [row / 16][column / 32] of 16 rows by 32 columns with their scales, and scales times
// sums, as lay_out_tile_amx_blocks has them; columns completed by zeros to kXBlockStep blocks.
inline constexpr int64_t kXBlockBytes = 16 * (32 + 4 + 4), kXBlockStep = 4;
[[gnu::always_inline]] constexpr int64_t x_block_tile_bytes(int64_t cols) {
  return (cols / 32 + kXBlockStep - 1) / kXBlockStep * kXBlockStep * kXBlockBytes;
}

// One call packs groups [group_begin, group_end). Disjoint ranges may run in parallel.
struct PackArgs {
  const void* src = nullptr;   // the rows, as MatmulRow::fmt has them
  int64_t rows = 0, cols = 0;  // of the whole matrix
  void* dst = nullptr;         // the whole of it, packed_bytes long and 64-byte aligned
  int64_t group_begin = 0, group_end = 0;
};

// Per-core cost model and preferred tile sizes of a kernel, for cutting a product into pieces.
struct Pace {
  double ops_per_ns;   // with all operands in the core's caches
  int64_t rows;        // of x in one call, at most: what the kernel lays out for itself, and caches
  int64_t at_once;     // groups that it computes together, or that share what a call lays out
  int64_t step = 1;    // rows of x in a call are a multiple of it
  int64_t least = 24;  // rows of x in one call, where there are more
};
inline constexpr int64_t kAnyRows = int64_t{1} << 40;

// In which tiles a kernel takes many rows of x (MatmulArgs::tiles), if in any.
enum class XTiles : uint8_t { none, int8, bf16, super, blocks };
inline constexpr int64_t kTiledRows = 512;  // of x in one call, where they are in tiles

struct MatmulRow {
  const char* name;
  Format fmt;  // of the rows that pack reads: the tensor's own, or what its rows are recoded to
  Arith arith;
  uint64_t need;      // CpuFeature bits
  int group_rows;     // rows of W in a group, the unit of splitting; the last group may be partial
  int cols_multiple;  // K must be a multiple of it
  bool in_place;      // runs on the source's own rows: packed_bytes and pack are null
  uint8_t act_needs;  // ActNeeds
  size_t (*packed_bytes)(int64_t rows, int64_t cols);
  void (*pack)(const PackArgs& args);
  void (*run)(const MatmulArgs& args);
  // Row `row` of the weight as f32: exactly the values the source format decodes to, or those that
  // quantising left.
  void (*decode_row)(const void* w, int64_t rows, int64_t cols, int64_t row, float* out);
  Pace (*pace)(int64_t m, bool tiled);    // for m rows of x, laid out in tiles or not
  WeightQuant makes = WeightQuant::none;  // w8a8, u8: pack quantises rows of f32
  XTiles x_tiles = XTiles::none;
};

inline int64_t num_groups(const MatmulRow& row, int64_t rows) {
  return (rows + row.group_rows - 1) / row.group_rows;
}

// All rows this binary has, whatever the CPU.
std::span<const MatmulRow> matmul_rows();

// A row that runs any format on any CPU: it decodes weights to f32 as it reads them. Slow; what
// runs a format that the table has no row for.
const MatmulRow& decoding_row(Format format);

// The first row of `table` for `format` that this CPU and shape allow, else decoding_row(). The
// table's scalar rows fit any CPU and any shape that the format itself allows.
const MatmulRow& choose_matmul(Format format,
                               int64_t rows,
                               int64_t cols,
                               std::span<const MatmulRow> table = matmul_rows());
// The same for a tensor of that format that `quant` (LoadQuant::of) is made of.
const MatmulRow& choose_matmul(const TensorInfo& tensor,
                               WeightQuant quant,
                               std::span<const MatmulRow> table = matmul_rows());

}  // namespace sluice
