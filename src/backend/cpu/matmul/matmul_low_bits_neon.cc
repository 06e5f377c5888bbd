// int_block32 kernels of q2_k and q3_k for NEON with SDOT. A group is 8 rows: two vectors whose
// lanes are rows. A tile is G groups (read streams) by MT rows of x. Each sixteen columns of a
// block have their own scale, which their dot is multiplied by in integers.
#include <arm_neon.h>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_panels_neon.h"
#include "backend/cpu/matmul/matmul_tile_neon.h"

namespace sluice::cpu {
namespace {

// The kHalf-th sixteen columns of a block of one group.
template <Format F, int kHalf, int MT>
[[gnu::always_inline]] inline void dot_half(const uint8_t* codes,
                                            const uint8_t* tops,
                                            const int8x16_t (&x)[MT],
                                            int32x4_t (&idot)[MT][2]) {
  const uint8x16_t v[2] = {vld1q_u8(codes + kHalf * 32), vld1q_u8(codes + kHalf * 32 + 16)};
  uint8x16_t top[2] = {};
  if constexpr (kThreeBits<F>) {
    top[0] = vld1q_u8(tops);
    top[1] = vld1q_u8(tops + 16);
  }
  const auto load = [&](int u, int i) __attribute__((always_inline)) {
    const uint8x16_t low = vshlq_u8(v[i], vdupq_n_s8(static_cast<int8_t>(-2 * u)));
    if constexpr (kThreeBits<F>) {
      const int8x16_t down = vdupq_n_s8(static_cast<int8_t>(-low_bit_top<4>(kHalf * 4 + u)));
      const uint8x16_t q = vsliq_n_u8(low, vshlq_u8(top[i], down), 2);
      return vreinterpretq_s8_u8(vsubq_u8(vandq_u8(q, vdupq_n_u8(7)), vdupq_n_u8(4)));
    } else {
      return vreinterpretq_s8_u8(vandq_u8(low, vdupq_n_u8(3)));
    }
  };
  dot_16<MT>(load, x, idot);
}

template <Format F, int G, int MT>
void block_tile(const Tile& t) {
  const LowBitPlan plan = low_bit_plan<F, R>(t.cols);
  Floats<G, MT> acc;
  clear<G, MT>(acc);
  for (int64_t b = 0; b < plan.num_blocks; ++b) {
    int8x16_t x0[MT], x1[MT];
    load_x<MT>(t.q + b * 32, t.cols, x0);
    load_x<MT>(t.q + b * 32 + 16, t.cols, x1);
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      const uint8_t* panel = t.w + g * plan.bytes;
      const uint8_t* codes = panel + b * 8 * R;
      const uint8_t* tops = panel + plan.top + b * 4 * R;
      const uint8_t* super = panel + plan.extra + b / 8 * (kThreeBits<F> ? 2 : 4) * R;
      Ints<1, MT> d0, d1;
      clear<1, MT>(d0);
      clear<1, MT>(d1);
      dot_half<F, 0, MT>(codes, tops, x0, d0[0]);
      dot_half<F, 1, MT>(codes, tops, x1, d1[0]);
      const NeonLowBitScales s = load_scales<F>(panel, plan, b);
      SLUICE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const float32x4_t dw = load_f16(super + h * 8);
        SLUICE_UNROLL
        for (int m = 0; m < MT; ++m) {
          const int32x4_t first = vmulq_s32(d0[0][m][h], s.scale[0].val[h]);
          const int32x4_t dot = vmlaq_s32(first, d1[0][m][h], s.scale[1].val[h]);
          const float dx = t.scale[m * plan.num_blocks + b];
          if constexpr (kThreeBits<F>) {
            acc[g][m][h] = vfmaq_f32(acc[g][m][h], vmulq_n_f32(dw, dx), vcvtq_f32_s32(dot));
          } else {
            const int32x4_t sum = vmlaq_n_s32(vmulq_n_s32(s.min[0].val[h], vaddlvq_s8(x0[m])),
                                              s.min[1].val[h], vaddlvq_s8(x1[m]));
            const float32x4_t dmin = load_f16(super + 2 * R + h * 8);
            const float32x4_t scaled = vmulq_f32(dw, vcvtq_f32_s32(dot));
            acc[g][m][h] =
                vfmaq_n_f32(acc[g][m][h], vfmsq_f32(scaled, dmin, vcvtq_f32_s32(sum)), dx);
          }
        }
      }
    }
  }
  store<G, MT>(t, acc);
}

template <Format F>
struct Kernel : NeonBlocks {
  template <int G, int MT>
  static constexpr TileFn tile = block_tile<F, G, MT>;
};

template <Format F>
void run(const MatmulArgs& a) {
  run_tiles<Kernel<F>>(a, low_bit_plan<F, R>(a.cols).bytes, a.cols / 32);
}

}  // namespace

void matmul_neon_q2_k(const MatmulArgs& a) { run<Format::q2_k>(a); }
void matmul_neon_q3_k(const MatmulArgs& a) { run<Format::q3_k>(a); }

}  // namespace sluice::cpu
