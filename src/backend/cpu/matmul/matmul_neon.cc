// int_block32 kernels for NEON with SDOT. A group is 8 rows: two vectors whose lanes are rows; SDOT
// by element multiplies four columns of four rows with four of x. A tile is G groups (read streams)
// by MT rows of x.
#include <arm_neon.h>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_panels_neon.h"
#include "backend/cpu/matmul/matmul_tile_neon.h"
#include "tensor/formats/iq4_levels.h"

namespace sluice::cpu {
namespace {

// Sixteen codes as signed bytes: nibbles of `v`, and of 5 bits the top one, bit 4 half + u of
// `top`.
template <Format F>
[[gnu::always_inline]] inline int8x16_t unit_codes(uint8x16_t v, uint8x16_t top, int half, int u) {
  uint8x16_t q = half == 0 ? vandq_u8(v, vdupq_n_u8(15)) : vshrq_n_u8(v, 4);
  if constexpr (kHighBits<F> == 1) {
    const int8x16_t shift = vdupq_n_s8(static_cast<int8_t>(4 - u - half * 4));
    q = vorrq_u8(q, vandq_u8(vshlq_u8(top, shift), vdupq_n_u8(16)));
  }
  if constexpr (F == Format::iq4_nl) return vqtbl1q_s8(vld1q_s8(kIq4Levels), q);
  return vreinterpretq_s8_u8(q);
}

// tops: the block's high plane (5 bits).
template <Format F, int G, int MT>
[[gnu::always_inline]] inline void dot_block(const uint8_t* w,
                                             const uint8_t* tops,
                                             size_t panel,
                                             const int8_t* q,
                                             int64_t cols,
                                             Ints<G, MT>& idot) {
  SLUICE_UNROLL
  for (int half = 0; half < 2; ++half) {
    int8x16_t x[MT];
    load_x<MT>(q + half * 16, cols, x);
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      const uint8_t* p = w + g * panel;
      uint8x16_t top[2] = {};
      if constexpr (kHighBits<F> == 1) {
        top[0] = vld1q_u8(tops + g * panel);
        top[1] = vld1q_u8(tops + g * panel + 16);
      }
      const auto load = [&](int u, int h) __attribute__((always_inline)) {
        if constexpr (F == Format::q8_0) {
          return vreinterpretq_s8_u8(vld1q_u8(p + (half * 4 + u) * 32 + h * 16));
        } else {
          return unit_codes<F>(vld1q_u8(p + u * 32 + h * 16), top[h], half, u);
        }
      };
      dot_16<MT>(load, x, idot[g]);
    }
  }
}

// All but q6_k.
template <Format F, int G, int MT>
void block_tile(const Tile& t) {
  constexpr int kBytes = kLowBytes<F> * R;
  const PanelPlan plan = panel_plan<F, R>(t.cols);
  Floats<G, MT> acc;
  clear<G, MT>(acc);
  for (int64_t b = 0; b < plan.num_blocks; ++b) {
    Ints<G, MT> idot;
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      const int32_t start =
          kCodeOffset<F> == 0 ? 0 : -kCodeOffset<F> * t.sum[m * plan.num_blocks + b];
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) idot[g][m][0] = idot[g][m][1] = vdupq_n_s32(start);
    }
    dot_block<F, G, MT>(t.w + b * kBytes, t.w + plan.high + b * 4 * R, plan.bytes, t.q + b * 32,
                        t.cols, idot);
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      float32x4_t dw[2], mw[2];
      load_scales<F>(t.w + g * plan.bytes, plan, b, dw, mw);
      SLUICE_UNROLL
      for (int h = 0; h < 2; ++h) {
        SLUICE_UNROLL
        for (int m = 0; m < MT; ++m) {
          const int64_t at = m * plan.num_blocks + b;
          acc[g][m][h] = vfmaq_f32(acc[g][m][h], vmulq_n_f32(dw[h], t.scale[at]),
                                   vcvtq_f32_s32(idot[g][m][h]));
          if constexpr (kHasMin<F>) {
            const float32x4_t s = vdupq_n_f32(t.scale[at] * static_cast<float>(t.sum[at]));
            acc[g][m][h] = kSuperScales<F> ? vfmsq_f32(acc[g][m][h], mw[h], s)
                                           : vfmaq_f32(acc[g][m][h], mw[h], s);
          }
        }
      }
    }
  }
  store<G, MT>(t, acc);
}

// The kHalf-th sixteen columns of a q6_k block, for one group.
template <int kHalf, int MT>
[[gnu::always_inline]] inline void dot_q6_half(const uint8_t* low,
                                               const uint8_t* high,
                                               const int8x16_t (&x)[MT],
                                               int32x4_t (&idot)[MT][2]) {
  const uint8x16_t h[2] = {vld1q_u8(high + kHalf * 32), vld1q_u8(high + kHalf * 32 + 16)};
  const auto load = [&](int u, int i) __attribute__((always_inline)) {
    const uint8x16_t v = vld1q_u8(low + u * 32 + i * 16);
    const uint8x16_t bits = kHalf == 0 ? vandq_u8(v, vdupq_n_u8(15)) : vshrq_n_u8(v, 4);
    const uint8x16_t top = u == 0   ? vshlq_n_u8(h[i], 4)
                           : u == 1 ? vshlq_n_u8(h[i], 2)
                           : u == 2 ? h[i]
                                    : vshrq_n_u8(h[i], 2);
    const uint8x16_t q = vorrq_u8(bits, vandq_u8(top, vdupq_n_u8(48)));
    return vreinterpretq_s8_u8(vsubq_u8(q, vdupq_n_u8(32)));
  };
  dot_16<MT>(load, x, idot);
}

// The two scaled sixteens add up in f32 exactly: every value is an integer of at most 2^24.
template <int G, int MT>
void q6_tile(const Tile& t) {
  const PanelPlan plan = panel_plan<Format::q6_k, R>(t.cols);
  Floats<G, MT> acc;
  clear<G, MT>(acc);
  for (int64_t b = 0; b < plan.num_blocks; ++b) {
    int8x16_t x0[MT], x1[MT];
    load_x<MT>(t.q + b * 32, t.cols, x0);
    load_x<MT>(t.q + b * 32 + 16, t.cols, x1);
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      const uint8_t* panel = t.w + g * plan.bytes;
      const uint8_t* low = panel + b * 16 * R;
      const uint8_t* high = panel + plan.high + b * 8 * R;
      const float32x4x2_t s0 = load_i8(panel + plan.scale + b * 2 * R);
      const float32x4x2_t s1 = load_i8(panel + plan.scale + b * 2 * R + R);
      Ints<1, MT> d0, d1;
      clear<1, MT>(d0);
      clear<1, MT>(d1);
      dot_q6_half<0, MT>(low, high, x0, d0[0]);
      dot_q6_half<1, MT>(low, high, x1, d1[0]);
      SLUICE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const float32x4_t dw = load_f16(panel + plan.extra + b / 8 * 2 * R + h * 8);
        SLUICE_UNROLL
        for (int m = 0; m < MT; ++m) {
          const float32x4_t first = vmulq_f32(s0.val[h], vcvtq_f32_s32(d0[0][m][h]));
          const float32x4_t dot = vfmaq_f32(first, s1.val[h], vcvtq_f32_s32(d1[0][m][h]));
          const float dx = t.scale[m * plan.num_blocks + b];
          acc[g][m][h] = vfmaq_f32(acc[g][m][h], vmulq_n_f32(dw, dx), dot);
        }
      }
    }
  }
  store<G, MT>(t, acc);
}

template <Format F, int G, int MT>
constexpr TileFn tile_fn() {
  if constexpr (F == Format::q6_k) {
    return q6_tile<G, MT>;
  } else {
    return block_tile<F, G, MT>;
  }
}

template <Format F>
struct Kernel : NeonBlocks {
  template <int G, int MT>
  static constexpr TileFn tile = tile_fn<F, G, MT>();
};

template <Format F>
void run(const MatmulArgs& a) {
  run_tiles<Kernel<F>>(a, panel_plan<F, R>(a.cols).bytes, a.cols / 32);
}

}  // namespace

void matmul_neon_q8_0(const MatmulArgs& a) { run<Format::q8_0>(a); }
void matmul_neon_q4_0(const MatmulArgs& a) { run<Format::q4_0>(a); }
void matmul_neon_q4_1(const MatmulArgs& a) { run<Format::q4_1>(a); }
void matmul_neon_q6_k(const MatmulArgs& a) { run<Format::q6_k>(a); }
void matmul_neon_q5_0(const MatmulArgs& a) { run<Format::q5_0>(a); }
void matmul_neon_q5_1(const MatmulArgs& a) { run<Format::q5_1>(a); }
void matmul_neon_q4_k(const MatmulArgs& a) { run<Format::q4_k>(a); }
void matmul_neon_q5_k(const MatmulArgs& a) { run<Format::q5_k>(a); }
void matmul_neon_int4(const MatmulArgs& a) { run<Format::int4>(a); }
void matmul_neon_iq4_nl(const MatmulArgs& a) { run<Format::iq4_nl>(a); }

}  // namespace sluice::cpu
