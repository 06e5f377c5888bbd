#include "backend/cpu/matmul/matmul_table.h"

#include <type_traits>

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

// A row that reads panels of R rows by I columns.
template <Format F, int R, int I, bool kOffset = false>
constexpr MatmulRow panels(const char* name, uint64_t need, Run run) {
  constexpr bool kLowBits = F == Format::q2_k || F == Format::q3_k;
  using P = std::conditional_t<kLowBits, LowBitPacking<F, R, I>, Packing<F, R, I, kOffset>>;
  return {name,  F,      Arith::int_block32, need,    R,   P::Block::kElems,
          false, kActQ8, P::packed_bytes,    P::pack, run, P::decode_row};
}

// A row that reads the tensor's own bytes.
template <Format F>
constexpr MatmulRow source(const char* name, uint64_t need, Run run) {
  constexpr bool kFloat = F == Format::f32 || F == Format::f16 || F == Format::bf16;
  return {name,
          F,
          kFloat ? Arith::f32_lanes16 : Arith::int_block32,
          need,
          16,
          1,
          true,
          kFloat ? kActF32 : kActQ8,
          nullptr,
          nullptr,
          run,
          decode_source_row<F>};
}

// A row that reads panels of R rows by I columns of int8 with a scale per row.
template <int R, int I, bool kOffset = false>
constexpr MatmulRow w8_panels(const char* name, uint64_t need, Run run) {
  using P = W8Packing<R, I, kOffset>;
  return {
      name, Format::f32,   Arith::int_row,   need, R, 32, false, kActRow8, P::packed_bytes, P::pack,
      run,  P::decode_row, WeightQuant::w8a8};
}

#if defined(__x86_64__)
constexpr uint64_t kVnniNeeds = kCpuAvx512 | kCpuAvx512Vnni;
constexpr uint64_t kAmxNeeds = kVnniNeeds | kCpuAvx512Bf16 | kCpuAmxInt8;

// A row that reads 16-bit floats in lines.
template <Format F>
constexpr MatmulRow lines(const char* name, uint64_t need, Run run) {
  using P = LinePacking<F>;
  return {name,  F,       Arith::f32_lanes16, need,    P::kRows, 1,
          false, kActF32, P::packed_bytes,    P::pack, run,      P::decode_row};
}
#elif defined(__aarch64__)
constexpr uint64_t kI8mmNeeds = kCpuNeonDot | kCpuI8mm;
#endif

// A row that reads panels of bf16.
template <int R, int I, int64_t kStep>
constexpr MatmulRow bf16_panels(const char* name, Arith arith, uint64_t need, Run run) {
  using P = Bf16Packing<R, I, kStep>;
  return {name,  Format::bf16, arith,           need,    R,   1,
          false, kActF32,      P::packed_bytes, P::pack, run, P::decode_row};
}

// A row that reads bytes with a scale and a minimum for each of the matrix' rows.
constexpr MatmulRow u8_rows(const char* name, uint64_t need, Run run) {
  using P = U8Packing;
  return {name,           Format::f32, Arith::f32_lanes16, need,    P::kRows, 1,
          false,          kActF32,     P::packed_bytes,    P::pack, run,      P::decode_row,
          WeightQuant::u8};
}

constexpr MatmulRow kRows[] = {
#if defined(__x86_64__)
    w8_panels<16, 4, true>("amx-w8a8", kAmxNeeds, matmul_amx_w8a8),
    w8_panels<16, 4, true>("avx512vnni-w8a8", kVnniNeeds, matmul_avx512_w8a8),
    panels<Format::q8_0, 16, 4, true>("amx-q8_0", kAmxNeeds, matmul_amx_q8_0),
    panels<Format::q4_0, 16, 4>("amx-q4_0", kAmxNeeds, matmul_amx_q4_0),
    panels<Format::q4_1, 16, 4>("amx-q4_1", kAmxNeeds, matmul_amx_q4_1),
    panels<Format::q6_k, 16, 4>("amx-q6_k", kAmxNeeds, matmul_amx_q6_k),
    panels<Format::q5_0, 16, 4>("amx-q5_0", kAmxNeeds, matmul_amx_q5_0),
    panels<Format::q5_1, 16, 4>("amx-q5_1", kAmxNeeds, matmul_amx_q5_1),
    panels<Format::q2_k, 16, 4>("amx-q2_k", kAmxNeeds, matmul_amx_q2_k),
    panels<Format::q3_k, 16, 4>("amx-q3_k", kAmxNeeds, matmul_amx_q3_k),
    panels<Format::q4_k, 16, 4>("amx-q4_k", kAmxNeeds, matmul_amx_q4_k),
    panels<Format::q5_k, 16, 4>("amx-q5_k", kAmxNeeds, matmul_amx_q5_k),
    panels<Format::iq4_nl, 16, 4>("amx-iq4_nl", kAmxNeeds, matmul_amx_iq4_nl),
    panels<Format::int4, 16, 4>("amx-int4", kAmxNeeds, matmul_amx_int4),
    bf16_panels<16, 2, kPairStep>(
        "amx-bf16", Arith::bf16_tiles, kCpuAvx512 | kCpuAvx512Bf16 | kCpuAmxBf16, matmul_amx_bf16),
    panels<Format::q8_0, 16, 4, true>("avx512vnni-q8_0", kVnniNeeds, matmul_avx512_q8_0),
    panels<Format::q4_0, 16, 4>("avx512vnni-q4_0", kVnniNeeds, matmul_avx512_q4_0),
    panels<Format::q4_1, 16, 4>("avx512vnni-q4_1", kVnniNeeds, matmul_avx512_q4_1),
    panels<Format::q6_k, 16, 4>("avx512vnni-q6_k", kVnniNeeds, matmul_avx512_q6_k),
    panels<Format::q5_0, 16, 4>("avx512vnni-q5_0", kVnniNeeds, matmul_avx512_q5_0),
    panels<Format::q5_1, 16, 4>("avx512vnni-q5_1", kVnniNeeds, matmul_avx512_q5_1),
    panels<Format::q2_k, 16, 4>("avx512vnni-q2_k", kVnniNeeds, matmul_avx512_q2_k),
    panels<Format::q3_k, 16, 4>("avx512vnni-q3_k", kVnniNeeds, matmul_avx512_q3_k),
    panels<Format::q4_k, 16, 4>("avx512vnni-q4_k", kVnniNeeds, matmul_avx512_q4_k),
    panels<Format::q5_k, 16, 4>("avx512vnni-q5_k", kVnniNeeds, matmul_avx512_q5_k),
    panels<Format::iq4_nl, 16, 4>("avx512vnni-iq4_nl", kVnniNeeds, matmul_avx512_iq4_nl),
    panels<Format::int4, 16, 4>("avx512vnni-int4", kVnniNeeds, matmul_avx512_int4),
    u8_rows("avx512-u8", kCpuAvx512, matmul_avx512_u8),
    source<Format::f32>("avx512-f32", kCpuAvx512, matmul_avx512_f32),
    lines<Format::f16>("avx512-f16", kCpuAvx512, matmul_avx512_f16),
    lines<Format::bf16>("avx512-bf16", kCpuAvx512, matmul_avx512_bf16),
    w8_panels<8, 4>("avx2-w8a8", kCpuAvx2, matmul_avx2_w8a8),
    panels<Format::q8_0, 8, 4>("avx2-q8_0", kCpuAvx2, matmul_avx2_q8_0),
    panels<Format::q4_0, 8, 4>("avx2-q4_0", kCpuAvx2, matmul_avx2_q4_0),
    panels<Format::q4_1, 8, 4>("avx2-q4_1", kCpuAvx2, matmul_avx2_q4_1),
    panels<Format::q6_k, 8, 4>("avx2-q6_k", kCpuAvx2, matmul_avx2_q6_k),
    panels<Format::q5_0, 8, 4>("avx2-q5_0", kCpuAvx2, matmul_avx2_q5_0),
    panels<Format::q5_1, 8, 4>("avx2-q5_1", kCpuAvx2, matmul_avx2_q5_1),
    panels<Format::q2_k, 8, 4>("avx2-q2_k", kCpuAvx2, matmul_avx2_q2_k),
    panels<Format::q3_k, 8, 4>("avx2-q3_k", kCpuAvx2, matmul_avx2_q3_k),
    panels<Format::q4_k, 8, 4>("avx2-q4_k", kCpuAvx2, matmul_avx2_q4_k),
    panels<Format::q5_k, 8, 4>("avx2-q5_k", kCpuAvx2, matmul_avx2_q5_k),
    panels<Format::iq4_nl, 8, 4>("avx2-iq4_nl", kCpuAvx2, matmul_avx2_iq4_nl),
    panels<Format::int4, 8, 4>("avx2-int4", kCpuAvx2, matmul_avx2_int4),
    u8_rows("avx2-u8", kCpuAvx2, matmul_avx2_u8),
    source<Format::f32>("avx2-f32", kCpuAvx2, matmul_avx2_f32),
    source<Format::f16>("avx2-f16", kCpuAvx2, matmul_avx2_f16),
    source<Format::bf16>("avx2-bf16", kCpuAvx2, matmul_avx2_bf16),
#elif defined(__aarch64__)
    w8_panels<8, 8>("i8mm-w8a8", kI8mmNeeds, matmul_i8mm_w8a8),
    panels<Format::q8_0, 8, 8>("i8mm-q8_0", kI8mmNeeds, matmul_i8mm_q8_0),
    panels<Format::q4_0, 8, 8>("i8mm-q4_0", kI8mmNeeds, matmul_i8mm_q4_0),
    panels<Format::q4_1, 8, 8>("i8mm-q4_1", kI8mmNeeds, matmul_i8mm_q4_1),
    panels<Format::q6_k, 8, 8>("i8mm-q6_k", kI8mmNeeds, matmul_i8mm_q6_k),
    panels<Format::q5_0, 8, 8>("i8mm-q5_0", kI8mmNeeds, matmul_i8mm_q5_0),
    panels<Format::q5_1, 8, 8>("i8mm-q5_1", kI8mmNeeds, matmul_i8mm_q5_1),
    panels<Format::q2_k, 8, 8>("i8mm-q2_k", kI8mmNeeds, matmul_i8mm_q2_k),
    panels<Format::q3_k, 8, 8>("i8mm-q3_k", kI8mmNeeds, matmul_i8mm_q3_k),
    panels<Format::q4_k, 8, 8>("i8mm-q4_k", kI8mmNeeds, matmul_i8mm_q4_k),
    panels<Format::q5_k, 8, 8>("i8mm-q5_k", kI8mmNeeds, matmul_i8mm_q5_k),
    panels<Format::iq4_nl, 8, 8>("i8mm-iq4_nl", kI8mmNeeds, matmul_i8mm_iq4_nl),
    panels<Format::int4, 8, 8>("i8mm-int4", kI8mmNeeds, matmul_i8mm_int4),
    w8_panels<8, 4>("neon-w8a8", kCpuNeonDot, matmul_neon_w8a8),
    panels<Format::q8_0, 8, 4>("neon-q8_0", kCpuNeonDot, matmul_neon_q8_0),
    panels<Format::q4_0, 8, 4>("neon-q4_0", kCpuNeonDot, matmul_neon_q4_0),
    panels<Format::q4_1, 8, 4>("neon-q4_1", kCpuNeonDot, matmul_neon_q4_1),
    panels<Format::q6_k, 8, 4>("neon-q6_k", kCpuNeonDot, matmul_neon_q6_k),
    panels<Format::q5_0, 8, 4>("neon-q5_0", kCpuNeonDot, matmul_neon_q5_0),
    panels<Format::q5_1, 8, 4>("neon-q5_1", kCpuNeonDot, matmul_neon_q5_1),
    panels<Format::q2_k, 8, 4>("neon-q2_k", kCpuNeonDot, matmul_neon_q2_k),
    panels<Format::q3_k, 8, 4>("neon-q3_k", kCpuNeonDot, matmul_neon_q3_k),
    panels<Format::q4_k, 8, 4>("neon-q4_k", kCpuNeonDot, matmul_neon_q4_k),
    panels<Format::q5_k, 8, 4>("neon-q5_k", kCpuNeonDot, matmul_neon_q5_k),
    panels<Format::iq4_nl, 8, 4>("neon-iq4_nl", kCpuNeonDot, matmul_neon_iq4_nl),
    panels<Format::int4, 8, 4>("neon-int4", kCpuNeonDot, matmul_neon_int4),
    u8_rows("neon-u8", kCpuNeonDot, matmul_neon_u8),
    source<Format::f32>("neon-f32", kCpuNeonDot, matmul_neon_f32),
    source<Format::f16>("neon-f16", kCpuNeonDot, matmul_neon_f16),
    bf16_panels<8, 4, kQuad>(
        "bfmmla-bf16", Arith::bf16_quads, kCpuNeonDot | kCpuBf16, matmul_bfmmla_bf16),
    source<Format::bf16>("neon-bf16", kCpuNeonDot, matmul_neon_bf16),
#endif
    w8_panels<1, 4>("scalar-w8a8", 0, matmul_generic_w8a8),
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
    source<Format::int4>("scalar-int4", 0, matmul_generic_int4),
    u8_rows("scalar-u8", 0, matmul_generic_u8),
    source<Format::f32>("scalar-f32", 0, matmul_generic_f32),
    source<Format::f16>("scalar-f16", 0, matmul_generic_f16),
    source<Format::bf16>("scalar-bf16", 0, matmul_generic_bf16),
};

}  // namespace

std::span<const MatmulRow> matmul_rows() { return kRows; }

namespace {

const MatmulRow& first_of(std::span<const MatmulRow> table,
                          Format format,
                          WeightQuant makes,
                          int64_t rows,
                          int64_t cols) {
  const MatmulRow* found = nullptr;
  for (const MatmulRow& row : table) {
    if (row.fmt != format || row.makes != makes || !cpu_features().has(row.need)) continue;
    if (rows < 1 || cols % row.cols_multiple != 0) continue;
    found = &row;
    break;
  }
  CHECK(found != nullptr);
  return *found;
}

}  // namespace

const MatmulRow& choose_matmul(Format format,
                               int64_t rows,
                               int64_t cols,
                               std::span<const MatmulRow> table) {
  return first_of(table, format, WeightQuant::none, rows, cols);
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
    case WeightQuant::u8:
      return first_of(table, Format::f32, quant, t.rows, t.cols);
  }
  return choose_matmul(t.format, t.rows, t.cols, table);
}

}  // namespace sluice
