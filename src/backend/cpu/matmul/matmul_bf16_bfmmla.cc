// bf16_quads kernels for BFMMLA, at every number of rows. A group is 8 rows in four pairs; a vector
// is 2 rows by 4 columns. BFMMLA adds the 2 x 2 products with a pair of rows of x, lanes (w0x0,
// w0x1, w1x0, w1x1), two columns after the other: each lane is an output's own chain. A tile is G
// groups (read streams) by PT pairs of rows of x: 16 x 6 has 24 accumulators, and four columns of
// it are 24 BFMMLA to 11 loads. One row alone is paired with zeros: half of what BFMMLA does is
// thrown away, but a vector of weights still takes longer to arrive than its one instruction. Rows
// of x are rounded to bf16 where they are laid out in pairs.
#include <arm_neon.h>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_pairs_neon.h"

namespace sluice::cpu {
namespace {

constexpr int R = kPairRows;
constexpr int kPairs = R / 2;

[[gnu::always_inline]] inline bfloat16x8_t load(const void* p) {
  return vreinterpretq_bf16_u8(vld1q_u8(static_cast<const uint8_t*>(p)));
}

template <int G, int PT>
[[gnu::noinline]] void product(const PairTile& t) {
  const size_t panel = t.panel;  // in registers: hold_loads() makes t be read again
  const uint8_t* w = t.w;
  const PairUnit* x = t.x;
  float32x4_t acc[G][kPairs][PT];
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int p = 0; p < kPairs; ++p) {
      SLUICE_UNROLL
      for (int i = 0; i < PT; ++i) acc[g][p][i] = vdupq_n_f32(0);
    }
  }
  float32x4_t pair[kPairs];
  if (!t.to.first) {
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      SLUICE_UNROLL
      for (int i = 0; i < PT; ++i) {
        t.to.take_pair(i, g * R, pair);
        SLUICE_UNROLL
        for (int p = 0; p < kPairs; ++p) acc[g][p][i] = pair[p];
      }
    }
  }
  const uint8_t* const end = w + t.units * kGroupUnitBytes;
  for (; w != end; w += kGroupUnitBytes, x += PT) {
    bfloat16x8_t xv[PT];
    SLUICE_UNROLL
    for (int i = 0; i < PT; ++i) xv[i] = load(x + i);
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      SLUICE_UNROLL
      for (int p = 0; p < kPairs; ++p) {
        const bfloat16x8_t wv = load(w + g * panel + p * 16);
        SLUICE_UNROLL
        for (int i = 0; i < PT; ++i) acc[g][p][i] = vbfmmlaq_f32(acc[g][p][i], wv, xv[i]);
      }
      hold_loads();
    }
  }
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int i = 0; i < PT; ++i) {
      SLUICE_UNROLL
      for (int p = 0; p < kPairs; ++p) pair[p] = acc[g][p][i];
      t.to.put_pair(i, g * R, pair);
    }
  }
}

// Columns [k, k + 4) of a row, zeros past the last.
[[gnu::always_inline]] inline float32x4_t load_x(const float* row, int64_t k, int64_t cols) {
  if (k + kQuad <= cols) return vld1q_f32(row + k);
  float lanes[kQuad] = {};
  for (int64_t i = 0; k + i < cols; ++i) lanes[i] = row[k + i];
  return vld1q_f32(lanes);
}

// Quads [q0, q0 + quads) of rows [m0, m0 + 2 pairs) as one tile's units; zeros from row a.m on.
void lay_out_x(
    const MatmulArgs& a, int64_t m0, int64_t pairs, int64_t q0, int64_t quads, PairUnit* to) {
  for (int64_t i = 0; i < pairs; ++i) {
    const int64_t row = m0 + 2 * i;
    const float* x0 = a.x + row * a.x_stride;
    const bool two = row + 1 < a.m;
    const float* x1 = two ? x0 + a.x_stride : x0;
    for (int64_t k = 0; k < quads; ++k) {
      const int64_t at = (q0 + k) * kQuad;
      const float32x4_t v0 = load_x(x0, at, a.cols);
      const float32x4_t v1 = two ? load_x(x1, at, a.cols) : vdupq_n_f32(0);
      const bfloat16x8_t both = vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(v0), v1);
      vst1q_u8(reinterpret_cast<uint8_t*>(to + k * pairs + i), vreinterpretq_u8_bf16(both));
    }
  }
}

struct Kernel {
  template <int G, int PT>
  static constexpr void (*tile)(const PairTile&) = product<G, PT>;
  static constexpr auto* lay_out = lay_out_x;
};

}  // namespace

void matmul_bfmmla_bf16(const MatmulArgs& a) {
  run_pairs<Kernel>(a, bf16_panel_bytes<R, kQuad>(a.cols), (a.cols + kQuad - 1) / kQuad);
}

}  // namespace sluice::cpu
