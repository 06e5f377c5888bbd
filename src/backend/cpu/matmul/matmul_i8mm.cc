// int_block32 kernels for SMMLA (i8mm). A group is 8 rows in four pairs; a vector is 2 rows by 8
// columns. SMMLA gives the 2 x 2 products with a pair of rows of x, lanes (w0x0, w0x1, w1x0, w1x1);
// scales are laid out alike, so each lane is an output's own chain. One row of x alone uses SDOT on
// the same panels, with pairs of lanes added in integers: same bits, and four read streams.
#include <arm_neon.h>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_many_i8mm.h"
#include "backend/cpu/matmul/matmul_panels_neon.h"
#include "backend/cpu/matmul/matmul_tile_i8mm.h"
#include "tensor/formats/iq4_levels.h"

namespace sluice::cpu {
namespace {

// A block's planes. Two blocks of 5 bits share their bytes of the high plane: `shift` takes this
// block's bit of unit 0 to bit 4.
struct Planes {
  const uint8_t* low;
  const uint8_t* high;
  int shift;
};

template <Format F>
[[gnu::always_inline]] inline Planes planes_of(const uint8_t* panel,
                                               const PanelPlan& plan,
                                               int64_t b) {
  const int64_t high = kHighBits<F> == 1 ? b / 2 : b;
  return {panel + b * kLowBytes<F> * R, panel + plan.high + high * 8 * R,
          static_cast<int>(4 - b % 2 * 4)};
}

// Unit u (8 columns) of pair p of a block.
template <Format F>
[[gnu::always_inline]] inline int8x16_t load_unit(const Planes& planes, int u, int p) {
  const uint8_t* low = planes.low;
  if constexpr (F == Format::q8_0) {
    return vreinterpretq_s8_u8(vld1q_u8(low + u * R * 8 + p * 16));
  } else {
    const uint8x16_t v = vld1q_u8(low + u % 2 * R * 8 + p * 16);
    uint8x16_t q = u < 2 ? vandq_u8(v, vdupq_n_u8(15)) : vshrq_n_u8(v, 4);
    if constexpr (F == Format::q6_k) {
      const uint8x16_t h = vld1q_u8(planes.high + p * 16);
      const uint8x16_t top = u == 0   ? vshlq_n_u8(h, 4)
                             : u == 1 ? vshlq_n_u8(h, 2)
                             : u == 2 ? h
                                      : vshrq_n_u8(h, 2);
      q = vsubq_u8(vorrq_u8(q, vandq_u8(top, vdupq_n_u8(48))), vdupq_n_u8(32));
    } else if constexpr (kHighBits<F> == 1) {
      const int8x16_t shift = vdupq_n_s8(static_cast<int8_t>(planes.shift - u));
      const uint8x16_t top = vshlq_u8(vld1q_u8(planes.high + p * 16), shift);
      q = vorrq_u8(q, vandq_u8(top, vdupq_n_u8(16)));
    } else if constexpr (F == Format::iq4_nl) {
      return vqtbl1q_s8(vld1q_s8(kIq4Levels), q);
    }
    return vreinterpretq_s8_u8(q);
  }
}

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
      float32x4_t dot[2], dw[2], mw[2];
      if constexpr (F == Format::q6_k) {
        const int32x4x2_t d0 = dot_row(load, x, 0, 2);
        const int32x4x2_t d1 = dot_row(load, x, 2, 2);
        const float32x4x2_t s0 = load_i8(panel + plan.scale + b * 2 * R);
        const float32x4x2_t s1 = load_i8(panel + plan.scale + b * 2 * R + R);
        SLUICE_UNROLL
        for (int h = 0; h < 2; ++h) {
          const float32x4_t first = vmulq_f32(s0.val[h], vcvtq_f32_s32(d0.val[h]));
          dot[h] = vfmaq_f32(first, s1.val[h], vcvtq_f32_s32(d1.val[h]));
          dw[h] = load_f16(panel + plan.extra + b / 8 * 2 * R + h * 8);
        }
      } else {
        load_scales<F>(panel, plan, b, dw, mw);
        int32x4x2_t d = dot_row(load, x, 0, 4);
        SLUICE_UNROLL
        for (int h = 0; h < 2; ++h) {
          if constexpr (kCodeOffset<F> != 0) {
            d.val[h] = vsubq_s32(d.val[h], vdupq_n_s32(kCodeOffset<F> * t.sum[b]));
          }
          dot[h] = vcvtq_f32_s32(d.val[h]);
        }
      }
      SLUICE_UNROLL
      for (int h = 0; h < 2; ++h) {
        acc[g][h] = vfmaq_f32(acc[g][h], vmulq_n_f32(dw[h], dx), dot[h]);
        if constexpr (kHasMin<F>) {
          const float32x4_t s = vdupq_n_f32(dx * static_cast<float>(t.sum[b]));
          acc[g][h] =
              kSuperScales<F> ? vfmsq_f32(acc[g][h], mw[h], s) : vfmaq_f32(acc[g][h], mw[h], s);
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
    float32x4_t dot[kPairs][PT], dw[kPairs], mw[kPairs];
    start<PT>(sum, b, F == Format::q6_k ? 0 : -kCodeOffset<F>, idot);
    load_pairs<PT>(x, b * 32, xv);
    dot_pairs<PT>(load, 0, xv, idot);
    if constexpr (F == Format::q6_k) {
      float32x4_t s[kPairs];
      const float32x4x2_t s0 = load_i8(t.w + plan.scale + b * 2 * R);
      spread(s0.val[0], s0.val[1], s);
      SLUICE_UNROLL
      for (int p = 0; p < kPairs; ++p) {
        SLUICE_UNROLL
        for (int i = 0; i < PT; ++i) dot[p][i] = vmulq_f32(s[p], vcvtq_f32_s32(idot[p][i]));
      }
      start<PT>(sum, b, 0, idot);
      load_pairs<PT>(x, b * 32 + 16, xv);
      dot_pairs<PT>(load, 2, xv, idot);
      const float32x4x2_t s1 = load_i8(t.w + plan.scale + b * 2 * R + R);
      spread(s1.val[0], s1.val[1], s);
      SLUICE_UNROLL
      for (int p = 0; p < kPairs; ++p) {
        SLUICE_UNROLL
        for (int i = 0; i < PT; ++i) {
          dot[p][i] = vfmaq_f32(dot[p][i], s[p], vcvtq_f32_s32(idot[p][i]));
        }
      }
      spread_f16(t.w + plan.extra + b / 8 * 2 * R, dw);
    } else {
      load_pairs<PT>(x, b * 32 + 16, xv);
      dot_pairs<PT>(load, 2, xv, idot);
      SLUICE_UNROLL
      for (int p = 0; p < kPairs; ++p) {
        SLUICE_UNROLL
        for (int i = 0; i < PT; ++i) dot[p][i] = vcvtq_f32_s32(idot[p][i]);
      }
      float32x4_t d[2], m[2];
      load_scales<F>(t.w, plan, b, d, m);
      spread(d[0], d[1], dw);
      if constexpr (kHasMin<F>) spread(m[0], m[1], mw);
    }
    SLUICE_UNROLL
    for (int i = 0; i < PT; ++i) {
      const float d0 = dx[i][0][b], d1 = dx[i][1][b];
      const float32x4_t d = both(d0, d1);
      SLUICE_UNROLL
      for (int p = 0; p < kPairs; ++p) {
        acc[p][i] = vfmaq_f32(acc[p][i], vmulq_f32(dw[p], d), dot[p][i]);
        if constexpr (kHasMin<F>) {
          const float32x4_t s =
              both(d0 * static_cast<float>(sum[i][0][b]), d1 * static_cast<float>(sum[i][1][b]));
          acc[p][i] =
              kSuperScales<F> ? vfmsq_f32(acc[p][i], mw[p], s) : vfmaq_f32(acc[p][i], mw[p], s);
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
      if constexpr (kCodeOffset<F> != 0 && F != Format::q6_k)
        q = vsubq_s8(q, vdupq_n_s8(kCodeOffset<F>));
      vst1q_s8(to.q[u][p], q);
    }
  }
  float32x4_t dw[kPairs], extra[2][kPairs];
  if constexpr (F == Format::q6_k) {
    spread_f16(panel + plan.extra + b / 8 * 2 * R, dw);
    SLUICE_UNROLL
    for (int h = 0; h < 2; ++h) {
      const float32x4x2_t s = load_i8(panel + plan.scale + b * 2 * R + h * R);
      spread(s.val[0], s.val[1], extra[h]);
    }
  } else {
    float32x4_t d[2], m[2];
    load_scales<F>(panel, plan, b, d, m);
    spread(d[0], d[1], dw);
    if constexpr (kHasMin<F>) spread(m[0], m[1], extra[0]);
  }
  SLUICE_UNROLL
  for (int p = 0; p < kPairs; ++p) {
    vst1q_f32(to.scale[p], dw[p]);
    if constexpr (kHasMin<F> || F == Format::q6_k) vst1q_f32(to.extra[0][p], extra[0][p]);
    if constexpr (F == Format::q6_k) vst1q_f32(to.extra[1][p], extra[1][p]);
  }
}

template <Format F>
void run(const MatmulArgs& a) {
  const PanelPlan plan = panel_plan<F, R>(a.cols);
  if (!smmla_unpacks_once(F, a.m)) return run_blocks<Tiles<F>>(a, plan.bytes);
  run_many<kKind<F>>(a, plan.bytes, [&](const uint8_t* panel, int64_t b, GroupBlock& to) {
    unpack_block<F>(panel, plan, b, to);
  });
}

}  // namespace

void matmul_i8mm_q8_0(const MatmulArgs& a) { run<Format::q8_0>(a); }
void matmul_i8mm_q4_0(const MatmulArgs& a) { run<Format::q4_0>(a); }
void matmul_i8mm_q4_1(const MatmulArgs& a) { run<Format::q4_1>(a); }
void matmul_i8mm_q6_k(const MatmulArgs& a) { run<Format::q6_k>(a); }
void matmul_i8mm_q5_0(const MatmulArgs& a) { run<Format::q5_0>(a); }
void matmul_i8mm_q5_1(const MatmulArgs& a) { run<Format::q5_1>(a); }
void matmul_i8mm_q4_k(const MatmulArgs& a) { run<Format::q4_k>(a); }
void matmul_i8mm_q5_k(const MatmulArgs& a) { run<Format::q5_k>(a); }
void matmul_i8mm_int4(const MatmulArgs& a) { run<Format::int4>(a); }
void matmul_i8mm_iq4_nl(const MatmulArgs& a) { run<Format::iq4_nl>(a); }

}  // namespace sluice::cpu
