// int_block32 and int_row kernels for AVX2 with VNNI.
#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_tile_avxvnni.h"
#include "backend/cpu/matmul/matmul_vnni_inl.h"

namespace sluice::cpu {

void matmul_avxvnni_q8_0(const MatmulArgs& a) { run_blocks<Vnni256, Format::q8_0>(a); }
void matmul_avxvnni_q4_0(const MatmulArgs& a) { run_blocks<Vnni256, Format::q4_0>(a); }
void matmul_avxvnni_q4_1(const MatmulArgs& a) { run_blocks<Vnni256, Format::q4_1>(a); }
void matmul_avxvnni_q5_0(const MatmulArgs& a) { run_blocks<Vnni256, Format::q5_0>(a); }
void matmul_avxvnni_q5_1(const MatmulArgs& a) { run_blocks<Vnni256, Format::q5_1>(a); }
void matmul_avxvnni_int4(const MatmulArgs& a) { run_blocks<Vnni256, Format::int4>(a); }
void matmul_avxvnni_iq4_nl(const MatmulArgs& a) { run_blocks<Vnni256, Format::iq4_nl>(a); }
void matmul_avxvnni_mxfp4(const MatmulArgs& a) { run_blocks<Vnni256, Format::mxfp4>(a); }
void matmul_avxvnni_w8a8(const MatmulArgs& a) { run_rows<Vnni256>(a); }

}  // namespace sluice::cpu
