// int_row kernels for SMMLA (i8mm). A group is 8 rows in four pairs; a vector is 2 rows by 8
// columns. SMMLA gives the 2 x 2 products with a pair of rows of x, lanes (w0x0, w0x1, w1x0, w1x1).
// A tile is G groups by PT pairs of rows of x: 16 x 6 has 24 accumulators, and eight columns of it
// are 24 SMMLA to 11 loads and nothing else, which the load pipes of a Neoverse-V1 hide (3 loads to
// 4 SMMLA a cycle). One row of x alone uses SDOT on the same panels.
#include <arm_neon.h>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_pairs_neon.h"
#include "backend/cpu/matmul/matmul_panels_neon.h"
#include "backend/cpu/matmul/matmul_tile_i8mm.h"
#include "backend/cpu/matmul/matmul_tiles_inl.h"

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

// Sums of an earlier range of K are integers in the place of outputs.
template <int G, int PT>
[[gnu::noinline]] void pair_tile(const PairTile& t) {
  const size_t panel = t.panel;  // in registers
  const uint8_t* w = t.w;
  const PairUnit* x = t.x;
  int32x4_t dot[G][kPairs][PT];
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int p = 0; p < kPairs; ++p) {
      SLUICE_UNROLL
      for (int i = 0; i < PT; ++i) dot[g][p][i] = vdupq_n_s32(0);
    }
  }
  float32x4_t pair[kPairs];
  if (!t.to.first) {
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      SLUICE_UNROLL
      for (int i = 0; i < PT; ++i) {
        t.to.take_pair(i, g * R, pair);
        SLUICE_UNROLL
        for (int p = 0; p < kPairs; ++p) dot[g][p][i] = vreinterpretq_s32_f32(pair[p]);
      }
    }
  }
  const uint8_t* const end = w + t.units * kGroupUnitBytes;
  for (; w != end; w += kGroupUnitBytes, x += PT) {
    int8x16_t xv[PT];
    SLUICE_UNROLL
    for (int i = 0; i < PT; ++i) xv[i] = load_w(x[i].of[0]);
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      SLUICE_UNROLL
      for (int p = 0; p < kPairs; ++p) {
        const int8x16_t wv = load_w(w + g * panel + p * 16);
        SLUICE_UNROLL
        for (int i = 0; i < PT; ++i) dot[g][p][i] = vmmlaq_s32(dot[g][p][i], wv, xv[i]);
      }
      hold_loads();
    }
  }
  const RowPanelPlan plan = row_panel_plan<R>(t.a.cols);
  const uint8_t* panels = static_cast<const uint8_t*>(t.a.w) + static_cast<size_t>(t.group) * panel;
  SLUICE_UNROLL
  for (int i = 0; i < PT; ++i) {
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      SLUICE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const int32x4_t a = dot[g][2 * h][i], b = dot[g][2 * h + 1][i];
        const int32x4_t sums[2] = {vuzp1q_s32(a, b), vuzp2q_s32(a, b)};
        const uint8_t* dw = panels + g * panel + plan.scale + h * 16;
        SLUICE_UNROLL
        for (int r = 0; r < 2; ++r) {
          if (2 * i + r >= t.to.m) break;
          float32x4_t v = vreinterpretq_f32_s32(sums[r]);
          if (t.to.last) v = scaled(sums[r], t.a.scale[t.row + 2 * i + r], dw);
          t.to.put(2 * i + r, g * R + h * 4, v);
        }
      }
    }
  }
}

void lay_out_x(
    const MatmulArgs& a, int64_t row, int64_t pairs, int64_t u0, int64_t units, PairUnit* to) {
  for (int64_t i = 0; i < pairs; ++i) {
    const int64_t first = row + 2 * i, second = first + 1 < a.m ? first + 1 : first;
    const int8_t* x0 = a.q + first * a.cols + u0 * 8;
    const int8_t* x1 = a.q + second * a.cols + u0 * 8;
    for (int64_t u = 0; u < units; ++u)
      vst1q_s8(reinterpret_cast<int8_t*>(to[u * pairs + i].of[0]),
               vcombine_s8(vld1_s8(x0 + u * 8), vld1_s8(x1 + u * 8)));
  }
}

// One row of x has the walk of the other integer kernels, and four read streams.
struct RowKernel {
  static constexpr int kRows = R, kStep = 1;
  static constexpr Heights kMost{1, 1, 1};
  template <int G, int>
  static constexpr TileFn tile = row_tile<G>;
};

struct PairKernel {
  template <int G, int PT>
  static constexpr void (*tile)(const PairTile&) = pair_tile<G, PT>;
  static constexpr auto* lay_out = lay_out_x;
};

}  // namespace

void matmul_i8mm_w8a8(const MatmulArgs& a) {
  const size_t panel = row_panel_plan<R>(a.cols).bytes;
  if (a.m == 1) return run_tiles<RowKernel>(a, panel, 1);
  run_pairs<PairKernel>(a, panel, a.cols / 8);
}

}  // namespace sluice::cpu
