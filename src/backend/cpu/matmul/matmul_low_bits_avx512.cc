// Kernels of q2_k and q3_k for AVX-512 with VNNI.
#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_low_bits_vnni_inl.h"
#include "backend/cpu/matmul/matmul_tile_avx512.h"

namespace sluice::cpu {

void matmul_avx512_q2_k(const MatmulArgs& a) { run_low_bits<Vnni512, Format::q2_k>(a); }
void matmul_avx512_q3_k(const MatmulArgs& a) { run_low_bits<Vnni512, Format::q3_k>(a); }

}  // namespace sluice::cpu
