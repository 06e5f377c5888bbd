// int_block32 and int_row kernels for AVX-512 with VNNI.
#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_tile_avx512.h"
#include "backend/cpu/matmul/matmul_vnni_inl.h"

namespace sluice::cpu {

void matmul_avx512_q8_0(const MatmulArgs& a) { run_blocks<Vnni512, Format::q8_0>(a); }
void matmul_avx512_q4_0(const MatmulArgs& a) { run_blocks<Vnni512, Format::q4_0>(a); }
void matmul_avx512_q4_1(const MatmulArgs& a) { run_blocks<Vnni512, Format::q4_1>(a); }
void matmul_avx512_q5_0(const MatmulArgs& a) { run_blocks<Vnni512, Format::q5_0>(a); }
void matmul_avx512_q5_1(const MatmulArgs& a) { run_blocks<Vnni512, Format::q5_1>(a); }
void matmul_avx512_int4(const MatmulArgs& a) { run_blocks<Vnni512, Format::int4>(a); }
void matmul_avx512_iq4_nl(const MatmulArgs& a) { run_blocks<Vnni512, Format::iq4_nl>(a); }
void matmul_avx512_mxfp4(const MatmulArgs& a) { run_blocks<Vnni512, Format::mxfp4>(a); }
void matmul_avx512_w8a8(const MatmulArgs& a) { run_rows<Vnni512>(a); }

}  // namespace sluice::cpu
