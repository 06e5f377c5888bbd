#include "backend/cpu/matmul/matmul_table.h"

#include <array>
#include <type_traits>
#include <utility>

#include "backend/backend.h"
#include "backend/cpu/features.h"
#include "backend/cpu/matmul/load_quant.h"
#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/pack.h"
#include "backend/cpu/matmul/pack_bf16.h"
#include "backend/cpu/matmul/pack_lines.h"
#include "backend/cpu/matmul/pack_low_bits.h"
#include "backend/cpu/matmul/pack_rows.h"
#include "base/check.h"
#include "tensor/formats/all.h"

namespace sluice {
namespace {

using namespace cpu;

using Run = void (*)(const MatmulArgs&);

template <Format F>
void decode_source_row(const void* w, int64_t, int64_t cols, int64_t row, float* out) {
  const size_t offset = row_bytes(F, cols) * static_cast<size_t>(row);
  format_info(F).decode(static_cast<const std::byte*>(w) + offset, out, cols);
}

// Groups that a vector kernel computes together.
constexpr int64_t few_groups(int64_t m) { return m <= 2 ? 4 : 2; }

template <Format F, uint64_t kNeed>
Pace int_block_pace(int64_t m, bool tiled) {
  if constexpr ((kNeed & kCpuI8mm) != 0) {
    if (smmla_unpacks_once(m)) return {250, 128, 32};
  }
  if constexpr ((kNeed & kCpuAmxInt8) != 0) {
    constexpr int64_t kFrom = amx_rows_from(F);
    if (tiled) return {900, kTiledRows, 8, 2 * kXTileRows};
    if (m >= kFrom) return {700, 128, 8, 1, kFrom > 24 ? kFrom : 24};
  }
  return {400, kAnyRows, few_groups(m)};
}

template <uint64_t kNeed>
Pace int_row_pace(int64_t m, bool tiled) {
  constexpr int64_t kAmxRows = 8;  // of x from which AMX is used
  if constexpr ((kNeed & kCpuI8mm) != 0) return {600, 128, m <= 16 ? 4 : 32};
  if (tiled) return {2000, kTiledRows, 8, 2 * kXTileRows};
  if ((kNeed & kCpuAmxInt8) != 0 && m >= kAmxRows) return {2000, 128, 8};
  return {400, kAnyRows, 4};
}

Pace float_pace(int64_t m, bool) { return {120, kAnyRows, m >= 32 ? 4 : few_groups(m)}; }

// Formats whose products are int_super.
constexpr bool by_supers(Format f) {
  return f == Format::q4_k || f == Format::q5_k || f == Format::q6_k;
}

template <Format F, uint64_t kNeed>
Pace super_pace(int64_t m, bool tiled) {
  if constexpr ((kNeed & kCpuI8mm) != 0) {
    if (smmla_unpacks_once(m)) return {400, 192, 32, 6};
  }
  if constexpr ((kNeed & kCpuAmxInt8) != 0) {
    if (tiled) return {1200, kTiledRows, 8, 2 * kXTileRows};
    if (m >= amx_rows_from(F)) return {1000, 128, 8, 1, 32};
  }
  return {400, kAnyRows, few_groups(m)};
}

// A row that reads panels of R rows by I columns.
template <typename Block, int R, int I, uint64_t kNeed, bool kOffset = false>
constexpr MatmulRow panels(const char* name, Run run) {
  constexpr Format F = Block::kFormat;
  constexpr bool kLowBits = F == Format::q2_k || F == Format::q3_k;
  using P = std::conditional_t<kLowBits, LowBitPacking<Block, R, I>, Packing<Block, R, I, kOffset>>;
  MatmulRow row{.name = name,
                .fmt = F,
                .arith = Arith::int_block32,
                .need = kNeed,
                .group_rows = R,
                .cols_multiple = P::Block::kElems,
                .in_place = false,
                .act_needs = kActQ8,
                .packed_bytes = P::packed_bytes,
                .pack = P::pack,
                .run = run,
                .decode_row = P::decode_row,
                .pace = int_block_pace<F, kNeed>};
  if ((kNeed & kCpuAmxInt8) != 0 && !kLowBits) row.x_tiles = XTiles::blocks;
  if constexpr (by_supers(F)) {
    row.arith = Arith::int_super;
    row.act_needs = kActSuper8;
    row.pace = super_pace<F, kNeed>;
    if ((kNeed & kCpuAmxInt8) != 0) row.x_tiles = XTiles::super;
  }
  return row;
}

// A row that reads the tensor's own bytes.
template <Format F>
constexpr MatmulRow source(const char* name, uint64_t need, Run run) {
  constexpr bool kFloat = F == Format::f32 || F == Format::f16 || F == Format::bf16;
  return {.name = name,
          .fmt = F,
          .arith = kFloat         ? Arith::f32_lanes16
                   : by_supers(F) ? Arith::int_super
                                  : Arith::int_block32,
          .need = need,
          .group_rows = 16,
          .cols_multiple = 1,
          .in_place = true,
          .act_needs = kFloat         ? kActF32
                       : by_supers(F) ? kActSuper8
                                      : kActQ8,
          .packed_bytes = nullptr,
          .pack = nullptr,
          .run = run,
          .decode_row = decode_source_row<F>,
          .pace = kFloat ? float_pace : int_block_pace<F, 0>};
}

// A row that reads panels of R rows by I columns of int8 with a scale per row.
template <int R, int I, uint64_t kNeed, bool kOffset = false>
constexpr MatmulRow w8_panels(const char* name, Run run) {
  using P = W8Packing<R, I, kOffset>;
  return {.name = name,
          .fmt = Format::f32,
          .arith = Arith::int_row,
          .need = kNeed,
          .group_rows = R,
          .cols_multiple = 32,
          .in_place = false,
          .act_needs = kActRow8,
          .packed_bytes = P::packed_bytes,
          .pack = P::pack,
          .run = run,
          .decode_row = P::decode_row,
          .pace = int_row_pace<kNeed>,
          .makes = WeightQuant::w8a8,
          .x_tiles = (kNeed & kCpuAmxInt8) != 0 ? XTiles::int8 : XTiles::none};
}

// A row that packs with P what it reads as 16-bit floats or, for u8, as f32.
template <typename P>
constexpr MatmulRow float_row(const char* name, Format format, uint64_t need, int rows, Run run) {
  return {.name = name,
          .fmt = format,
          .arith = Arith::f32_lanes16,
          .need = need,
          .group_rows = rows,
          .cols_multiple = 1,
          .in_place = false,
          .act_needs = kActF32,
          .packed_bytes = P::packed_bytes,
          .pack = P::pack,
          .run = run,
          .decode_row = P::decode_row,
          .pace = float_pace};
}

#if defined(__x86_64__)
constexpr uint64_t kVnni256Needs = kCpuAvx2 | kCpuAvxVnni;
constexpr uint64_t kVnniNeeds = kCpuAvx512 | kCpuAvx512Vnni;
constexpr uint64_t kAmxNeeds = kVnniNeeds | kCpuAvx512Bf16 | kCpuAmxInt8;
constexpr uint64_t kAmxSuperNeeds = kAmxNeeds | kCpuAmxBf16;

// A row that reads 16-bit floats in lines.
template <Format F>
constexpr MatmulRow lines(const char* name, uint64_t need, Run run) {
  using P = LinePacking<F>;
  return float_row<P>(name, F, need, P::kRows, run);
}

Pace bf16_tiles_pace(int64_t m, bool tiled) {
  if (tiled) return {1000, kTiledRows, 8, 2 * kXTileRows};
  return {1000, 128, m <= 16 ? 4 : 32};
}

// A row that reads panels of bf16 in pairs of columns.
constexpr MatmulRow bf16_pairs(const char* name, uint64_t need, Run run) {
  MatmulRow row = float_row<Bf16Packing<16, 2, kPairStep>>(name, Format::bf16, need, 16, run);
  row.arith = Arith::bf16_tiles;
  row.pace = bf16_tiles_pace;
  row.x_tiles = XTiles::bf16;
  return row;
}
#elif defined(__aarch64__)
constexpr uint64_t kI8mmNeeds = kCpuNeonDot | kCpuI8mm;

Pace bf16_quads_pace(int64_t m, bool) { return {250, 128, m <= 16 ? 4 : 32}; }

// A row that reads panels of bf16 in quads of columns.
constexpr MatmulRow bf16_quads(const char* name, uint64_t need, Run run) {
  MatmulRow row = float_row<Bf16Packing<8, 4, kQuad>>(name, Format::bf16, need, 8, run);
  row.arith = Arith::bf16_quads;
  row.pace = bf16_quads_pace;
  return row;
}
#endif

// A row that reads bytes with a scale and a minimum for each of the matrix' rows.
constexpr MatmulRow u8_rows(const char* name, uint64_t need, Run run) {
  MatmulRow row = float_row<U8Packing>(name, Format::f32, need, U8Packing::kRows, run);
  row.makes = WeightQuant::u8;
  return row;
}

// A row for any format, in the arithmetic of f32 weights.
template <Format F>
constexpr MatmulRow decoding_row_of() {
  MatmulRow row = source<F>("decode", 0, [](const MatmulArgs& a) { matmul_decoding(a, F); });
  row.arith = Arith::f32_lanes16;
  row.act_needs = kActF32;
  row.pace = float_pace;
  return row;
}

constexpr MatmulRow kRows[] = {
#if defined(__x86_64__)
    w8_panels<16, 4, kAmxNeeds, true>("amx-w8a8", matmul_amx_w8a8),
    w8_panels<16, 4, kVnniNeeds, true>("avx512vnni-w8a8", matmul_avx512_w8a8),
    panels<BlockQ8_0, 16, 4, kAmxNeeds, true>("amx-q8_0", matmul_amx_q8_0),
    panels<BlockQ4_0, 16, 4, kAmxNeeds>("amx-q4_0", matmul_amx_q4_0),
    panels<BlockQ4_1, 16, 4, kAmxNeeds>("amx-q4_1", matmul_amx_q4_1),
    panels<BlockQ6K, 16, 4, kAmxSuperNeeds>("amx-q6_k", matmul_amx_q6_k),
    panels<BlockQ5_0, 16, 4, kAmxNeeds>("amx-q5_0", matmul_amx_q5_0),
    panels<BlockQ5_1, 16, 4, kAmxNeeds>("amx-q5_1", matmul_amx_q5_1),
    panels<BlockQ2K, 16, 4, kAmxNeeds>("amx-q2_k", matmul_amx_q2_k),
    panels<BlockQ3K, 16, 4, kAmxNeeds>("amx-q3_k", matmul_amx_q3_k),
    panels<BlockQ4K, 16, 4, kAmxSuperNeeds>("amx-q4_k", matmul_amx_q4_k),
    panels<BlockQ5K, 16, 4, kAmxSuperNeeds>("amx-q5_k", matmul_amx_q5_k),
    panels<BlockIQ4NL, 16, 4, kAmxNeeds>("amx-iq4_nl", matmul_amx_iq4_nl),
    panels<BlockMXFP4, 16, 4, kAmxNeeds>("amx-mxfp4", matmul_amx_mxfp4),
    panels<BlockInt4, 16, 4, kAmxNeeds>("amx-int4", matmul_amx_int4),
    bf16_pairs("amx-bf16", kCpuAvx512 | kCpuAvx512Bf16 | kCpuAmxBf16, matmul_amx_bf16),
    panels<BlockQ8_0, 16, 4, kVnniNeeds, true>("avx512vnni-q8_0", matmul_avx512_q8_0),
    panels<BlockQ4_0, 16, 4, kVnniNeeds>("avx512vnni-q4_0", matmul_avx512_q4_0),
    panels<BlockQ4_1, 16, 4, kVnniNeeds>("avx512vnni-q4_1", matmul_avx512_q4_1),
    panels<BlockQ6K, 16, 4, kVnniNeeds>("avx512vnni-q6_k", matmul_avx512_q6_k),
    panels<BlockQ5_0, 16, 4, kVnniNeeds>("avx512vnni-q5_0", matmul_avx512_q5_0),
    panels<BlockQ5_1, 16, 4, kVnniNeeds>("avx512vnni-q5_1", matmul_avx512_q5_1),
    panels<BlockQ2K, 16, 4, kVnniNeeds>("avx512vnni-q2_k", matmul_avx512_q2_k),
    panels<BlockQ3K, 16, 4, kVnniNeeds>("avx512vnni-q3_k", matmul_avx512_q3_k),
    panels<BlockQ4K, 16, 4, kVnniNeeds>("avx512vnni-q4_k", matmul_avx512_q4_k),
    panels<BlockQ5K, 16, 4, kVnniNeeds>("avx512vnni-q5_k", matmul_avx512_q5_k),
    panels<BlockIQ4NL, 16, 4, kVnniNeeds>("avx512vnni-iq4_nl", matmul_avx512_iq4_nl),
    panels<BlockMXFP4, 16, 4, kVnniNeeds>("avx512vnni-mxfp4", matmul_avx512_mxfp4),
    panels<BlockInt4, 16, 4, kVnniNeeds>("avx512vnni-int4", matmul_avx512_int4),
    u8_rows("avx512-u8", kCpuAvx512, matmul_avx512_u8),
    source<Format::f32>("avx512-f32", kCpuAvx512, matmul_avx512_f32),
    lines<Format::f16>("avx512-f16", kCpuAvx512, matmul_avx512_f16),
    lines<Format::bf16>("avx512-bf16", kCpuAvx512, matmul_avx512_bf16),
    w8_panels<8, 4, kVnni256Needs, true>("avxvnni-w8a8", matmul_avxvnni_w8a8),
    panels<BlockQ8_0, 8, 4, kVnni256Needs, true>("avxvnni-q8_0", matmul_avxvnni_q8_0),
    panels<BlockQ4_0, 8, 4, kVnni256Needs>("avxvnni-q4_0", matmul_avxvnni_q4_0),
    panels<BlockQ4_1, 8, 4, kVnni256Needs>("avxvnni-q4_1", matmul_avxvnni_q4_1),
    panels<BlockQ6K, 8, 4, kVnni256Needs>("avxvnni-q6_k", matmul_avxvnni_q6_k),
    panels<BlockQ5_0, 8, 4, kVnni256Needs>("avxvnni-q5_0", matmul_avxvnni_q5_0),
    panels<BlockQ5_1, 8, 4, kVnni256Needs>("avxvnni-q5_1", matmul_avxvnni_q5_1),
    panels<BlockQ2K, 8, 4, kVnni256Needs>("avxvnni-q2_k", matmul_avxvnni_q2_k),
    panels<BlockQ3K, 8, 4, kVnni256Needs>("avxvnni-q3_k", matmul_avxvnni_q3_k),
    panels<BlockQ4K, 8, 4, kVnni256Needs>("avxvnni-q4_k", matmul_avxvnni_q4_k),
    panels<BlockQ5K, 8, 4, kVnni256Needs>("avxvnni-q5_k", matmul_avxvnni_q5_k),
    panels<BlockIQ4NL, 8, 4, kVnni256Needs>("avxvnni-iq4_nl", matmul_avxvnni_iq4_nl),
    panels<BlockMXFP4, 8, 4, kVnni256Needs>("avxvnni-mxfp4", matmul_avxvnni_mxfp4),
    panels<BlockInt4, 8, 4, kVnni256Needs>("avxvnni-int4", matmul_avxvnni_int4),
    w8_panels<8, 4, kCpuAvx2>("avx2-w8a8", matmul_avx2_w8a8),
    panels<BlockQ8_0, 8, 4, kCpuAvx2>("avx2-q8_0", matmul_avx2_q8_0),
    panels<BlockQ4_0, 8, 4, kCpuAvx2>("avx2-q4_0", matmul_avx2_q4_0),
    panels<BlockQ4_1, 8, 4, kCpuAvx2>("avx2-q4_1", matmul_avx2_q4_1),
    panels<BlockQ6K, 8, 4, kCpuAvx2>("avx2-q6_k", matmul_avx2_q6_k),
    panels<BlockQ5_0, 8, 4, kCpuAvx2>("avx2-q5_0", matmul_avx2_q5_0),
    panels<BlockQ5_1, 8, 4, kCpuAvx2>("avx2-q5_1", matmul_avx2_q5_1),
    panels<BlockQ2K, 8, 4, kCpuAvx2>("avx2-q2_k", matmul_avx2_q2_k),
    panels<BlockQ3K, 8, 4, kCpuAvx2>("avx2-q3_k", matmul_avx2_q3_k),
    panels<BlockQ4K, 8, 4, kCpuAvx2>("avx2-q4_k", matmul_avx2_q4_k),
    panels<BlockQ5K, 8, 4, kCpuAvx2>("avx2-q5_k", matmul_avx2_q5_k),
    panels<BlockIQ4NL, 8, 4, kCpuAvx2>("avx2-iq4_nl", matmul_avx2_iq4_nl),
    panels<BlockMXFP4, 8, 4, kCpuAvx2>("avx2-mxfp4", matmul_avx2_mxfp4),
    panels<BlockInt4, 8, 4, kCpuAvx2>("avx2-int4", matmul_avx2_int4),
    u8_rows("avx2-u8", kCpuAvx2, matmul_avx2_u8),
    source<Format::f32>("avx2-f32", kCpuAvx2, matmul_avx2_f32),
    source<Format::f16>("avx2-f16", kCpuAvx2, matmul_avx2_f16),
    source<Format::bf16>("avx2-bf16", kCpuAvx2, matmul_avx2_bf16),
#elif defined(__aarch64__)
    w8_panels<8, 8, kI8mmNeeds>("i8mm-w8a8", matmul_i8mm_w8a8),
    panels<BlockQ8_0, 8, 8, kI8mmNeeds>("i8mm-q8_0", matmul_i8mm_q8_0),
    panels<BlockQ4_0, 8, 8, kI8mmNeeds>("i8mm-q4_0", matmul_i8mm_q4_0),
    panels<BlockQ4_1, 8, 8, kI8mmNeeds>("i8mm-q4_1", matmul_i8mm_q4_1),
    panels<BlockQ6K, 8, 8, kI8mmNeeds>("i8mm-q6_k", matmul_i8mm_q6_k),
    panels<BlockQ5_0, 8, 8, kI8mmNeeds>("i8mm-q5_0", matmul_i8mm_q5_0),
    panels<BlockQ5_1, 8, 8, kI8mmNeeds>("i8mm-q5_1", matmul_i8mm_q5_1),
    panels<BlockQ2K, 8, 8, kI8mmNeeds>("i8mm-q2_k", matmul_i8mm_q2_k),
    panels<BlockQ3K, 8, 8, kI8mmNeeds>("i8mm-q3_k", matmul_i8mm_q3_k),
    panels<BlockQ4K, 8, 8, kI8mmNeeds>("i8mm-q4_k", matmul_i8mm_q4_k),
    panels<BlockQ5K, 8, 8, kI8mmNeeds>("i8mm-q5_k", matmul_i8mm_q5_k),
    panels<BlockIQ4NL, 8, 8, kI8mmNeeds>("i8mm-iq4_nl", matmul_i8mm_iq4_nl),
    panels<BlockMXFP4, 8, 8, kI8mmNeeds>("i8mm-mxfp4", matmul_i8mm_mxfp4),
    panels<BlockInt4, 8, 8, kI8mmNeeds>("i8mm-int4", matmul_i8mm_int4),
    w8_panels<8, 4, kCpuNeonDot>("neon-w8a8", matmul_neon_w8a8),
    panels<BlockQ8_0, 8, 4, kCpuNeonDot>("neon-q8_0", matmul_neon_q8_0),
    panels<BlockQ4_0, 8, 4, kCpuNeonDot>("neon-q4_0", matmul_neon_q4_0),
    panels<BlockQ4_1, 8, 4, kCpuNeonDot>("neon-q4_1", matmul_neon_q4_1),
    panels<BlockQ6K, 8, 4, kCpuNeonDot>("neon-q6_k", matmul_neon_q6_k),
    panels<BlockQ5_0, 8, 4, kCpuNeonDot>("neon-q5_0", matmul_neon_q5_0),
    panels<BlockQ5_1, 8, 4, kCpuNeonDot>("neon-q5_1", matmul_neon_q5_1),
    panels<BlockQ2K, 8, 4, kCpuNeonDot>("neon-q2_k", matmul_neon_q2_k),
    panels<BlockQ3K, 8, 4, kCpuNeonDot>("neon-q3_k", matmul_neon_q3_k),
    panels<BlockQ4K, 8, 4, kCpuNeonDot>("neon-q4_k", matmul_neon_q4_k),
    panels<BlockQ5K, 8, 4, kCpuNeonDot>("neon-q5_k", matmul_neon_q5_k),
    panels<BlockIQ4NL, 8, 4, kCpuNeonDot>("neon-iq4_nl", matmul_neon_iq4_nl),
    panels<BlockMXFP4, 8, 4, kCpuNeonDot>("neon-mxfp4", matmul_neon_mxfp4),
    panels<BlockInt4, 8, 4, kCpuNeonDot>("neon-int4", matmul_neon_int4),
    u8_rows("neon-u8", kCpuNeonDot, matmul_neon_u8),
    source<Format::f32>("neon-f32", kCpuNeonDot, matmul_neon_f32),
    source<Format::f16>("neon-f16", kCpuNeonDot, matmul_neon_f16),
    bf16_quads("bfmmla-bf16", kCpuNeonDot | kCpuBf16, matmul_bfmmla_bf16),
    source<Format::bf16>("neon-bf16", kCpuNeonDot, matmul_neon_bf16),
#endif
    w8_panels<1, 4, 0>("scalar-w8a8", matmul_generic_w8a8),
    source<Format::q8_0>("scalar-q8_0", 0, matmul_generic_q8_0),
    source<Format::q4_0>("scalar-q4_0", 0, matmul_generic_q4_0),
    source<Format::q4_1>("scalar-q4_1", 0, matmul_generic_q4_1),
    source<Format::q6_k>("scalar-q6_k", 0, matmul_generic_q6_k),
    source<Format::q5_0>("scalar-q5_0", 0, matmul_generic_q5_0),
    source<Format::q5_1>("scalar-q5_1", 0, matmul_generic_q5_1),
    source<Format::q2_k>("scalar-q2_k", 0, matmul_generic_q2_k),
    source<Format::q3_k>("scalar-q3_k", 0, matmul_generic_q3_k),
    source<Format::q4_k>("scalar-q4_k", 0, matmul_generic_q4_k),
    source<Format::q5_k>("scalar-q5_k", 0, matmul_generic_q5_k),
    source<Format::iq4_nl>("scalar-iq4_nl", 0, matmul_generic_iq4_nl),
    source<Format::mxfp4>("scalar-mxfp4", 0, matmul_generic_mxfp4),
    source<Format::int4>("scalar-int4", 0, matmul_generic_int4),
    u8_rows("scalar-u8", 0, matmul_generic_u8),
    source<Format::f32>("scalar-f32", 0, matmul_generic_f32),
    source<Format::f16>("scalar-f16", 0, matmul_generic_f16),
    source<Format::bf16>("scalar-bf16", 0, matmul_generic_bf16),
};

template <size_t... kIndex>
constexpr std::array<MatmulRow, kNumFormats> decoding_rows(std::index_sequence<kIndex...>) {
  return {decoding_row_of<static_cast<Format>(kIndex)>()...};
}

}  // namespace

std::span<const MatmulRow> matmul_rows() { return kRows; }

const MatmulRow& decoding_row(Format format) {
  static constexpr auto kDecoding = decoding_rows(std::make_index_sequence<kNumFormats>());
  return kDecoding[static_cast<size_t>(format)];
}

namespace {

const MatmulRow* first_of(std::span<const MatmulRow> table,
                          Format format,
                          WeightQuant makes,
                          int64_t rows,
                          int64_t cols) {
  for (const MatmulRow& row : table) {
    if (row.fmt != format || row.makes != makes || !cpu_features().has(row.need)) continue;
    if (rows < 1 || cols % row.cols_multiple != 0) continue;
    return &row;
  }
  return nullptr;
}

}  // namespace

const MatmulRow& choose_matmul(Format format,
                               int64_t rows,
                               int64_t cols,
                               std::span<const MatmulRow> table) {
  const MatmulRow* found = first_of(table, format, WeightQuant::none, rows, cols);
  return found ? *found : decoding_row(format);
}

const MatmulRow& choose_matmul(const TensorInfo& t,
                               WeightQuant quant,
                               std::span<const MatmulRow> table) {
  switch (quant) {
    case WeightQuant::none:
      break;
    case WeightQuant::w4:
      return choose_matmul(kW4Format, t.rows, t.cols, table);
    case WeightQuant::w8a8:
    case WeightQuant::u8: {
      const MatmulRow* found = first_of(table, Format::f32, quant, t.rows, t.cols);
      CHECK(found != nullptr);
      return *found;
    }
  }
  return choose_matmul(t.format, t.rows, t.cols, table);
}

}  // namespace sluice
