// int_block32 kernels for AMX over the panels of PanelPlan: bit for bit those of matmul_avx512.cc,
// which few rows of x go to.
#include <immintrin.h>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_panels_avx512.h"
#include "backend/cpu/matmul/matmul_strips_amx.h"

namespace sluice::cpu {
namespace {

template <Format F>
[[gnu::always_inline]] inline void lay_out_codes(const uint8_t* panel,
                                                 const PanelPlan& plan,
                                                 int64_t b,
                                                 WBlock<F>& w) {
  const uint8_t* low = panel + b * kLowBytes<F> * R;
  if constexpr (F == Format::q8_0) {
    const __m512i flip = _mm512_set1_epi8(static_cast<char>(0x80));
    SLUICE_UNROLL
    for (int u = 0; u < 8; ++u) put64(w.q[u], _mm512_xor_si512(load64(low + u * 64), flip));
  } else {
    constexpr char kOffset =
        kHasLevels<F> ? static_cast<char>(0x80) : static_cast<char>(kCodeOffset<F>);
    const uint8_t* tops = panel + plan.high + b * 4 * R;
    const __m512i offset = _mm512_set1_epi8(kOffset);
    SLUICE_UNROLL
    for (int u = 0; u < 4; ++u) {
      __m512i first, second;
      load_units<F>(low, tops, u, first, second);
      put64(w.q[u], _mm512_sub_epi8(first, offset));
      put64(w.q[u + 4], _mm512_sub_epi8(second, offset));
    }
  }
}

// The panels of PanelPlan, as matmul_strips_amx.h wants them.
template <Format F>
struct Panels {
  static constexpr Format kFormat = F;
  static constexpr int64_t kCodeBytes = kLowBytes<F> * R;  // of a block
  static PanelPlan plan(int64_t cols) { return panel_plan<F, R>(cols); }

  static void lay_out(const uint8_t* panel, const PanelPlan& p, int64_t b, WBlock<F>& w) {
    lay_out_codes<F>(panel, p, b, w);
    __m512 dw, mw;
    load_scales<F>(panel, p, b, dw, mw);
    _mm512_store_ps(w.side[0], dw);
    if constexpr (kHasMin<F>) _mm512_store_ps(w.side[1], mw);
  }
};

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
                          static_cast<XBlock<Format::q4_1>*>(tile));
}

void matmul_amx_q8_0(const MatmulArgs& a) {
  run_strips<Panels<Format::q8_0>>(a, matmul_avx512_q8_0);
}
void matmul_amx_q4_0(const MatmulArgs& a) {
  run_strips<Panels<Format::q4_0>>(a, matmul_avx512_q4_0);
}
void matmul_amx_q4_1(const MatmulArgs& a) {
  run_strips<Panels<Format::q4_1>>(a, matmul_avx512_q4_1);
}
void matmul_amx_q5_0(const MatmulArgs& a) {
  run_strips<Panels<Format::q5_0>>(a, matmul_avx512_q5_0);
}
void matmul_amx_q5_1(const MatmulArgs& a) {
  run_strips<Panels<Format::q5_1>>(a, matmul_avx512_q5_1);
}
void matmul_amx_iq4_nl(const MatmulArgs& a) {
  run_strips<Panels<Format::iq4_nl>>(a, matmul_avx512_iq4_nl);
}
void matmul_amx_mxfp4(const MatmulArgs& a) {
  run_strips<Panels<Format::mxfp4>>(a, matmul_avx512_mxfp4);
}
void matmul_amx_int4(const MatmulArgs& a) {
  run_strips<Panels<Format::int4>>(a, matmul_avx512_int4);
}

}  // namespace sluice::cpu
