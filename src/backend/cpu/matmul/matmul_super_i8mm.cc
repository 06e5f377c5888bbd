// int_super kernels of q4_k, q5_k and q6_k for SMMLA (i8mm), over panels like those of
// matmul_i8mm.cc. The dot of a part (the columns that share a scale) is multiplied by its scale in
// integers, and a super-block passes into f32 once. One row of x alone uses SDOT on the same
// panels; few rows multiply what they unpack; many rows share unpacked weights
// (matmul_super_many_i8mm.h).
#include <arm_neon.h>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_super_many_i8mm.h"
#include "backend/cpu/matmul/matmul_supers_neon.h"
#include "backend/cpu/matmul/matmul_tile_i8mm.h"
#include "backend/cpu/matmul/matmul_units_i8mm.h"

namespace sluice::cpu {
namespace {

// The block of 32 columns that part 2 i + half of super-block s lies in, and its first unit there.
template <Format F>
[[gnu::always_inline]] inline int64_t block_of(int64_t s, int i, int half) {
  return s * 8 + (F == Format::q6_k ? i : 2 * i + half);
}
template <Format F>
[[gnu::always_inline]] inline int first_unit(int half) {
  return F == Format::q6_k ? half * 2 : 0;
}
template <Format F>
constexpr int kPartUnits = F == Format::q6_k ? 2 : 4;

[[gnu::always_inline]] inline int32x4x2_t widen_half(int8x16_t v, int half) {
  return widen(vreinterpret_u8_s8(half == 0 ? vget_low_s8(v) : vget_high_s8(v)));
}

// ---- one row of x: SDOT, G groups at once ----

template <Format F, int G>
[[gnu::always_inline]] inline void dot_row_parts(
    const Tile& t, const PanelPlan& plan, int64_t s, int i, int32x4_t (&total)[G][2]) {
  int8x16_t scale[G];
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) scale[g] = two_scales<F>(t.w + g * plan.bytes, plan, s, i);
  SLUICE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int64_t b = block_of<F>(s, i, half);
    int8x16_t x[4];
    load_units(t.q + b * 32, x);
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      const Planes planes = planes_of<F>(t.w + g * plan.bytes, plan, b);
      const auto load = [&](int u, int p) __attribute__((always_inline)) {
        return load_unit<F>(planes, u, p);
      };
      const int32x4x2_t dot = dot_row(load, x, first_unit<F>(half), kPartUnits<F>);
      const int32x4x2_t by = widen_half(scale[g], half);
      total[g][0] = vmlaq_s32(total[g][0], dot.val[0], by.val[0]);
      total[g][1] = vmlaq_s32(total[g][1], dot.val[1], by.val[1]);
    }
  }
}

template <Format F, int G>
[[gnu::noinline]] void row_tile(const Tile& t) {
  const PanelPlan plan = panel_plan<F, R>(t.cols);
  float32x4_t acc[G][2];
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) acc[g][0] = acc[g][1] = vdupq_n_f32(0);
  for (int64_t s = 0; s < t.cols / 256; ++s) {
    int32x4_t total[G][2];
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) total[g][0] = total[g][1] = vdupq_n_s32(0);
    for (int i = 0; i < kSuperParts<F> / 2; ++i) dot_row_parts<F, G>(t, plan, s, i, total);
    const PartSums<F> sums = part_sums<F>(t.sum16 + s * 16);
    const float32x4_t dx = vdupq_n_f32(t.scale[s]);
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      const uint8_t* panel = t.w + g * plan.bytes;
      const uint8_t* d = super_scales<F>(panel, plan, s);
      const Offsets<F> offsets = load_offsets<F>(panel, plan, s);
      SLUICE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const float32x4_t dw = load_f16(d + h * 8);
        acc[g][h] = add_super<F>(acc[g][h], dx, total[g][h], dot_offsets<F>(offsets, sums, h), dw,
                                 kSuperScales<F> ? load_f16(d + 2 * R + h * 8) : dw);
      }
    }
  }
  store_row<G>(t, acc);
}

// ---- PT pairs of rows of x: SMMLA, one group ----

// A part's units times its scale.
template <Format F, int PT>
[[gnu::always_inline]] inline void dot_pair_part(const Planes& planes,
                                                 const int8_t* const (&x)[PT][2],
                                                 int64_t column,
                                                 int u0,
                                                 const int32x4x2_t& scale,
                                                 int32x4_t (&total)[kPairs][PT]) {
  const auto load = [&](int u, int p) __attribute__((always_inline)) {
    return load_unit<F>(planes, u, p);
  };
  int8x16_t xv[2][PT];
  int32x4_t idot[kPairs][PT];
  clear<PT>(idot);
  SLUICE_UNROLL
  for (int u = u0; u < u0 + kPartUnits<F>; u += 2) {
    load_pairs<PT>(x, column + u * 8, xv);
    dot_pairs<PT>(load, u, xv, idot);
  }
  SLUICE_UNROLL
  for (int p = 0; p < kPairs; ++p) {
    const int32x4_t half = scale.val[p / 2];
    const int32x4_t by = p % 2 == 0 ? vzip1q_s32(half, half) : vzip2q_s32(half, half);
    SLUICE_UNROLL
    for (int i = 0; i < PT; ++i) total[p][i] = vmlaq_s32(total[p][i], idot[p][i], by);
  }
}

template <Format F, int PT>
[[gnu::noinline]] void pair_tile(const Tile& t) {
  const PanelPlan plan = panel_plan<F, R>(t.cols);
  const int8_t* x[PT][2];
  const float* dx[PT][2];
  const int16_t* sum16[PT][2];
  find_pairs<PT>(t.q, t.cols, t.m, x);
  find_pairs<PT>(t.scale, t.cols / 256, t.m, dx);
  find_pairs<PT>(t.sum16, t.cols / 16, t.m, sum16);
  float32x4_t acc[kPairs][PT];
  clear<PT>(acc);
  for (int64_t s = 0; s < t.cols / 256; ++s) {
    int32x4_t total[kPairs][PT];
    clear<PT>(total);
    for (int i = 0; i < kSuperParts<F> / 2; ++i) {
      const int8x16_t scale = two_scales<F>(t.w, plan, s, i);
      SLUICE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int64_t b = block_of<F>(s, i, half);
        dot_pair_part<F, PT>(planes_of<F>(t.w, plan, b), x, b * 32, first_unit<F>(half),
                             widen_half(scale, half), total);
      }
    }
    const uint8_t* super = super_scales<F>(t.w, plan, s);
    float32x4_t d[kPairs], dmin[kPairs];
    spread_f16(super, d);
    spread_f16(kSuperScales<F> ? super + 2 * R : super, dmin);
    const PairOffsets<F> offsets = pair_offsets<F>(load_offsets<F>(t.w, plan, s));
    SLUICE_UNROLL
    for (int i = 0; i < PT; ++i) {
      const PairSums<F> sums = pair_sums<F>(sum16[i][0] + s * 16, sum16[i][1] + s * 16);
      const float32x4_t scale = both(dx[i][0][s], dx[i][1][s]);
      SLUICE_UNROLL
      for (int p = 0; p < kPairs; ++p) {
        acc[p][i] = add_super<F>(acc[p][i], scale, total[p][i], dot_offsets<F>(offsets, sums, p),
                                 d[p], dmin[p]);
      }
    }
  }
  store_pairs<PT>(t, acc);
}

template <Format F>
struct FewRows {
  static constexpr int kRows = R, kStep = 2;
  static constexpr Heights kMost{2, 1, 1};

  template <int G, int PT>
  static void tile(const Tile& t) {
    if (PT == 1 && t.m == 1) return row_tile<F, G>(t);
    if constexpr (G == 1) pair_tile<F, PT>(t);
  }
};

// ---- many rows of x ----

// The quants of block b.
template <Format F>
[[gnu::always_inline]] inline void unpack_codes(const uint8_t* panel,
                                                const PanelPlan& plan,
                                                int64_t b,
                                                int8_t (*to)[kPairs][16]) {
  const Planes planes = planes_of<F>(panel, plan, b);
  SLUICE_UNROLL
  for (int u = 0; u < 4; ++u) {
    SLUICE_UNROLL
    for (int p = 0; p < kPairs; ++p) {
      int8x16_t q = load_unit<F>(planes, u, p);
      if constexpr (F == Format::q6_k) q = vsubq_s8(q, vdupq_n_s8(kCodeOffset<F>));
      vst1q_s8(to[u][p], q);
    }
  }
}

template <Format F>
[[gnu::noinline]] void unpack_super(const uint8_t* panel,
                                    const PanelPlan& plan,
                                    int64_t s,
                                    GroupSuper<F>& to) {
  for (int64_t b = 0; b < 8; ++b) unpack_codes<F>(panel, plan, s * 8 + b, to.q + b * 4);
  int32x4x2_t next = {};  // scale of the part after
  for (int i = kSuperParts<F> / 2 - 1; i >= 0; --i) {
    const int8x16_t scale = two_scales<F>(panel, plan, s, i);
    SLUICE_UNROLL
    for (int half = 1; half >= 0; --half) {
      const int32x4x2_t own = widen_half(scale, half);
      SLUICE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const int32x4_t step = vsubq_s32(own.val[h], next.val[h]);
        vst1q_s32(to.step[2 * i + half][2 * h], vzip1q_s32(step, step));
        vst1q_s32(to.step[2 * i + half][2 * h + 1], vzip2q_s32(step, step));
      }
      next = own;
    }
  }
  const uint8_t* super = super_scales<F>(panel, plan, s);
  float32x4_t d[kPairs];
  spread_f16(super, d);
  SLUICE_UNROLL
  for (int p = 0; p < kPairs; ++p) vst1q_f32(to.d[p], d[p]);
  if constexpr (kSuperScales<F>) {
    const PairOffsets<F> mins = pair_offsets<F>(load_offsets<F>(panel, plan, s));
    spread_f16(super + 2 * R, d);
    SLUICE_UNROLL
    for (int p = 0; p < kPairs; ++p) {
      vst1q_f32(to.dmin[p], d[p]);
      vst1q_s8(to.mins[p], mins.of[0][p]);
    }
  }
}

template <Format F>
void run(const MatmulArgs& a) {
  const PanelPlan plan = panel_plan<F, R>(a.cols);
  if (!smmla_unpacks_once(a.m)) {
    using Few = FewRows<F>;
    return run_tiles<Few>(a, plan.bytes, a.cols / 256, a.m == 1 ? Few::kMost : Heights{2, 0, 0});
  }
  run_many_supers<F>(a, plan.bytes, [&](const uint8_t* panel, int64_t s, GroupSuper<F>& to) {
    unpack_super<F>(panel, plan, s, to);
  });
}

}  // namespace

void matmul_i8mm_q4_k(const MatmulArgs& a) { run<Format::q4_k>(a); }
void matmul_i8mm_q5_k(const MatmulArgs& a) { run<Format::q5_k>(a); }
void matmul_i8mm_q6_k(const MatmulArgs& a) { run<Format::q6_k>(a); }

}  // namespace sluice::cpu
