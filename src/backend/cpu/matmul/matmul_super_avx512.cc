// int_super kernels for AVX-512 with VNNI.
#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_super_vnni_inl.h"
#include "backend/cpu/matmul/matmul_tile_avx512.h"

namespace sluice::cpu {

void matmul_avx512_q4_k(const MatmulArgs& a) {
  run_supers<SuperKernels<Vnni512>::Of, Format::q4_k>(a);
}
void matmul_avx512_q5_k(const MatmulArgs& a) {
  run_supers<SuperKernels<Vnni512>::Of, Format::q5_k>(a);
}
void matmul_avx512_q6_k(const MatmulArgs& a) {
  run_supers<SuperKernels<Vnni512>::Of, Format::q6_k>(a);
}

}  // namespace sluice::cpu
