// int_row kernels for NEON with SDOT. A group is 8 rows: two vectors whose lanes are rows; SDOT by
// element multiplies four columns of four rows with four of x. A tile is G groups (read streams) by
// MT rows of x, and its loop is loads and SDOT only.
#include <arm_neon.h>

#include "backend/cpu/matmul_kernels.h"

namespace sluice::cpu {
namespace {

constexpr int R = 8;

struct Tile {
  const uint8_t* w;  // first group's panel
  const int8_t* q;   // first row's activations
  const float* scale;
  float* out;         // first row, first group's first column
  const float* bias;  // first group's, or null
  int64_t cols;
  int64_t out_stride;
  int64_t rows_left;  // rows of W from the first group's on
};

template <int G, int MT>
[[gnu::always_inline]] inline void store(const Tile& t,
                                         const RowPanelPlan& plan,
                                         const int32x4_t (&dot)[G][MT][2]) {
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int64_t at = g * R + h * 4;
      const float32x4_t dw =
          vreinterpretq_f32_u8(vld1q_u8(t.w + g * plan.bytes + plan.scale + h * 16));
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) {
        const float32x4_t acc =
            vmulq_f32(vcvtq_f32_s32(dot[g][m][h]), vmulq_f32(vdupq_n_f32(t.scale[m]), dw));
        float* out = t.out + m * t.out_stride + at;
        if (t.rows_left >= at + 4) {
          vst1q_f32(out, vaddq_f32(acc, t.bias ? vld1q_f32(t.bias + at) : vdupq_n_f32(0)));
        } else {
          float lanes[4];
          vst1q_f32(lanes, acc);
          for (int64_t i = 0; i < t.rows_left - at; ++i)
            out[i] = lanes[i] + (t.bias ? t.bias[at + i] : 0);
        }
      }
    }
  }
}

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
[[gnu::noinline]] void tile(const Tile& t) {
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
  store<G, MT>(t, plan, dot);
}

using TileFn = void (*)(const Tile&);

// Up to eight rows of x a tile of four and two read streams keep up with memory; beyond that eight
// rows beside one group ask the least of the loads.
constexpr int64_t max_tile(int64_t m) { return m <= 8 ? 4 : 8; }
constexpr int groups_at_once(int64_t m) { return m <= 2 ? 4 : m <= 8 ? 2 : 1; }

TileFn pick(int groups, int64_t m) {
  static constexpr TileFn kTwo[] = {tile<2, 1>, tile<2, 2>, tile<2, 3>, tile<2, 4>};
  static constexpr TileFn kOne[] = {tile<1, 1>, tile<1, 2>, tile<1, 3>, tile<1, 4>,
                                    tile<1, 5>, tile<1, 6>, tile<1, 7>, tile<1, 8>};
  if (groups == 4) return m == 1 ? tile<4, 1> : tile<4, 2>;
  return groups == 2 ? kTwo[m - 1] : kOne[m - 1];
}

}  // namespace

void matmul_neon_w8a8(const MatmulArgs& a) {
  const size_t panel = row_panel_plan<R>(a.cols).bytes;
  const int64_t most = max_tile(a.m);
  const int64_t tiles = (a.m + most - 1) / most;
  const int wide = groups_at_once(a.m);
  for (int64_t g = a.group_begin; g < a.group_end;) {
    const int64_t left = a.group_end - g;
    const int groups = left >= wide ? wide : left >= 2 && wide > 1 ? 2 : 1;
    for (int64_t i = 0, m0 = 0; i < tiles; ++i) {
      const int64_t m = a.m / tiles + (i < a.m % tiles ? 1 : 0);
      pick(groups, m)({static_cast<const uint8_t*>(a.w) + static_cast<size_t>(g) * panel,
                       a.q + m0 * a.cols, a.scale + m0, a.out + m0 * a.out_stride + g * R,
                       a.bias ? a.bias + g * R : nullptr, a.cols, a.out_stride, a.rows - g * R});
      m0 += m;
    }
    g += groups;
  }
}

}  // namespace sluice::cpu
