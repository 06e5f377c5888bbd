// int_row kernels for NEON with SDOT. A group is 8 rows: two vectors whose lanes are rows; SDOT by
// element multiplies four columns of four rows with four of x. A tile is G groups (read streams) by
// MT rows of x, and its loop is loads and SDOT only.
#include <arm_neon.h>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_panels_neon.h"
#include "backend/cpu/matmul/matmul_tiles_inl.h"

namespace sluice::cpu {
namespace {

// dot += columns 4 U to 4 U + 3 of sixteen.
template <int U, int G, int MT>
[[gnu::always_inline]] inline void dot_unit(const uint8_t* w,
                                            size_t panel,
                                            const int8x16_t (&x)[MT],
                                            int32x4_t (&dot)[G][MT][2]) {
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int8x16_t wv = vreinterpretq_s8_u8(vld1q_u8(w + g * panel + U * 4 * R + h * 16));
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) dot[g][m][h] = vdotq_laneq_s32(dot[g][m][h], wv, x[m], U);
    }
  }
  hold_loads();
}

template <int G, int MT>
[[gnu::noinline]] void row_tile(const Tile& t) {
  const RowPanelPlan plan = row_panel_plan<R>(t.cols);
  int32x4_t dot[G][MT][2];
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) dot[g][m][0] = dot[g][m][1] = vdupq_n_s32(0);
  }
  const uint8_t* panels = t.w;  // in registers: hold_loads() makes t be read again
  const int8_t* q = t.q;
  const int64_t cols = t.cols;
  for (int64_t k = 0; k < cols; k += 16) {
    int8x16_t x[MT];
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) x[m] = vld1q_s8(q + m * cols + k);
    const uint8_t* w = panels + k * R;
    dot_unit<0, G, MT>(w, plan.bytes, x, dot);
    dot_unit<1, G, MT>(w, plan.bytes, x, dot);
    dot_unit<2, G, MT>(w, plan.bytes, x, dot);
    dot_unit<3, G, MT>(w, plan.bytes, x, dot);
  }
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int h = 0; h < 2; ++h) {
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) store4(t, plan, m, g, h, dot[g][m][h]);
    }
  }
}

struct Kernel {
  static constexpr int kRows = R, kStep = 1;
  static constexpr Heights kMost{8, 4, 2};

  template <int G, int MT>
  static constexpr TileFn tile = row_tile<G, MT>;
};

// Up to eight rows of x a tile of four and two read streams keep up with memory; beyond that eight
// rows beside one group ask the least of the loads.
constexpr Heights heights(int64_t m) { return m <= 8 ? Heights{4, 4, 2} : Kernel::kMost; }

}  // namespace

void matmul_neon_w8a8(const MatmulArgs& a) {
  run_tiles<Kernel>(a, row_panel_plan<R>(a.cols).bytes, 1, heights(a.m));
}

}  // namespace sluice::cpu
