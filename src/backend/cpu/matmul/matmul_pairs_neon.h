// Pairs of rows of x for BFMMLA and SMMLA over panels of 8 rows: how a call is cut into register
// tiles of G groups (read streams) by PT pairs. Rows of x are laid out once per call and range of
// K, so that a pair's 16 bytes are one load. Where several tiles share weights, a range is short
// enough for the first-level cache; between ranges sums wait in `out`. Each file that includes this
// has its own copy.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_sums_neon.h"

namespace sluice::cpu {
namespace {

constexpr int64_t kPairRows = 8;       // of W in a group
constexpr int64_t kMaxPairs = 3;       // of rows of x in a tile
constexpr int64_t kMaxPairRows = 128;  // of x at once
constexpr int64_t kRangeUnits = 256;   // 32 KiB of two groups' weights, 12 KiB of x
constexpr int64_t kGroupUnitBytes = 64;
constexpr int64_t kMaxUnits = kMaxPairRows / 2 * kRangeUnits;

// Eight bytes of either row of a pair: 4 columns of bf16, 8 of int8.
struct alignas(16) PairUnit {
  uint8_t of[2][8];
};

// One tile's place.
struct PairTile {
  const uint8_t* w;   // first group's panel, from the range's first unit on
  size_t panel;       // bytes from group to group
  const PairUnit* x;  // [unit][pair]
  int64_t units;
  int64_t group;  // the first
  int64_t row;    // first of x
  Sums to;
  const MatmulArgs& a;
};

template <typename Kernel, int G>
void multiply(int64_t pairs, const PairTile& t) {
  if constexpr (G < 4) {
    if (pairs == 3) return Kernel::template tile<G, 3>(t);
    if (pairs == 2) return Kernel::template tile<G, 2>(t);
  }
  Kernel::template tile<G, 1>(t);
}

// A Kernel has tile<G, PT>(tile), and lay_out(a, row, pairs, u0, units, to): units [u0, u0 + units)
// of rows [row, row + 2 pairs) of x as one tile's; any from row a.m on.
template <typename Kernel>
void run_pair_rows(
    const MatmulArgs& a, size_t panel, int64_t all_units, int64_t m0, int64_t rows, PairUnit* x) {
  const int64_t pairs = (rows + 1) / 2;
  const int64_t tiles = (pairs + kMaxPairs - 1) / kMaxPairs;
  const auto pairs_of = [&](int64_t i) { return pairs / tiles + (i < pairs % tiles ? 1 : 0); };
  const int64_t at_once = tiles == 1 ? kMaxUnits / pairs : kRangeUnits;
  const int wide = pairs == 1 ? 4 : 2;
  for (int64_t u0 = 0; u0 < all_units; u0 += at_once) {
    const int64_t units = all_units - u0 < at_once ? all_units - u0 : at_once;
    for (int64_t i = 0, pair = 0; i < tiles; pair += pairs_of(i++))
      Kernel::lay_out(a, m0 + 2 * pair, pairs_of(i), u0, units, x + pair * units);
    for (int64_t g = a.group_begin; g < a.group_end;) {
      const int64_t left = a.group_end - g;
      const int groups = left >= wide ? wide : left >= 2 ? 2 : 1;
      const uint8_t* w = static_cast<const uint8_t*>(a.w) + static_cast<size_t>(g) * panel +
                         static_cast<size_t>(u0 * kGroupUnitBytes);
      for (int64_t i = 0, pair = 0; i < tiles; pair += pairs_of(i++)) {
        const int64_t m = rows - 2 * pair < 2 * pairs_of(i) ? rows - 2 * pair : 2 * pairs_of(i);
        const int64_t row = m0 + 2 * pair;
        const Sums to{a.out + row * a.out_stride + g * kPairRows,
                      a.bias ? a.bias + g * kPairRows : nullptr,
                      a.out_stride,
                      a.rows - g * kPairRows,
                      m,
                      u0 == 0,
                      u0 + units == all_units};
        const PairTile t{w, panel, x + pair * units, units, g, row, to, a};
        groups == 4   ? multiply<Kernel, 4>(pairs_of(i), t)
        : groups == 2 ? multiply<Kernel, 2>(pairs_of(i), t)
                      : multiply<Kernel, 1>(pairs_of(i), t);
      }
      g += groups;
    }
  }
}

// panel: bytes of a group; all_units: of a row.
template <typename Kernel>
void run_pairs(const MatmulArgs& a, size_t panel, int64_t all_units) {
  PairUnit x[kMaxUnits];  // [tile][unit][pair]
  const int64_t pairs = (a.m + 1) / 2;
  const int64_t chunks = (pairs + kMaxPairRows / 2 - 1) / (kMaxPairRows / 2);
  for (int64_t i = 0; i < chunks; ++i) {
    const int64_t begin = 2 * (pairs * i / chunks), end = 2 * (pairs * (i + 1) / chunks);
    run_pair_rows<Kernel>(a, panel, all_units, begin, (end < a.m ? end : a.m) - begin, x);
  }
}

}  // namespace
}  // namespace sluice::cpu
