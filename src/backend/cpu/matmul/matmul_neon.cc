// int_block32 kernels for NEON with SDOT. A group is 8 rows: two vectors whose lanes are rows; SDOT
// by element multiplies four columns of four rows with four of x. A tile is G groups (read streams)
// by MT rows of x.
#include <arm_neon.h>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_panels_neon.h"
#include "backend/cpu/matmul/matmul_tile_neon.h"
#include "backend/cpu/matmul/matmul_units_neon.h"

namespace sluice::cpu {
namespace {

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
    SLUICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      int8x16_t x[MT];
      load_x<MT>(t.q + b * 32 + half * 16, t.cols, x);
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) {
        const uint8_t* panel = t.w + g * plan.bytes;
        dot_half<F, MT>(panel + b * kBytes, panel + plan.high + b * 4 * R, half, x, idot[g]);
      }
    }
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
            acc[g][m][h] = vfmaq_f32(acc[g][m][h], mw[h], s);
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
  run_tiles<Kernel<F>>(a, panel_plan<F, R>(a.cols).bytes, a.cols / 32);
}

}  // namespace

void matmul_neon_q8_0(const MatmulArgs& a) { run<Format::q8_0>(a); }
void matmul_neon_q4_0(const MatmulArgs& a) { run<Format::q4_0>(a); }
void matmul_neon_q4_1(const MatmulArgs& a) { run<Format::q4_1>(a); }
void matmul_neon_q5_0(const MatmulArgs& a) { run<Format::q5_0>(a); }
void matmul_neon_q5_1(const MatmulArgs& a) { run<Format::q5_1>(a); }
void matmul_neon_int4(const MatmulArgs& a) { run<Format::int4>(a); }
void matmul_neon_iq4_nl(const MatmulArgs& a) { run<Format::iq4_nl>(a); }
void matmul_neon_mxfp4(const MatmulArgs& a) { run<Format::mxfp4>(a); }

}  // namespace sluice::cpu
