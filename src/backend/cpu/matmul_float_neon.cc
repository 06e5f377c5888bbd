// f32_lanes16 kernels for NEON: four vectors are the sixteen lanes of an output's chain. A tile is
// RT rows of W (read streams) by MT rows of x. Weights are widened in registers.
#include <arm_neon.h>

#include "backend/cpu/matmul_kernels.h"

namespace sluice::cpu {
namespace {

constexpr int kGroup = 16;

// Rows that follow each other with nothing between.
template <int kSize>
struct Plain {
  static constexpr int kBytes = kSize;
  static constexpr int kHead = 0;  // bytes before a row's elements
  struct Scale {};
  static Scale scale(const uint8_t*) { return {}; }
  static int64_t pitch(int64_t cols) { return cols * kSize; }
};

struct F32 : Plain<4> {
  static float32x4_t load(const uint8_t* p, Scale) { return vreinterpretq_f32_u8(vld1q_u8(p)); }
};
struct F16 : Plain<2> {
  static float32x4_t load(const uint8_t* p, Scale) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
  }
};
struct BF16 : Plain<2> {
  static float32x4_t load(const uint8_t* p, Scale) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
  }
};
struct U8 {
  static constexpr int kBytes = 1;
  static constexpr int kHead = kU8Head;
  struct Scale {
    float32x4_t scale, min;
  };
  static Scale scale(const uint8_t* row) {
    float head[2];
    std::memcpy(head, row, sizeof(head));
    return {vdupq_n_f32(head[0]), vdupq_n_f32(head[1])};
  }
  static int64_t pitch(int64_t cols) { return u8_pitch(cols); }
  static float32x4_t load(const uint8_t* p, const Scale& s) {
    uint32_t four;
    std::memcpy(&four, p, 4);
    const uint16x8_t wide = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)));
    return vfmaq_f32(s.min, vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), s.scale);
  }
};

// Lanes i + 8, i + 4, i + 2, i + 1.
[[gnu::always_inline]] inline float fold(const float32x4_t (&v)[4]) {
  const float32x4_t s4 = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
  const float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
  return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
}

// acc += sixteen columns; w and x point at them, `x_stride` apart for the rows of x.
template <typename W, int RT, int MT>
[[gnu::always_inline]] inline void step(const uint8_t* const (&w)[RT],
                                        const typename W::Scale (&scale)[RT],
                                        int64_t offset,
                                        const float* x,
                                        int64_t x_stride,
                                        float32x4_t (&acc)[RT][MT][4]) {
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

template <typename W, int RT, int MT>
void tile(const MatmulArgs& a, int64_t row, int64_t m0) {
  const uint8_t* w[RT];
  typename W::Scale scale[RT];
  SLUICE_UNROLL
  for (int r = 0; r < RT; ++r) {
    const int64_t at = row + r < a.rows ? row + r : a.rows - 1;
    w[r] = static_cast<const uint8_t*>(a.w) + at * W::pitch(a.cols);
    scale[r] = W::scale(w[r]);
    w[r] += W::kHead;
  }
  const float* x = a.x + m0 * a.x_stride;
  float32x4_t acc[RT][MT][4];
  SLUICE_UNROLL
  for (int r = 0; r < RT; ++r) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      SLUICE_UNROLL
      for (int v = 0; v < 4; ++v) acc[r][m][v] = vdupq_n_f32(0);
    }
  }
  int64_t k = 0;
  for (; k + 16 <= a.cols; k += 16) {
    step<W, RT, MT>(w, scale, k * W::kBytes, x + k, a.x_stride, acc);
  }
  if (k < a.cols) {  // the rest, padded with zeros
    const auto left = static_cast<size_t>(a.cols - k);
    uint8_t tail[RT][16 * W::kBytes] = {};
    float x_tail[MT][16] = {};
    const uint8_t* tails[RT];
    for (int r = 0; r < RT; ++r) {
      std::memcpy(tail[r], w[r] + k * W::kBytes, left * W::kBytes);
      tails[r] = tail[r];
    }
    for (int m = 0; m < MT; ++m) std::memcpy(x_tail[m], x + m * a.x_stride + k, left * 4);
    step<W, RT, MT>(tails, scale, 0, x_tail[0], 16, acc);
  }
  SLUICE_UNROLL
  for (int r = 0; r < RT; ++r) {
    if (row + r >= a.rows) break;
    const float bias = a.bias ? a.bias[row + r] : 0;
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      a.out[(m0 + m) * a.out_stride + row + r] = fold(acc[r][m]) + bias;
    }
  }
}

template <typename W>
void run(const MatmulArgs& a) {
  const int64_t end = a.group_end * kGroup < a.rows ? a.group_end * kGroup : a.rows;
  if (a.m == 1) {
    for (int64_t r = a.group_begin * kGroup; r < end; r += 4) tile<W, 4, 1>(a, r, 0);
    return;
  }
  // A tile of x stays in the first cache while a few rows of W, read once from memory, pass by from
  // the second.
  const int64_t fit = (int64_t{128} << 10) / (a.cols * W::kBytes) / 2 * 2;
  const int64_t rows = fit < 2 ? 2 : fit;
  for (int64_t r0 = a.group_begin * kGroup; r0 < end; r0 += rows) {
    const int64_t r1 = r0 + rows < end ? r0 + rows : end;
    for (int64_t m0 = 0; m0 < a.m;) {
      const bool three = m0 == 0 && a.m % 2 != 0;
      for (int64_t r = r0; r < r1; r += 2) {
        if (three) {
          tile<W, 2, 3>(a, r, m0);
        } else {
          tile<W, 2, 2>(a, r, m0);
        }
      }
      m0 += three ? 3 : 2;
    }
  }
}

}  // namespace

void matmul_neon_u8(const MatmulArgs& a) { run<U8>(a); }
void matmul_neon_f32(const MatmulArgs& a) { run<F32>(a); }
void matmul_neon_f16(const MatmulArgs& a) { run<F16>(a); }
void matmul_neon_bf16(const MatmulArgs& a) { run<BF16>(a); }

}  // namespace sluice::cpu
