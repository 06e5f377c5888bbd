// int_row kernels for SMMLA (i8mm). A group is 8 rows in four pairs; a vector is 2 rows by 8
// columns. SMMLA gives the 2 x 2 products with a pair of rows of x, lanes (w0x0, w0x1, w1x0, w1x1).
// A tile is G groups by PT pairs of rows of x: 16 x 6 has 24 accumulators, and eight columns of it
// are 24 SMMLA to 14 loads and 3 inserts, which the load pipes of a Neoverse-V1 hide (3 loads to 4
// SMMLA a cycle). One row of x alone uses SDOT on the same panels.
#include <arm_neon.h>

#include "backend/cpu/matmul_kernels.h"
#include "backend/cpu/matmul_panels_neon.h"
#include "backend/cpu/matmul_tile_i8mm.h"
#include "backend/cpu/matmul_tiles_inl.h"

namespace sluice::cpu {
namespace {

[[gnu::always_inline]] inline int8x16_t load_w(const uint8_t* p) {
  return vreinterpretq_s8_u8(vld1q_u8(p));
}

// One row of x, G read streams.
template <int G>
[[gnu::noinline]] void row_tile(const Tile& t) {
  const RowPanelPlan plan = row_panel_plan<R>(t.cols);
  const uint8_t* panels = t.w;  // in registers: hold_loads() makes t be read again
  const int8_t* q = t.q;
  const int64_t cols = t.cols;
  int32x4_t dot[G][kPairs];  // lanes: halves of a row's eight columns, of two rows
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int p = 0; p < kPairs; ++p) dot[g][p] = vdupq_n_s32(0);
  }
  for (int64_t k = 0; k < cols; k += 8) {
    const int8x8_t half = vld1_s8(q + k);
    const int8x16_t x = vcombine_s8(half, half);
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      const uint8_t* w = panels + g * plan.bytes + k * R;
      SLUICE_UNROLL
      for (int p = 0; p < kPairs; ++p) dot[g][p] = vdotq_s32(dot[g][p], load_w(w + p * 16), x);
    }
    hold_loads();
  }
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    store4(t, plan, 0, g, 0, vpaddq_s32(dot[g][0], dot[g][1]));
    store4(t, plan, 0, g, 1, vpaddq_s32(dot[g][2], dot[g][3]));
  }
}

template <int G, int PT>
[[gnu::noinline]] void pair_tile(const Tile& t) {
  const RowPanelPlan plan = row_panel_plan<R>(t.cols);
  const uint8_t* panels = t.w;
  const int64_t cols = t.cols;
  const int8_t* x[PT][2];
  find_pairs<PT>(t.q, t.cols, t.m, x);
  int32x4_t dot[G][kPairs][PT];
  SLUICE_UNROLL
  for (int i = 0; i < PT; ++i) {
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      SLUICE_UNROLL
      for (int p = 0; p < kPairs; ++p) dot[g][p][i] = vdupq_n_s32(0);
    }
  }
  for (int64_t k = 0; k < cols; k += 8) {
    int8x16_t xv[PT];
    SLUICE_UNROLL
    for (int i = 0; i < PT; ++i) xv[i] = vcombine_s8(vld1_s8(x[i][0] + k), vld1_s8(x[i][1] + k));
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      const uint8_t* w = panels + g * plan.bytes + k * R;
      SLUICE_UNROLL
      for (int p = 0; p < kPairs; ++p) {
        const int8x16_t wv = load_w(w + p * 16);
        SLUICE_UNROLL
        for (int i = 0; i < PT; ++i) dot[g][p][i] = vmmlaq_s32(dot[g][p][i], wv, xv[i]);
      }
      hold_loads();
    }
  }
  SLUICE_UNROLL
  for (int i = 0; i < PT; ++i) {
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      SLUICE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const int32x4_t a = dot[g][2 * h][i], b = dot[g][2 * h + 1][i];
        store4(t, plan, 2 * i, g, h, vuzp1q_s32(a, b));
        if (2 * i + 1 < t.m) store4(t, plan, 2 * i + 1, g, h, vuzp2q_s32(a, b));
      }
    }
  }
}

struct Kernel {
  static constexpr int kRows = R, kStep = 2;
  static constexpr Heights kMost{3, 3, 1};

  template <int G, int PT>
  static void tile(const Tile& t) {
    if (PT == 1 && t.m == 1) return row_tile<G>(t);
    pair_tile<G, PT>(t);
  }
};

}  // namespace

void matmul_i8mm_w8a8(const MatmulArgs& a) {
  run_tiles<Kernel>(a, row_panel_plan<R>(a.cols).bytes, 1);
}

}  // namespace sluice::cpu
