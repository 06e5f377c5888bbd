// f32_lanes16 kernels for NEON: four vectors are the sixteen lanes of an output's chain. A tile is
// RT rows of W (read streams) by MT rows of x. Weights are widened in registers.
#include <arm_neon.h>

#include "backend/cpu/matmul/matmul_float_inl.h"
#include "backend/cpu/matmul/matmul_kernels.h"

namespace sluice::cpu {
namespace {

struct NeonLanes {
  using Chain = float32x4_t[4];

  [[gnu::always_inline]] static void clear(Chain& v) {
    SLUICE_UNROLL
    for (int i = 0; i < 4; ++i) v[i] = vdupq_n_f32(0);
  }

  // Lanes i + 8, i + 4, i + 2, i + 1.
  [[gnu::always_inline]] static float fold(const Chain& v) {
    const float32x4_t s4 = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
    const float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
    return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
  }

  // acc += sixteen columns; w and x point at them, `x_stride` apart for the rows of x.
  template <typename W, int RT, int MT>
  [[gnu::always_inline]] static void step(const uint8_t* const (&w)[RT],
                                          const typename W::Scale (&scale)[RT],
                                          int64_t offset,
                                          const float* x,
                                          int64_t x_stride,
                                          Chain (&acc)[RT][MT]) {
    SLUICE_UNROLL
    for (int v = 0; v < 4; ++v) {
      float32x4_t wv[RT];
      SLUICE_UNROLL
      for (int r = 0; r < RT; ++r) wv[r] = W::load(w[r] + offset + v * 4 * W::kBytes, scale[r]);
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) {
        const float32x4_t xv = vld1q_f32(x + m * x_stride + v * 4);
        SLUICE_UNROLL
        for (int r = 0; r < RT; ++r) acc[r][m][v] = vfmaq_f32(acc[r][m][v], wv[r], xv);
      }
      hold_loads();
    }
  }
};

struct F32 : PlainRows<4> {
  using Lanes = NeonLanes;
  static float32x4_t load(const uint8_t* p, Scale) { return vreinterpretq_f32_u8(vld1q_u8(p)); }
};
struct F16 : PlainRows<2> {
  using Lanes = NeonLanes;
  static float32x4_t load(const uint8_t* p, Scale) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
  }
};
struct BF16 : PlainRows<2> {
  using Lanes = NeonLanes;
  static float32x4_t load(const uint8_t* p, Scale) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
  }
};
struct U8 : U8Rows {
  using Lanes = NeonLanes;
  struct Scale {
    float32x4_t scale, min;
  };
  static Scale scale(const uint8_t* row) {
    const Head h = head(row);
    return {vdupq_n_f32(h.scale), vdupq_n_f32(h.min)};
  }
  static float32x4_t load(const uint8_t* p, const Scale& s) {
    uint32_t four;
    std::memcpy(&four, p, 4);
    const uint16x8_t wide = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)));
    return vfmaq_f32(s.min, vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), s.scale);
  }
};

}  // namespace

void matmul_neon_u8(const MatmulArgs& a) { run_chains<U8>(a); }
void matmul_neon_f32(const MatmulArgs& a) { run_chains<F32>(a); }
void matmul_neon_f16(const MatmulArgs& a) { run_chains<F16>(a); }
void matmul_neon_bf16(const MatmulArgs& a) { run_chains<BF16>(a); }

}  // namespace sluice::cpu
