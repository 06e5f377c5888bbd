// The run functions behind the rows of matmul_table.cc, one file per ISA and operand kind, and what
// those files share. A file compiled for an ISA may include only headers whose inline functions no
// other file calls (the linker keeps one copy of each, perhaps the one this CPU cannot run): so no
// std algorithms here.
#pragma once

#include <cstdint>
#include <cstring>

#include "backend/cpu/matmul/matmul_table.h"
#include "backend/cpu/matmul/pack_plan.h"

// Constant-trip loops over register tiles must unroll fully, or the tile lives in memory.
#if defined(__clang__)
#define SLUICE_UNROLL _Pragma("unroll")
#else
#define SLUICE_UNROLL _Pragma("GCC unroll 16")
#endif

namespace sluice::cpu {

// Loads do not move across it. Without it GCC hoists all loads of an unrolled block to its top and
// spills the accumulators to make room.
[[gnu::always_inline]] inline void hold_loads() { __asm__ volatile("" ::: "memory"); }

// Rows of x from which int_block32 and int_super kernels use AMX: fewer are faster through VNNI,
// which has no tiles to fill up, the longer the less a format has to unpack.
[[gnu::always_inline]] constexpr int64_t amx_rows_from(Format format) {
  switch (format) {
    case Format::q8_0:
    case Format::q4_0:
    case Format::q4_1:
      return 26;
    case Format::q2_k:  // its minimums cost tiles as much as they cost VNNI
      return 32;
    case Format::q3_k:
      return 24;
    case Format::q6_k:
    case Format::q5_k:
    case Format::iq4_nl:
    case Format::mxfp4:
    case Format::int4:
      return 20;
    default:
      return 13;
  }
}

// Whether int_block32 and int_super kernels for SMMLA lay m rows of x out, and unpack weights, once
// for all.
[[gnu::always_inline]] constexpr bool smmla_unpacks_once(int64_t m) { return m > 8; }

// Weights of any format, decoded to f32 as they are read.
void matmul_decoding(const MatmulArgs& a, Format format);

void matmul_generic_w8a8(const MatmulArgs& a);
void matmul_generic_q8_0(const MatmulArgs& a);
void matmul_generic_q4_0(const MatmulArgs& a);
void matmul_generic_q4_1(const MatmulArgs& a);
void matmul_generic_q6_k(const MatmulArgs& a);
void matmul_generic_q5_0(const MatmulArgs& a);
void matmul_generic_q5_1(const MatmulArgs& a);
void matmul_generic_q2_k(const MatmulArgs& a);
void matmul_generic_q3_k(const MatmulArgs& a);
void matmul_generic_q4_k(const MatmulArgs& a);
void matmul_generic_q5_k(const MatmulArgs& a);
void matmul_generic_iq4_nl(const MatmulArgs& a);
void matmul_generic_mxfp4(const MatmulArgs& a);
void matmul_generic_int4(const MatmulArgs& a);
void matmul_generic_u8(const MatmulArgs& a);
void matmul_generic_f32(const MatmulArgs& a);
void matmul_generic_f16(const MatmulArgs& a);
void matmul_generic_bf16(const MatmulArgs& a);

void matmul_avx2_w8a8(const MatmulArgs& a);
void matmul_avx2_q8_0(const MatmulArgs& a);
void matmul_avx2_q4_0(const MatmulArgs& a);
void matmul_avx2_q4_1(const MatmulArgs& a);
void matmul_avx2_q6_k(const MatmulArgs& a);
void matmul_avx2_q5_0(const MatmulArgs& a);
void matmul_avx2_q5_1(const MatmulArgs& a);
void matmul_avx2_q2_k(const MatmulArgs& a);
void matmul_avx2_q3_k(const MatmulArgs& a);
void matmul_avx2_q4_k(const MatmulArgs& a);
void matmul_avx2_q5_k(const MatmulArgs& a);
void matmul_avx2_iq4_nl(const MatmulArgs& a);
void matmul_avx2_mxfp4(const MatmulArgs& a);
void matmul_avx2_int4(const MatmulArgs& a);
void matmul_avx2_u8(const MatmulArgs& a);
void matmul_avx2_f32(const MatmulArgs& a);
void matmul_avx2_f16(const MatmulArgs& a);
void matmul_avx2_bf16(const MatmulArgs& a);

void matmul_avxvnni_w8a8(const MatmulArgs& a);
void matmul_avxvnni_q8_0(const MatmulArgs& a);
void matmul_avxvnni_q4_0(const MatmulArgs& a);
void matmul_avxvnni_q4_1(const MatmulArgs& a);
void matmul_avxvnni_q6_k(const MatmulArgs& a);
void matmul_avxvnni_q5_0(const MatmulArgs& a);
void matmul_avxvnni_q5_1(const MatmulArgs& a);
void matmul_avxvnni_q2_k(const MatmulArgs& a);
void matmul_avxvnni_q3_k(const MatmulArgs& a);
void matmul_avxvnni_q4_k(const MatmulArgs& a);
void matmul_avxvnni_q5_k(const MatmulArgs& a);
void matmul_avxvnni_iq4_nl(const MatmulArgs& a);
void matmul_avxvnni_mxfp4(const MatmulArgs& a);
void matmul_avxvnni_int4(const MatmulArgs& a);

void matmul_avx512_w8a8(const MatmulArgs& a);
void matmul_avx512_q8_0(const MatmulArgs& a);
void matmul_avx512_q4_0(const MatmulArgs& a);
void matmul_avx512_q4_1(const MatmulArgs& a);
void matmul_avx512_q6_k(const MatmulArgs& a);
void matmul_avx512_q5_0(const MatmulArgs& a);
void matmul_avx512_q5_1(const MatmulArgs& a);
void matmul_avx512_q2_k(const MatmulArgs& a);
void matmul_avx512_q3_k(const MatmulArgs& a);
void matmul_avx512_q4_k(const MatmulArgs& a);
void matmul_avx512_q5_k(const MatmulArgs& a);
void matmul_avx512_iq4_nl(const MatmulArgs& a);
void matmul_avx512_mxfp4(const MatmulArgs& a);
void matmul_avx512_int4(const MatmulArgs& a);
void matmul_avx512_u8(const MatmulArgs& a);
void matmul_avx512_f32(const MatmulArgs& a);
void matmul_avx512_f16(const MatmulArgs& a);
void matmul_avx512_bf16(const MatmulArgs& a);

void matmul_amx_w8a8(const MatmulArgs& a);
void matmul_amx_q8_0(const MatmulArgs& a);
void matmul_amx_q4_0(const MatmulArgs& a);
void matmul_amx_q4_1(const MatmulArgs& a);
void matmul_amx_q6_k(const MatmulArgs& a);
void matmul_amx_q5_0(const MatmulArgs& a);
void matmul_amx_q5_1(const MatmulArgs& a);
void matmul_amx_q2_k(const MatmulArgs& a);
void matmul_amx_q3_k(const MatmulArgs& a);
void matmul_amx_q4_k(const MatmulArgs& a);
void matmul_amx_q5_k(const MatmulArgs& a);
void matmul_amx_iq4_nl(const MatmulArgs& a);
void matmul_amx_mxfp4(const MatmulArgs& a);
void matmul_amx_int4(const MatmulArgs& a);
void matmul_amx_bf16(const MatmulArgs& a);
// Many rows of x, in tiles; called by the kernels above.
void matmul_amx_many_q8_0(const MatmulArgs& a);
void matmul_amx_many_q4_0(const MatmulArgs& a);
void matmul_amx_many_q4_1(const MatmulArgs& a);
void matmul_amx_many_q6_k(const MatmulArgs& a);
void matmul_amx_many_q5_0(const MatmulArgs& a);
void matmul_amx_many_q5_1(const MatmulArgs& a);
void matmul_amx_many_q4_k(const MatmulArgs& a);
void matmul_amx_many_q5_k(const MatmulArgs& a);
void matmul_amx_many_iq4_nl(const MatmulArgs& a);
void matmul_amx_many_mxfp4(const MatmulArgs& a);
void matmul_amx_many_int4(const MatmulArgs& a);
// Up to 16 rows of SuperQuantView as a tile of MatmulArgs::tiles.
void lay_out_tile_amx_super(const int8_t* q,
                            const float* scale,
                            const int16_t* sum16,
                            int64_t cols,
                            int64_t rows,
                            void* tile);
// The same of QuantView.
void lay_out_tile_amx_blocks(const int8_t* q,
                             const float* scale,
                             const int32_t* sum,
                             int64_t cols,
                             int64_t rows,
                             void* tile);
// x [rows, cols] f32 as a tile of MatmulArgs::tiles.
void lay_out_tile_amx_bf16(const float* x, int64_t stride, int64_t rows, int64_t cols, void* tile);

void matmul_neon_w8a8(const MatmulArgs& a);
void matmul_neon_q8_0(const MatmulArgs& a);
void matmul_neon_q4_0(const MatmulArgs& a);
void matmul_neon_q4_1(const MatmulArgs& a);
void matmul_neon_q6_k(const MatmulArgs& a);
void matmul_neon_q5_0(const MatmulArgs& a);
void matmul_neon_q5_1(const MatmulArgs& a);
void matmul_neon_q2_k(const MatmulArgs& a);
void matmul_neon_q3_k(const MatmulArgs& a);
void matmul_neon_q4_k(const MatmulArgs& a);
void matmul_neon_q5_k(const MatmulArgs& a);
void matmul_neon_iq4_nl(const MatmulArgs& a);
void matmul_neon_mxfp4(const MatmulArgs& a);
void matmul_neon_int4(const MatmulArgs& a);
void matmul_neon_u8(const MatmulArgs& a);
void matmul_neon_f32(const MatmulArgs& a);
void matmul_neon_f16(const MatmulArgs& a);
void matmul_neon_bf16(const MatmulArgs& a);

void matmul_i8mm_w8a8(const MatmulArgs& a);
void matmul_i8mm_q8_0(const MatmulArgs& a);
void matmul_i8mm_q4_0(const MatmulArgs& a);
void matmul_i8mm_q4_1(const MatmulArgs& a);
void matmul_i8mm_q6_k(const MatmulArgs& a);
void matmul_i8mm_q5_0(const MatmulArgs& a);
void matmul_i8mm_q5_1(const MatmulArgs& a);
void matmul_i8mm_q2_k(const MatmulArgs& a);
void matmul_i8mm_q3_k(const MatmulArgs& a);
void matmul_i8mm_q4_k(const MatmulArgs& a);
void matmul_i8mm_q5_k(const MatmulArgs& a);
void matmul_i8mm_iq4_nl(const MatmulArgs& a);
void matmul_i8mm_mxfp4(const MatmulArgs& a);
void matmul_i8mm_int4(const MatmulArgs& a);

void matmul_bfmmla_bf16(const MatmulArgs& a);

}  // namespace sluice::cpu
