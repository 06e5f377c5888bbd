// int_super kernels of q4_k, q5_k and q6_k for VNNI, over vectors V (matmul_tile_*.h). Lanes are
// the rows of a group; a tile is G groups (read streams) by MT rows of x. The dots of a block of 32
// columns are multiplied by its integer scale and added up over the super-block. All of that is
// exact, so other orders (AMX, AVX2) give the same bits.
#pragma once

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_vnni_tiles_inl.h"

namespace sluice::cpu {
namespace {

// Sums of x over one super-block, for MT rows; kernels broadcast them from memory.
template <Format F, int MT>
struct SuperSums {
  // q6_k: minus 32 times the sums of 16. Others: sums of 32, two in a word.
  alignas(64) int32_t of[MT][F == Format::q6_k ? 16 : 4];
};

template <typename V, Format F, int MT>
[[gnu::always_inline]] inline void fill(const Tile& t, int64_t s, SuperSums<F, MT>& sums) {
  SLUICE_UNROLL
  for (int m = 0; m < MT; ++m) {
    const int16_t* sixteens = t.sum16 + m * (t.cols / 16) + s * 16;
    if constexpr (F == Format::q6_k) {
      SLUICE_UNROLL
      for (int i = 0; i < 16; i += V::kRows) {
        const typename V::I shifted = V::template shift_left<5>(V::widen(sixteens + i));
        V::store(sums.of[m] + i, V::sub(V::set(0), shifted));
      }
    } else {
      V::store_sums_of_32(sixteens, sums.of[m]);
    }
  }
}

// Minimums of blocks b and b + 1 for each row: 16 bits each, the first low.
template <typename V>
[[gnu::always_inline]] inline typename V::I min_pair(const typename V::SixBits& six, int b) {
  return V::bit_or(V::widen(six.min[b]), V::template shift_left<16>(V::widen(six.min[b + 1])));
}

// Integers as the sums over a super-block are kept. Those of q4_k may be f32, in two halves of the
// super-block: 128 * 15 * 63 * 127 < 2^24, so each is exact, and their sum is rounded as an int32
// is when it becomes f32. A multiplication of int32 takes twice as long.
template <Format F>
inline constexpr bool kInFloats = F == Format::q4_k;
template <typename V, bool kFloats>
struct TotalOf {
  using Type = typename V::I;
};
template <typename V>
struct TotalOf<V, true> {
  using Type = typename V::F32;
};
template <typename V, Format F>
using Total = typename TotalOf<V, kInFloats<F>>::Type;

template <typename V>
[[gnu::always_inline]] inline void add_scaled(typename V::I scale,
                                              typename V::I dot,
                                              typename V::I& total) {
  total = V::add(total, V::mul(scale, dot));
}
template <typename V>
[[gnu::always_inline]] inline void add_scaled(typename V::I scale,
                                              typename V::I dot,
                                              typename V::F32& total) {
  total = V::fma(V::to_float(scale), V::to_float(dot), total);
}

template <typename V, Format F, int G, int MT>
[[gnu::always_inline]] inline void add_scaled(const typename V::I (&scale)[G],
                                              const typename V::I (&dot)[G][MT],
                                              Total<V, F> (&total)[G][MT]) {
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) add_scaled<V>(scale[g], dot[g][m], total[g][m]);
  }
}

// total += scale * dot of block b of 32 columns.
template <typename V, Format F, int G, int MT>
[[gnu::always_inline]] inline void add_block(const Tile& t,
                                             const PanelPlan& plan,
                                             int64_t b,
                                             const XRows<V, F, MT>& x,
                                             const typename V::SixBits (&six)[G],
                                             Total<V, F> (&total)[G][MT]) {
  constexpr int R = V::kRows;
  typename V::I dot[G][MT], scale[G];
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) dot[g][m] = V::set(0);
  }
  dot_codes<V, F, G, MT>(t.w + b * kLowBytes<F> * R, t.w + plan.high + b * 4 * R, plan.bytes, x,
                         dot);
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) scale[g] = V::widen(six[g].scale[b % 8]);
  add_scaled<V, F, G, MT>(scale, dot, total);
}

// The same of sixteen columns of q6_k.
template <typename V, int kHalf, int G, int MT>
[[gnu::always_inline]] inline void add_q6_half(const Tile& t,
                                               const PanelPlan& plan,
                                               int64_t b,
                                               const SuperSums<Format::q6_k, MT>& sums,
                                               typename V::I (&total)[G][MT]) {
  constexpr int R = V::kRows;
  typename V::I dot[G][MT], scale[G];
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    const uint8_t* panel = t.w + g * plan.bytes;
    typename V::I w[4];
    V::template q6_units<kHalf>(panel + b * 16 * R, panel + plan.high + b * 8 * R, w);
    scale[g] = V::widen(reinterpret_cast<const int8_t*>(panel + plan.scale + (b * 2 + kHalf) * R));
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      const int8_t* x = t.q + m * t.cols + b * 32 + kHalf * 16;
      dot[g][m] = V::set(sums.of[m][b % 8 * 2 + kHalf]);
      SLUICE_UNROLL
      for (int u = 0; u < 4; ++u) {
        dot[g][m] = V::dot(dot[g][m], w[u], broadcast4<V>(x + u * 4));
      }
    }
  }
  add_scaled<V, Format::q6_k, G, MT>(scale, dot, total);
}

// acc += a super-block of one group. total: as f32.
template <typename V, Format F, int MT>
[[gnu::always_inline]] inline void add_super(const Tile& t,
                                             const PanelPlan& plan,
                                             const uint8_t* panel,
                                             int64_t s,
                                             const SuperSums<F, MT>& sums,
                                             const typename V::SixBits& six,
                                             const typename V::F32 (&total)[MT],
                                             typename V::F32 (&acc)[MT]) {
  constexpr int R = V::kRows;
  const uint8_t* super = panel + plan.extra + s * (kSuperScales<F> ? 4 : 2) * R;
  const typename V::F32 d = V::load_f16(super);
  typename V::I mins[4];
  typename V::F32 dmin;
  if constexpr (kSuperScales<F>) {
    dmin = V::load_f16(super + 2 * R);
    SLUICE_UNROLL
    for (int i = 0; i < 4; ++i) mins[i] = min_pair<V>(six, i * 2);
  }
  SLUICE_UNROLL
  for (int m = 0; m < MT; ++m) {
    typename V::F32 v = V::mul(d, total[m]);
    if constexpr (kSuperScales<F>) {
      typename V::I sum = V::set(0);
      SLUICE_UNROLL
      for (int i = 0; i < 4; ++i) sum = V::dot16(sum, mins[i], V::set(sums.of[m][i]));
      v = V::fnma(dmin, V::to_float(sum), v);
    }
    acc[m] = V::fma(V::set(t.scale[m * (t.cols / 256) + s]), v, acc[m]);
  }
}

// Blocks [begin, end) of a super-block; x: at the first.
template <typename V, Format F, int G, int MT>
[[gnu::always_inline]] inline void add_blocks(const Tile& t,
                                              const PanelPlan& plan,
                                              int64_t begin,
                                              int64_t end,
                                              XRows<V, F, MT>& x,
                                              const SuperSums<F, MT>& sums,
                                              const typename V::SixBits (&six)[G],
                                              Total<V, F> (&total)[G][MT]) {
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) total[g][m] = Total<V, F>{};
  }
  for (int64_t b = begin; b < end; ++b) {
    prefetch(t, b);
    if constexpr (F == Format::q6_k) {
      add_q6_half<V, 0, G, MT>(t, plan, b, sums, total);
      add_q6_half<V, 1, G, MT>(t, plan, b, sums, total);
    } else {
      add_block<V, F, G, MT>(t, plan, b, x, six, total);
      x.advance(32);
    }
  }
}

template <typename V, Format F, int G, int MT>
void super_tile(const Tile& t) {
  const PanelPlan plan = panel_plan<F, V::kRows>(t.cols);
  typename V::F32 acc[G][MT];
  clear<V>(acc);
  XRows<V, F, MT> x(t.q, t.cols);
  for (int64_t s = 0; s < t.cols / 256; ++s) {
    SuperSums<F, MT> sums;
    fill<V>(t, s, sums);
    typename V::SixBits six[G];  // not of q6_k
    if constexpr (kSuperScales<F>) {
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) V::load_six_bits(t.w + g * plan.bytes, plan, s, six[g]);
    }
    typename V::F32 total[G][MT];
    if constexpr (kInFloats<F>) {
      typename V::F32 second[G][MT];
      add_blocks<V, F, G, MT>(t, plan, s * 8, s * 8 + 4, x, sums, six, total);
      add_blocks<V, F, G, MT>(t, plan, s * 8 + 4, s * 8 + 8, x, sums, six, second);
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) {
        SLUICE_UNROLL
        for (int m = 0; m < MT; ++m) total[g][m] = V::add(total[g][m], second[g][m]);
      }
    } else {
      typename V::I whole[G][MT];
      add_blocks<V, F, G, MT>(t, plan, s * 8, s * 8 + 8, x, sums, six, whole);
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) {
        SLUICE_UNROLL
        for (int m = 0; m < MT; ++m) total[g][m] = V::to_float(whole[g][m]);
      }
    }
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      add_super<V, F, MT>(t, plan, t.w + g * plan.bytes, s, sums, six[g], total[g], acc[g]);
    }
  }
  store<V, G, MT>(t, acc);
}

template <typename V>
struct SuperKernels {
  template <Format F>
  struct Of {
    static constexpr int kRows = V::kRows, kStep = 1;
    static constexpr Heights kMost = F == Format::q6_k ? V::kQ6Tiles : V::kBlockTiles;

    template <int G, int MT>
    static constexpr TileFn tile = super_tile<V, F, G, MT>;
  };
};

}  // namespace
}  // namespace sluice::cpu
