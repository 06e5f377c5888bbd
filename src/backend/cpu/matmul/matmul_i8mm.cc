// int_block32 kernels for SMMLA (i8mm). A group is 8 rows in four pairs; a vector is 2 rows by 8
// columns. SMMLA gives the 2 x 2 products with a pair of rows of x, lanes (w0x0, w0x1, w1x0, w1x1);
// scales are laid out alike, so each lane is an output's own chain. One row of x alone uses SDOT on
// the same panels, with pairs of lanes added in integers: same bits, and four read streams.
#include <arm_neon.h>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_many_i8mm.h"
#include "backend/cpu/matmul/matmul_panels_neon.h"
#include "backend/cpu/matmul/matmul_tile_i8mm.h"
#include "backend/cpu/matmul/matmul_units_i8mm.h"

namespace sluice::cpu {
namespace {

// ---- one row of x: SDOT, G groups at once ----

template <Format F, int G>
[[gnu::noinline]] void row_tile(const Tile& t) {
  const PanelPlan plan = panel_plan<F, R>(t.cols);
  float32x4_t acc[G][2];
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) acc[g][0] = acc[g][1] = vdupq_n_f32(0);
  for (int64_t b = 0; b < plan.num_blocks; ++b) {
    int8x16_t x[4];
    load_units(t.q + b * 32, x);
    const float dx = t.scale[b];
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      const uint8_t* panel = t.w + g * plan.bytes;
      const Planes planes = planes_of<F>(panel, plan, b);
      const auto load = [&](int u, int p) __attribute__((always_inline)) {
        return load_unit<F>(planes, u, p);
      };
      float32x4_t dw[2], mw[2];
      load_scales<F>(panel, plan, b, dw, mw);
      int32x4x2_t dot = dot_row(load, x, 0, 4);
      SLUICE_UNROLL
      for (int h = 0; h < 2; ++h) {
        if constexpr (kCodeOffset<F> != 0) {
          dot.val[h] = vsubq_s32(dot.val[h], vdupq_n_s32(kCodeOffset<F> * t.sum[b]));
        }
        acc[g][h] = vfmaq_f32(acc[g][h], vmulq_n_f32(dw[h], dx), vcvtq_f32_s32(dot.val[h]));
        if constexpr (kHasMin<F>) {
          const float32x4_t s = vdupq_n_f32(dx * static_cast<float>(t.sum[b]));
          acc[g][h] = vfmaq_f32(acc[g][h], mw[h], s);
        }
      }
    }
  }
  store_row<G>(t, acc);
}

// ---- PT pairs of rows of x: SMMLA, one group ----

template <int PT>
[[gnu::always_inline]] inline void start(const int32_t* const (&sum)[PT][2],
                                         int64_t b,
                                         int32_t factor,
                                         int32x4_t (&idot)[kPairs][PT]) {
  SLUICE_UNROLL
  for (int i = 0; i < PT; ++i) {
    const int32x2_t s = vset_lane_s32(factor * sum[i][1][b], vdup_n_s32(factor * sum[i][0][b]), 1);
    SLUICE_UNROLL
    for (int p = 0; p < kPairs; ++p) idot[p][i] = vcombine_s32(s, s);
  }
}

template <Format F, int PT>
[[gnu::noinline]] void pair_tile(const Tile& t) {
  const PanelPlan plan = panel_plan<F, R>(t.cols);
  const int8_t* x[PT][2];
  const float* dx[PT][2];
  const int32_t* sum[PT][2];
  find_pairs<PT>(t.q, t.cols, t.m, x);
  find_pairs<PT>(t.scale, plan.num_blocks, t.m, dx);
  find_pairs<PT>(t.sum, plan.num_blocks, t.m, sum);
  float32x4_t acc[kPairs][PT];
  clear<PT>(acc);
  for (int64_t b = 0; b < plan.num_blocks; ++b) {
    const Planes planes = planes_of<F>(t.w, plan, b);
    const auto load = [&](int u, int p) __attribute__((always_inline)) {
      return load_unit<F>(planes, u, p);
    };
    int8x16_t xv[2][PT];
    int32x4_t idot[kPairs][PT];
    float32x4_t dw[kPairs], mw[kPairs];
    start<PT>(sum, b, -kCodeOffset<F>, idot);
    load_pairs<PT>(x, b * 32, xv);
    dot_pairs<PT>(load, 0, xv, idot);
    load_pairs<PT>(x, b * 32 + 16, xv);
    dot_pairs<PT>(load, 2, xv, idot);
    float32x4_t d[2], m[2];
    load_scales<F>(t.w, plan, b, d, m);
    spread(d[0], d[1], dw);
    if constexpr (kHasMin<F>) spread(m[0], m[1], mw);
    SLUICE_UNROLL
    for (int i = 0; i < PT; ++i) {
      const float d0 = dx[i][0][b], d1 = dx[i][1][b];
      const float32x4_t scale = both(d0, d1);
      SLUICE_UNROLL
      for (int p = 0; p < kPairs; ++p) {
        const float32x4_t dot = vcvtq_f32_s32(idot[p][i]);
        acc[p][i] = vfmaq_f32(acc[p][i], vmulq_f32(dw[p], scale), dot);
        if constexpr (kHasMin<F>) {
          const float32x4_t s =
              both(d0 * static_cast<float>(sum[i][0][b]), d1 * static_cast<float>(sum[i][1][b]));
          acc[p][i] = vfmaq_f32(acc[p][i], mw[p], s);
        }
      }
    }
  }
  store_pairs<PT>(t, acc);
}

template <Format F>
struct Tiles {
  template <int G>
  static constexpr TileFn row = row_tile<F, G>;
  template <int PT>
  static constexpr TileFn pairs = pair_tile<F, PT>;
};

// ---- many rows of x ----

template <Format F>
[[gnu::noinline]] void unpack_block(const uint8_t* panel,
                                    const PanelPlan& plan,
                                    int64_t b,
                                    GroupBlock& to) {
  const Planes planes = planes_of<F>(panel, plan, b);
  SLUICE_UNROLL
  for (int u = 0; u < 4; ++u) {
    SLUICE_UNROLL
    for (int p = 0; p < kPairs; ++p) {
      int8x16_t q = load_unit<F>(planes, u, p);
      if constexpr (kCodeOffset<F> != 0) q = vsubq_s8(q, vdupq_n_s8(kCodeOffset<F>));
      vst1q_s8(to.q[u][p], q);
    }
  }
  float32x4_t dw[kPairs], mw[kPairs], d[2], m[2];
  load_scales<F>(panel, plan, b, d, m);
  spread(d[0], d[1], dw);
  if constexpr (kHasMin<F>) spread(m[0], m[1], mw);
  SLUICE_UNROLL
  for (int p = 0; p < kPairs; ++p) {
    vst1q_f32(to.scale[p], dw[p]);
    if constexpr (kHasMin<F>) vst1q_f32(to.min[p], mw[p]);
  }
}

template <Format F>
void run(const MatmulArgs& a) {
  const PanelPlan plan = panel_plan<F, R>(a.cols);
  if (!smmla_unpacks_once(a.m)) return run_blocks<Tiles<F>>(a, plan.bytes);
  run_many<kMinimums<F>>(a, plan.bytes, [&](const uint8_t* panel, int64_t b, GroupBlock& to) {
    unpack_block<F>(panel, plan, b, to);
  });
}

}  // namespace

void matmul_i8mm_q8_0(const MatmulArgs& a) { run<Format::q8_0>(a); }
void matmul_i8mm_q4_0(const MatmulArgs& a) { run<Format::q4_0>(a); }
void matmul_i8mm_q4_1(const MatmulArgs& a) { run<Format::q4_1>(a); }
void matmul_i8mm_q5_0(const MatmulArgs& a) { run<Format::q5_0>(a); }
void matmul_i8mm_q5_1(const MatmulArgs& a) { run<Format::q5_1>(a); }
void matmul_i8mm_int4(const MatmulArgs& a) { run<Format::int4>(a); }
void matmul_i8mm_iq4_nl(const MatmulArgs& a) { run<Format::iq4_nl>(a); }
void matmul_i8mm_mxfp4(const MatmulArgs& a) { run<Format::mxfp4>(a); }

}  // namespace sluice::cpu
