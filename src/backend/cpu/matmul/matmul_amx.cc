// int_block32 kernels for AMX over the panels of PanelPlan: bit for bit those of matmul_avx512.cc,
// which few rows of x go to. Those that come in tiles go to matmul_many_amx.cc.
#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_panels_amx.h"
#include "backend/cpu/matmul/matmul_strips_amx.h"

namespace sluice::cpu {
namespace {

template <Format F>
bool many_rows(const MatmulArgs& a) {
  return a.tiles && a.m >= amx_rows_from(F);
}

}  // namespace

void matmul_amx_q8_0(const MatmulArgs& a) {
  if (many_rows<Format::q8_0>(a)) return matmul_amx_many_q8_0(a);
  run_strips<Panels<Format::q8_0>>(a, matmul_avx512_q8_0);
}
void matmul_amx_q4_0(const MatmulArgs& a) {
  if (many_rows<Format::q4_0>(a)) return matmul_amx_many_q4_0(a);
  run_strips<Panels<Format::q4_0>>(a, matmul_avx512_q4_0);
}
void matmul_amx_q4_1(const MatmulArgs& a) {
  if (many_rows<Format::q4_1>(a)) return matmul_amx_many_q4_1(a);
  run_strips<Panels<Format::q4_1>>(a, matmul_avx512_q4_1);
}
void matmul_amx_q5_0(const MatmulArgs& a) {
  if (many_rows<Format::q5_0>(a)) return matmul_amx_many_q5_0(a);
  run_strips<Panels<Format::q5_0>>(a, matmul_avx512_q5_0);
}
void matmul_amx_q5_1(const MatmulArgs& a) {
  if (many_rows<Format::q5_1>(a)) return matmul_amx_many_q5_1(a);
  run_strips<Panels<Format::q5_1>>(a, matmul_avx512_q5_1);
}
void matmul_amx_iq4_nl(const MatmulArgs& a) {
  if (many_rows<Format::iq4_nl>(a)) return matmul_amx_many_iq4_nl(a);
  run_strips<Panels<Format::iq4_nl>>(a, matmul_avx512_iq4_nl);
}
void matmul_amx_mxfp4(const MatmulArgs& a) {
  if (many_rows<Format::mxfp4>(a)) return matmul_amx_many_mxfp4(a);
  run_strips<Panels<Format::mxfp4>>(a, matmul_avx512_mxfp4);
}
void matmul_amx_int4(const MatmulArgs& a) {
  if (many_rows<Format::int4>(a)) return matmul_amx_many_int4(a);
  run_strips<Panels<Format::int4>>(a, matmul_avx512_int4);
}

}  // namespace sluice::cpu
