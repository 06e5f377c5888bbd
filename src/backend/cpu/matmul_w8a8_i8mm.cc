// int_row kernels for SMMLA (i8mm). A group is 8 rows in four pairs; a vector is 2 rows by 8
// columns. SMMLA gives the 2 x 2 products with a pair of rows of x, lanes (w0x0, w0x1, w1x0, w1x1).
// A tile is G groups by PT pairs of rows of x: 16 x 6 has 24 accumulators, and eight columns of it
// are 24 SMMLA to 14 loads and 3 inserts, which the load pipes of a Neoverse-V1 hide (3 loads to 4
// SMMLA a cycle). One row of x alone uses SDOT on the same panels.
#include <arm_neon.h>

#include "backend/cpu/matmul_kernels.h"

namespace sluice::cpu {
namespace {

constexpr int R = 8;
constexpr int kPairs = R / 2;

struct Tile {
  const uint8_t* w;  // first group's panel
  const int8_t* q;   // first row's activations
  const float* scale;
  float* out;         // first row, first group's first column
  const float* bias;  // first group's, or null
  int64_t cols;
  int64_t out_stride;
  int64_t rows_left;  // rows of W from the first group's on
  int64_t m;          // rows of x; an odd last one is paired with itself
};

[[gnu::always_inline]] inline void store4(const Tile& t, int64_t row, int64_t at, float32x4_t v) {
  float* out = t.out + row * t.out_stride + at;
  if (t.rows_left >= at + 4) {
    vst1q_f32(out, vaddq_f32(v, t.bias ? vld1q_f32(t.bias + at) : vdupq_n_f32(0)));
  } else {
    float lanes[4];
    vst1q_f32(lanes, v);
    for (int64_t i = 0; i < t.rows_left - at; ++i)
      out[i] = lanes[i] + (t.bias ? t.bias[at + i] : 0);
  }
}

// Dots of rows 4 h to 4 h + 3 of a panel with one row of x.
[[gnu::always_inline]] inline void finish4(
    const Tile& t, const RowPanelPlan& plan, int64_t row, int g, int h, int32x4_t dot) {
  const float32x4_t dw = vreinterpretq_f32_u8(vld1q_u8(t.w + g * plan.bytes + plan.scale + h * 16));
  const float32x4_t scale = vmulq_f32(vdupq_n_f32(t.scale[row]), dw);
  store4(t, row, g * R + h * 4, vmulq_f32(vcvtq_f32_s32(dot), scale));
}

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
    finish4(t, plan, 0, g, 0, vpaddq_s32(dot[g][0], dot[g][1]));
    finish4(t, plan, 0, g, 1, vpaddq_s32(dot[g][2], dot[g][3]));
  }
}

template <int G, int PT>
[[gnu::noinline]] void pair_tile(const Tile& t) {
  const RowPanelPlan plan = row_panel_plan<R>(t.cols);
  const uint8_t* panels = t.w;
  const int64_t cols = t.cols;
  const int8_t* x[PT][2];
  int32x4_t dot[G][kPairs][PT];
  SLUICE_UNROLL
  for (int i = 0; i < PT; ++i) {
    x[i][0] = t.q + 2 * i * t.cols;
    x[i][1] = 2 * i + 1 < t.m ? x[i][0] + t.cols : x[i][0];
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
        finish4(t, plan, 2 * i, g, h, vuzp1q_s32(a, b));
        if (2 * i + 1 < t.m) finish4(t, plan, 2 * i + 1, g, h, vuzp2q_s32(a, b));
      }
    }
  }
}

using TileFn = void (*)(const Tile&);

constexpr int64_t kMaxPairs = 3;

constexpr int groups_at_once(int64_t m) { return m <= 2 ? 4 : 2; }

TileFn pick(int groups, int64_t m) {
  const int64_t pairs = (m + 1) / 2;
  if (m == 1) return groups == 4 ? row_tile<4> : groups == 2 ? row_tile<2> : row_tile<1>;
  if (groups == 4) return pair_tile<4, 1>;
  if (groups == 2)
    return pairs == 1 ? pair_tile<2, 1> : pairs == 2 ? pair_tile<2, 2> : pair_tile<2, 3>;
  return pairs == 1 ? pair_tile<1, 1> : pairs == 2 ? pair_tile<1, 2> : pair_tile<1, 3>;
}

}  // namespace

void matmul_i8mm_w8a8(const MatmulArgs& a) {
  const size_t panel = row_panel_plan<R>(a.cols).bytes;
  const int64_t pairs = (a.m + 1) / 2;
  const int64_t tiles = (pairs + kMaxPairs - 1) / kMaxPairs;
  const int wide = groups_at_once(a.m);
  for (int64_t g = a.group_begin; g < a.group_end;) {
    const int64_t left = a.group_end - g;
    const int groups = left >= wide ? wide : left >= 2 ? 2 : 1;
    for (int64_t i = 0, m0 = 0; i < tiles; ++i) {
      const int64_t wanted = 2 * (pairs / tiles + (i < pairs % tiles ? 1 : 0));
      const int64_t m = a.m - m0 < wanted ? a.m - m0 : wanted;
      pick(groups, m)({static_cast<const uint8_t*>(a.w) + static_cast<size_t>(g) * panel,
                       a.q + m0 * a.cols, a.scale + m0, a.out + m0 * a.out_stride + g * R,
                       a.bias ? a.bias + g * R : nullptr, a.cols, a.out_stride, a.rows - g * R, m});
      m0 += m;
    }
    g += groups;
  }
}

}  // namespace sluice::cpu
