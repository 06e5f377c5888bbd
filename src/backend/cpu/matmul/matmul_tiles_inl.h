// How the integer kernels that read panels of pack_plan.h cut a call into register tiles. Each file
// that includes this has its own copy, compiled for its ISA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "backend/cpu/matmul/matmul_kernels.h"

namespace sluice::cpu {
namespace {

// What one tile computes: some groups of W by some rows of x.
struct Tile {
  const uint8_t* w;    // first group's panel
  const int8_t* q;     // first row's activations
  const float* scale;  // first row's
  const int32_t* sum;  // likewise
  const int16_t* sum16;
  float* out;         // first row, first group's first column
  const float* bias;  // first group's, or null
  int64_t cols;
  int64_t out_stride;
  int64_t rows_left;    // rows of W from the first group's on
  int64_t m;            // rows of x
  const uint8_t* next;  // memory that the next tiles read: num_next lines of it for 32 columns
  int num_next;
};

using TileFn = void (*)(const Tile&);

// Weights of the next groups come from memory while block b of a tile is computed: without it the
// two take turns, since a tile of several rows outlasts what the processor looks ahead.
[[gnu::always_inline]] inline void prefetch(const Tile& t, int64_t b) {
  const uint8_t* p = t.next + b * t.num_next * 64;
  for (int i = 0; i < t.num_next; ++i) __builtin_prefetch(p + i * 64, 0, 2);
}

// N rows of x, or of their scales, read side by side from left to right; P share a pointer, since
// an address may be a pointer plus a stride or twice that. GCC must not see how the pointers are
// related, or it keeps an index for each row and offset and loads them from the stack (up to a
// quarter of a product's time). P = 0 leaves it all to the compiler.
template <typename T, int N, int P = 3>
struct Rows {
  static constexpr int kShare = P == 0 ? N : P, kPointers = (N + kShare - 1) / kShare;
  const T* at[kPointers];
  int64_t stride;

  [[gnu::always_inline]] Rows(const T* first, int64_t row_stride) : stride(row_stride) {
    SLUICE_UNROLL
    for (int i = 0; i < kPointers; ++i) at[i] = first + i * kShare * stride;
    hide();
  }
  [[gnu::always_inline]] const T* row(int i) const { return at[i / kShare] + i % kShare * stride; }
  [[gnu::always_inline]] void advance(int n) {
    SLUICE_UNROLL
    for (int i = 0; i < kPointers; ++i) at[i] += n;
    hide();
  }
  [[gnu::always_inline]] void hide() {
    if constexpr (P != 0) {
      SLUICE_UNROLL
      for (int i = 0; i < kPointers; ++i) __asm__("" : "+r"(at[i]));
    }
  }
};

// The heights of tiles, in rows of x (pairs of them for SMMLA), that keep their accumulators in
// registers beside one group, two and four.
struct Heights {
  int one, two, four;
};

template <typename Kernel, int G, int... H>
TileFn pick(int64_t height, std::integer_sequence<int, H...>) {
  static constexpr TileFn kTiles[] = {Kernel::template tile<G, H + 1>...};
  return kTiles[height - 1];
}

template <typename Kernel>
TileFn pick(int groups, int64_t height) {
  constexpr Heights kMost = Kernel::kMost;
  if (groups == 4) return pick<Kernel, 4>(height, std::make_integer_sequence<int, kMost.four>());
  if (groups == 2) return pick<Kernel, 2>(height, std::make_integer_sequence<int, kMost.two>());
  return pick<Kernel, 1>(height, std::make_integer_sequence<int, kMost.one>());
}

// Runs a kernel's tiles over all of a call: rows of x in tiles of nearly equal height, and as many
// groups at a time as that height allows, then two, then one. panel: bytes of a group; scales: of a
// row of x. A Kernel has the tiles tile<groups, height>, and
//   kRows  rows of W in a group
//   kStep  rows of x that count as one
//   kMost  heights up to which it has tiles; `most`: those to use, no larger
template <typename Kernel>
[[gnu::always_inline]] inline void run_tiles(const MatmulArgs& a,
                                             size_t panel,
                                             int64_t scales,
                                             Heights most = Kernel::kMost) {
  constexpr int64_t R = Kernel::kRows, kStep = Kernel::kStep;
  const int64_t steps = (a.m + kStep - 1) / kStep;
  const int64_t tiles = (steps + most.one - 1) / most.one;
  const int64_t highest = (steps + tiles - 1) / tiles;
  const int wide = highest <= most.four ? 4 : highest <= most.two ? 2 : 1;
  const int64_t blocks = tiles * (a.cols / 32);
  for (int64_t g = a.group_begin; g < a.group_end;) {
    const int64_t left = a.group_end - g;
    const int groups = left >= wide ? wide : left >= 2 ? 2 : 1;
    const uint8_t* w = static_cast<const uint8_t*>(a.w) + static_cast<size_t>(g) * panel;
    // Every tile fetches its share of the next groups.
    const int64_t next_groups = left - groups < wide ? left - groups : wide;
    const int64_t lines = (next_groups * static_cast<int64_t>(panel) / 64 + blocks - 1) / blocks;
    const uint8_t* next = w + static_cast<size_t>(groups) * panel;
    for (int64_t i = 0, m0 = 0; i < tiles; ++i) {
      const int64_t height = steps / tiles + (i < steps % tiles ? 1 : 0);
      const int64_t m = height * kStep < a.m - m0 ? height * kStep : a.m - m0;
      const Tile t{w,
                   a.q + m0 * a.cols,
                   a.scale + m0 * scales,
                   a.sum ? a.sum + m0 * scales : nullptr,
                   a.sum16 ? a.sum16 + m0 * (a.cols / 16) : nullptr,
                   a.out + m0 * a.out_stride + g * R,
                   a.bias ? a.bias + g * R : nullptr,
                   a.cols,
                   a.out_stride,
                   a.rows - g * R,
                   m,
                   next,
                   static_cast<int>(lines)};
      pick<Kernel>(groups, height)(t);
      next += a.cols / 32 * lines * 64;
      m0 += m;
    }
    g += groups;
  }
}

// The same for an int_super format: KernelOf<F> over its panels.
template <template <Format> typename KernelOf, Format F>
void run_supers(const MatmulArgs& a) {
  using Kernel = KernelOf<F>;
  run_tiles<Kernel>(a, panel_plan<F, Kernel::kRows>(a.cols).bytes, a.cols / 256);
}

}  // namespace
}  // namespace sluice::cpu
