// int_super kernels of q4_k, q5_k and q6_k for NEON with SDOT. A group is 8 rows: two vectors whose
// lanes are rows. A tile is G groups (read streams) by MT rows of x. The dots of the columns that
// share a scale are multiplied by it and added up over the super-block, all in integers.
#include <arm_neon.h>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_supers_neon.h"
#include "backend/cpu/matmul/matmul_tile_neon.h"
#include "backend/cpu/matmul/matmul_units_neon.h"

namespace sluice::cpu {
namespace {

// The half-th sixteen columns of a q6_k block, for one group: codes, which stand 32 above what they
// mean.
template <int MT>
[[gnu::always_inline]] inline void dot_q6_half(const uint8_t* low,
                                               const uint8_t* high,
                                               int half,
                                               const int8x16_t (&x)[MT],
                                               int32x4_t (&idot)[MT][2]) {
  const uint8x16_t h[2] = {vld1q_u8(high + half * 32), vld1q_u8(high + half * 32 + 16)};
  const auto load = [&](int u, int i) __attribute__((always_inline)) {
    const uint8x16_t v = vld1q_u8(low + u * 32 + i * 16);
    const uint8x16_t top = u == 0   ? vshlq_n_u8(h[i], 4)
                           : u == 1 ? vshlq_n_u8(h[i], 2)
                           : u == 2 ? h[i]
                                    : vshrq_n_u8(h[i], 2);
    const uint8x16_t q = half == 0 ? vbslq_u8(vdupq_n_u8(15), v, top) : vsriq_n_u8(top, v, 4);
    return vreinterpretq_s8_u8(vandq_u8(q, vdupq_n_u8(63)));
  };
  dot_16<MT>(load, x, idot);
}

// total += scale * dot of parts 2 i and 2 i + 1 of super-block s, for one group.
template <Format F, int MT>
[[gnu::always_inline]] inline void dot_parts(const Tile& t,
                                             const PanelPlan& plan,
                                             const uint8_t* panel,
                                             int64_t s,
                                             int i,
                                             int32x4_t (&total)[MT][2]) {
  const int8x16_t scales = two_scales<F>(panel, plan, s, i);
  SLUICE_UNROLL
  for (int part = 0; part < 2; ++part) {
    const int64_t b = F == Format::q6_k ? s * 8 + i : s * 8 + 2 * i + part;
    const uint8_t* low = panel + b * 16 * R;
    const int8_t* q = t.q + b * 32;
    Ints<1, MT> idot;
    clear<1, MT>(idot);
    int8x16_t x[MT];
    if constexpr (F == Format::q6_k) {
      load_x<MT>(q + part * 16, t.cols, x);
      dot_q6_half<MT>(low, panel + plan.high + b * 8 * R, part, x, idot[0]);
    } else {
      const uint8_t* high = panel + plan.high + b * 4 * R;
      load_x<MT>(q, t.cols, x);
      dot_half<F, MT>(low, high, 0, x, idot[0]);
      load_x<MT>(q + 16, t.cols, x);
      dot_half<F, MT>(low, high, 1, x, idot[0]);
    }
    const int32x4x2_t scale =
        widen(vreinterpret_u8_s8(part == 0 ? vget_low_s8(scales) : vget_high_s8(scales)));
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      total[m][0] = vmlaq_s32(total[m][0], idot[0][m][0], scale.val[0]);
      total[m][1] = vmlaq_s32(total[m][1], idot[0][m][1], scale.val[1]);
    }
  }
}

template <Format F, int G, int MT>
void super_tile(const Tile& t) {
  const PanelPlan plan = panel_plan<F, R>(t.cols);
  Floats<G, MT> acc;
  clear<G, MT>(acc);
  for (int64_t s = 0; s < t.cols / 256; ++s) {
    Ints<G, MT> total;
    clear<G, MT>(total);
    for (int i = 0; i < kSuperParts<F> / 2; ++i) {
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) {
        dot_parts<F, MT>(t, plan, t.w + g * plan.bytes, s, i, total[g]);
      }
    }
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      const uint8_t* panel = t.w + g * plan.bytes;
      const uint8_t* d = super_scales<F>(panel, plan, s);
      const Offsets<F> offsets = load_offsets<F>(panel, plan, s);
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) {
        const PartSums<F> sums = part_sums<F>(t.sum16 + m * (t.cols / 16) + s * 16);
        const float32x4_t dx = vdupq_n_f32(t.scale[m * (t.cols / 256) + s]);
        SLUICE_UNROLL
        for (int h = 0; h < 2; ++h) {
          const float32x4_t dw = load_f16(d + h * 8);
          acc[g][m][h] =
              add_super<F>(acc[g][m][h], dx, total[g][m][h], dot_offsets<F>(offsets, sums, h), dw,
                           kSuperScales<F> ? load_f16(d + 2 * R + h * 8) : dw);
        }
      }
    }
  }
  store<G, MT>(t, acc);
}

template <Format F>
struct Kernel : NeonBlocks {
  template <int G, int MT>
  static constexpr TileFn tile = super_tile<F, G, MT>;
};

}  // namespace

void matmul_neon_q4_k(const MatmulArgs& a) { run_supers<Kernel, Format::q4_k>(a); }
void matmul_neon_q5_k(const MatmulArgs& a) { run_supers<Kernel, Format::q5_k>(a); }
void matmul_neon_q6_k(const MatmulArgs& a) { run_supers<Kernel, Format::q6_k>(a); }

}  // namespace sluice::cpu
