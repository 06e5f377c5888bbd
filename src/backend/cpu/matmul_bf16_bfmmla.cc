// bf16_quads kernels for BFMMLA, at every number of rows. A group is 8 rows in four pairs; a vector
// is 2 rows by 4 columns. BFMMLA adds the 2 x 2 products with a pair of rows of x, lanes (w0x0,
// w0x1, w1x0, w1x1), two columns after the other: each lane is an output's own chain. A tile is G
// groups (read streams) by PT pairs of rows of x: 16 x 6 has 24 accumulators, and four columns of
// it are 24 BFMMLA to 11 loads. One row alone is paired with zeros: half of what BFMMLA does is
// thrown away, but a vector of weights still takes longer to arrive than its one instruction.
//
// Rows of x are rounded to bf16 and laid out in pairs once per call and range of K. Where several
// tiles share weights, a range is short enough for the first-level cache; between ranges sums wait
// in `out`.
#include <arm_neon.h>

#include "backend/cpu/matmul_kernels.h"

namespace sluice::cpu {
namespace {

constexpr int R = 8;
constexpr int kPairs = R / 2;
constexpr int64_t kMaxPairs = 3;    // of rows of x in a tile
constexpr int64_t kMaxRows = 128;   // of x at once
constexpr int64_t kRange = 256;     // quads of K: 32 KiB of two groups' weights, 12 KiB of x
constexpr int64_t kQuadBytes = 64;  // of a group
constexpr int64_t kMaxUnits = kMaxRows / 2 * kRange;

// Four columns of a pair of rows of x.
struct alignas(16) Unit {
  uint16_t q[2][kQuad];
};

// One tile's place.
struct Tile {
  const uint8_t* w;  // first group's panel, from the range's first quad on
  size_t panel;      // bytes from group to group
  const Unit* x;     // [quad][pair]
  int64_t quads;
  int64_t m;          // rows of x
  float* out;         // first row, first group's first column
  const float* bias;  // first group's, or null
  int64_t out_stride;
  int64_t rows_left;  // rows of W from the first group's on
  bool first, last;   // range of K
};

[[gnu::always_inline]] inline bfloat16x8_t load(const void* p) {
  return vreinterpretq_bf16_u8(vld1q_u8(static_cast<const uint8_t*>(p)));
}

// Sums of an earlier range: rows [at, at + 4) of W for one row of x, zeros where there is none.
[[gnu::always_inline]] inline float32x4_t take4(const Tile& t, int64_t row, int64_t at) {
  const float* out = t.out + row * t.out_stride + at;
  if (row < t.m && t.rows_left >= at + 4) return vld1q_f32(out);
  float lanes[4] = {};
  for (int64_t i = 0; row < t.m && i < t.rows_left - at; ++i) lanes[i] = out[i];
  return vld1q_f32(lanes);
}

[[gnu::always_inline]] inline void put4(const Tile& t, int64_t row, int64_t at, float32x4_t v) {
  if (row >= t.m) return;
  float* out = t.out + row * t.out_stride + at;
  const float* bias = t.last && t.bias ? t.bias + at : nullptr;
  if (t.rows_left >= at + 4) {
    vst1q_f32(out, bias ? vaddq_f32(v, vld1q_f32(bias)) : v);
  } else {
    float lanes[4];
    vst1q_f32(lanes, v);
    for (int64_t i = 0; i < t.rows_left - at; ++i) out[i] = bias ? lanes[i] + bias[i] : lanes[i];
  }
}

template <int G, int PT>
[[gnu::noinline]] void product(const Tile& t) {
  const size_t panel = t.panel;  // in registers: hold_loads() makes t be read again
  const uint8_t* w = t.w;
  const Unit* x = t.x;
  float32x4_t acc[G][kPairs][PT];
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int p = 0; p < kPairs; ++p) {
      SLUICE_UNROLL
      for (int i = 0; i < PT; ++i) acc[g][p][i] = vdupq_n_f32(0);
    }
  }
  if (!t.first) {
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      SLUICE_UNROLL
      for (int h = 0; h < 2; ++h) {
        SLUICE_UNROLL
        for (int i = 0; i < PT; ++i) {
          const float32x4_t a = take4(t, 2 * i, g * R + h * 4);
          const float32x4_t b = take4(t, 2 * i + 1, g * R + h * 4);
          acc[g][2 * h][i] = vzip1q_f32(a, b);
          acc[g][2 * h + 1][i] = vzip2q_f32(a, b);
        }
      }
    }
  }
  const uint8_t* const end = w + t.quads * kQuadBytes;
  for (; w != end; w += kQuadBytes, x += PT) {
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
    for (int h = 0; h < 2; ++h) {
      SLUICE_UNROLL
      for (int i = 0; i < PT; ++i) {
        const float32x4_t a = acc[g][2 * h][i], b = acc[g][2 * h + 1][i];
        put4(t, 2 * i, g * R + h * 4, vuzp1q_f32(a, b));
        put4(t, 2 * i + 1, g * R + h * 4, vuzp2q_f32(a, b));
      }
    }
  }
}

void multiply(int groups, int64_t pairs, const Tile& t) {
  if (groups == 4) return product<4, 1>(t);
  if (groups == 2) {
    return pairs == 1 ? product<2, 1>(t) : pairs == 2 ? product<2, 2>(t) : product<2, 3>(t);
  }
  return pairs == 1 ? product<1, 1>(t) : pairs == 2 ? product<1, 2>(t) : product<1, 3>(t);
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
    const MatmulArgs& a, int64_t m0, int64_t pairs, int64_t q0, int64_t quads, Unit* to) {
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

// Rows [m0, m0 + rows) of x, at most kMaxRows.
void run_rows(const MatmulArgs& a, int64_t m0, int64_t rows, Unit* x) {
  const size_t panel = bf16_panel_bytes<R, kQuad>(a.cols);
  const int64_t pairs = (rows + 1) / 2;
  const int64_t tiles = (pairs + kMaxPairs - 1) / kMaxPairs;
  const auto pairs_of = [&](int64_t i) { return pairs / tiles + (i < pairs % tiles ? 1 : 0); };
  const int64_t all_quads = (a.cols + kQuad - 1) / kQuad;
  const int64_t at_once = tiles == 1 ? kMaxUnits / pairs : kRange;
  const int wide = pairs == 1 ? 4 : 2;
  for (int64_t q0 = 0; q0 < all_quads; q0 += at_once) {
    const int64_t quads = all_quads - q0 < at_once ? all_quads - q0 : at_once;
    for (int64_t i = 0, pair = 0; i < tiles; pair += pairs_of(i++)) {
      lay_out_x(a, m0 + 2 * pair, pairs_of(i), q0, quads, x + pair * quads);
    }
    for (int64_t g = a.group_begin; g < a.group_end;) {
      const int64_t left = a.group_end - g;
      const int groups = left >= wide ? wide : left >= 2 ? 2 : 1;
      for (int64_t i = 0, pair = 0; i < tiles; pair += pairs_of(i++)) {
        const int64_t row = m0 + 2 * pair, m = rows - 2 * pair;
        multiply(groups, pairs_of(i),
                 {static_cast<const uint8_t*>(a.w) + static_cast<size_t>(g) * panel +
                      static_cast<size_t>(q0 * kQuadBytes),
                  panel, x + pair * quads, quads, m < 2 * pairs_of(i) ? m : 2 * pairs_of(i),
                  a.out + row * a.out_stride + g * R, a.bias ? a.bias + g * R : nullptr,
                  a.out_stride, a.rows - g * R, q0 == 0, q0 + quads == all_quads});
      }
      g += groups;
    }
  }
}

}  // namespace

void matmul_bfmmla_bf16(const MatmulArgs& a) {
  Unit x[kMaxUnits];  // [tile][quad][pair]
  const int64_t pairs = (a.m + 1) / 2;
  const int64_t chunks = (pairs + kMaxRows / 2 - 1) / (kMaxRows / 2);
  for (int64_t i = 0; i < chunks; ++i) {
    const int64_t begin = 2 * (pairs * i / chunks), end = 2 * (pairs * (i + 1) / chunks);
    run_rows(a, begin, (end < a.m ? end : a.m) - begin, x);
  }
}

}  // namespace sluice::cpu
