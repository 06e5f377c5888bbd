// Shared by the f32_lanes16 kernels: those that read rows of W from the source, and those of u8.
// Each file that includes this has its own copy, compiled for its ISA.
#pragma once

#include <cstdint>
#include <cstring>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/pack_plan.h"

namespace sluice::cpu {
namespace {

constexpr int64_t kGroup = 16;  // rows of W

// Rows that follow each other with nothing between.
template <int kSize>
struct PlainRows {
  static constexpr int kBytes = kSize;
  static constexpr int kHead = 0;  // bytes before a row's elements
  struct Scale {};
  static Scale scale(const uint8_t*) { return {}; }
  static int64_t pitch(int64_t cols) { return cols * kSize; }
};

// Rows of bytes behind their scale and minimum.
struct U8Rows {
  static constexpr int kBytes = 1;
  static constexpr int kHead = kU8Head;
  struct Head {
    float scale, min;
  };
  static Head head(const uint8_t* row) {
    Head h;
    std::memcpy(&h, row, sizeof(h));
    return h;
  }
  static int64_t pitch(int64_t cols) { return u8_pitch(cols); }
};

// Elements and scales of rows [row, row + RT) of W; past the last row, of that one again.
template <typename W, int RT>
[[gnu::always_inline]] inline void find_rows(const MatmulArgs& a,
                                             int64_t row,
                                             const uint8_t* (&w)[RT],
                                             typename W::Scale (&scale)[RT]) {
  SLUICE_UNROLL
  for (int r = 0; r < RT; ++r) {
    const int64_t at = row + r < a.rows ? row + r : a.rows - 1;
    w[r] = static_cast<const uint8_t*>(a.w) + at * W::pitch(a.cols);
    scale[r] = W::scale(w[r]);
    w[r] += W::kHead;
  }
}

// How many rows of W a tile of x passes by at a time, in steps of `step`: it stays in the first
// cache while they, read once from memory, come from the second.
template <typename W>
[[gnu::always_inline]] inline int64_t rows_at_once(int64_t cols, int64_t step) {
  const int64_t fit = (int64_t{128} << 10) / (cols * W::kBytes) / step * step;
  return fit < step ? step : fit;
}

// ---- of vectors shorter than sixteen lanes: several are the lanes of an output's chain ----
// W::Lanes is the ISA's: Chain, the vectors of a chain; clear(chain); fold(chain), as f32_lanes16
// has it; step<W, RT, MT>, which adds sixteen columns.

// Rows [row, row + RT) of W that exist, for rows [m0, m0 + MT) of x.
template <typename W, int RT, int MT>
void chain_tile(const MatmulArgs& a, int64_t row, int64_t m0) {
  using Lanes = typename W::Lanes;
  const uint8_t* w[RT];
  typename W::Scale scale[RT];
  find_rows<W, RT>(a, row, w, scale);
  const float* x = a.x + m0 * a.x_stride;
  typename Lanes::Chain acc[RT][MT];
  SLUICE_UNROLL
  for (int r = 0; r < RT; ++r) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) Lanes::clear(acc[r][m]);
  }
  int64_t k = 0;
  for (; k + 16 <= a.cols; k += 16) {
    Lanes::template step<W, RT, MT>(w, scale, k * W::kBytes, x + k, a.x_stride, acc);
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
    Lanes::template step<W, RT, MT>(tails, scale, 0, x_tail[0], 16, acc);
  }
  SLUICE_UNROLL
  for (int r = 0; r < RT; ++r) {
    if (row + r >= a.rows) break;
    const float bias = a.bias ? a.bias[row + r] : 0;
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      a.out[(m0 + m) * a.out_stride + row + r] = Lanes::fold(acc[r][m]) + bias;
    }
  }
}

template <typename W>
void run_chains(const MatmulArgs& a) {
  const int64_t end = a.group_end * kGroup < a.rows ? a.group_end * kGroup : a.rows;
  if (a.m == 1) {
    for (int64_t r = a.group_begin * kGroup; r < end; r += 4) chain_tile<W, 4, 1>(a, r, 0);
    return;
  }
  const int64_t rows = rows_at_once<W>(a.cols, 2);
  for (int64_t r0 = a.group_begin * kGroup; r0 < end; r0 += rows) {
    const int64_t r1 = r0 + rows < end ? r0 + rows : end;
    for (int64_t m0 = 0; m0 < a.m;) {
      const bool three = m0 == 0 && a.m % 2 != 0;
      for (int64_t r = r0; r < r1; r += 2) {
        if (three) {
          chain_tile<W, 2, 3>(a, r, m0);
        } else {
          chain_tile<W, 2, 2>(a, r, m0);
        }
      }
      m0 += three ? 3 : 2;
    }
  }
}

}  // namespace
}  // namespace sluice::cpu
