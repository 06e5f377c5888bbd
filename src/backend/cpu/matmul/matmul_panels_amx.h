// How the int_block32 kernels for AMX read the panels of PanelPlan. Each file that includes this
// has its own copy, compiled as it is.
#pragma once

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
}  // namespace sluice::cpu
