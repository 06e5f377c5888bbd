// int_block32 and int_row kernels for VNNI, over vectors V (matmul_tile_*.h). Lanes are the rows of
// a group; a tile is G groups (read streams) by MT rows of x, its accumulators in registers.
// VPDPBUSD multiplies unsigned weights with signed activations; the weights' offset (128 for w8a8,
// q8_0, iq4_nl and mxfp4, 8 for q4_0, 16 for q5_0) is taken off through the integer sum of the
// activations.
#pragma once

#include "backend/cpu/matmul/fetch_output.h"
#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_vnni_tiles_inl.h"

namespace sluice::cpu {
namespace {

// idot += one 32-column block, q8_0. w: the block's bytes in each group.
template <typename V, int G, int MT>
[[gnu::always_inline]] inline void dot_bytes(const uint8_t* w,
                                             size_t panel,
                                             const XRows<V, Format::q8_0, MT>& x,
                                             typename V::I (&idot)[G][MT]) {
  SLUICE_UNROLL
  for (int u = 0; u < 8; ++u) {
    typename V::I wv[G];
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) wv[g] = V::load(w + g * panel + u * 4 * V::kRows);
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      const typename V::I xv = broadcast4<V>(x.row(m) + u * 4);
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) idot[g][m] = V::dot(idot[g][m], wv[g], xv);
    }
  }
}

// What as many blocks of MT rows of x as V has lanes add besides the dots: made at once, and read
// back as broadcasts from memory, which leave the arithmetic ports alone.
template <typename V, int MT>
struct SideTerms {
  alignas(64) int32_t start[MT][V::kRows];  // minus the codes' offset times the sum
  alignas(64) float min[MT][V::kRows];      // d_x * sum
};

template <typename V, Format F, int32_t kOffset, int MT>
[[gnu::always_inline]] inline void fill(const Tile& t,
                                        int64_t b,
                                        int64_t num_blocks,
                                        SideTerms<V, MT>& side) {
  const typename V::Mask left = V::first(num_blocks - b);
  SLUICE_UNROLL
  for (int m = 0; m < MT; ++m) {
    const int64_t at = m * num_blocks + b;
    const typename V::I sum = V::load(t.sum + at, left);
    if constexpr (kOffset != 0) V::store(side.start[m], V::mul(sum, V::set(-kOffset)));
    if constexpr (kHasMin<F>) {
      const typename V::F32 dx = V::load(t.scale + at, left);
      V::store(side.min[m], V::mul(dx, V::to_float(sum)));
    }
  }
}

template <typename V, Format F, int G, int MT>
void block_tile(const Tile& t) {
  constexpr int R = V::kRows;
  constexpr int kBytes = kLowBytes<F> * R;
  constexpr int32_t kOffset = F == Format::q8_0 || kHasLevels<F> ? 128 : kCodeOffset<F>;
  const PanelPlan plan = panel_plan<F, R>(t.cols);
  typename V::F32 acc[G][MT];
  clear<V>(acc);
  SideTerms<V, MT> side;
  XRows<V, F, MT> x(t.q, t.cols);
  ScaleRows<V, F, MT> scale(t.scale, plan.num_blocks);
  for (int64_t b = 0; b < plan.num_blocks; ++b) {
    if ((kOffset != 0 || kHasMin<F>)&&b % R == 0) {
      fill<V, F, kOffset, MT>(t, b, plan.num_blocks, side);
    }
    typename V::I idot[G][MT];
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      const int32_t start = kOffset == 0 ? 0 : side.start[m][b % R];
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) idot[g][m] = V::set(start);
    }
    const uint8_t* w = t.w + b * kBytes;
    prefetch(t, b);
    if constexpr (F == Format::q8_0) {
      dot_bytes<V, G, MT>(w, plan.bytes, x, idot);
    } else {
      dot_codes<V, F, G, MT>(w, t.w + plan.high + b * 4 * R, plan.bytes, x, idot);
    }
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      typename V::F32 dw, mw;
      V::template load_scales<F>(t.w + g * plan.bytes, plan, b, dw, mw);
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) {
        const typename V::F32 dx = V::set(*scale.row(m));
        acc[g][m] = V::fma(V::mul(dw, dx), V::to_float(idot[g][m]), acc[g][m]);
      }
      if constexpr (kHasMin<F>) {
        SLUICE_UNROLL
        for (int m = 0; m < MT; ++m) {
          acc[g][m] = V::fma(mw, V::set(side.min[m][b % R]), acc[g][m]);
        }
      }
    }
    x.advance(32);
    scale.advance(1);
  }
  store<V, G, MT>(t, acc);
}

template <typename V, Format F>
struct BlockKernel {
  static constexpr int kRows = V::kRows, kStep = 1;
  static constexpr Heights kMost = V::kBlockTiles;

  template <int G, int MT>
  static constexpr TileFn tile = block_tile<V, F, G, MT>;
};

template <typename V, Format F>
void run_blocks(const MatmulArgs& a) {
  run_tiles<BlockKernel<V, F>>(a, panel_plan<F, V::kRows>(a.cols).bytes, a.cols / 32);
}

// The rows' scales come off the dots at the end of K.
template <typename V, int G, int MT>
[[gnu::always_inline]] inline void finish(const Tile& t,
                                          const RowPanelPlan& plan,
                                          const typename V::I (&dot)[G][MT]) {
  typename V::F32 acc[G][MT];
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    const typename V::F32 dw =
        V::load(reinterpret_cast<const float*>(t.w + g * plan.bytes + plan.scale));
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      const typename V::F32 scale = V::mul(V::set(t.scale[m]), dw);
      acc[g][m] = V::mul(V::to_float(dot[g][m]), scale);
    }
  }
  store<V, G, MT>(t, acc);
}

// w8a8. Nothing but loads and products happens before the end of K.
template <typename V, int G, int MT>
void row_tile(const Tile& t) {
  constexpr int R = V::kRows;
  const RowPanelPlan plan = row_panel_plan<R>(t.cols);
  typename V::I dot[G][MT];
  SLUICE_UNROLL
  for (int m = 0; m < MT; ++m) {
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) dot[g][m] = V::set(-128 * t.sum[m]);
  }
  const uint8_t* w = t.w;
  const int8_t* x = t.q;
  for (int64_t b = 0; b < t.cols / 32; ++b) {
    if (b < MT) {
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) fetch_output(t.out + b * t.out_stride + g * R);
    }
    prefetch(t, b);
    SLUICE_UNROLL
    for (int u = 0; u < 8; ++u) {
      typename V::I wv[G];
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) wv[g] = V::load(w + g * plan.bytes + u * 4 * R);
      SLUICE_UNROLL
      for (int m = 0; m < MT; ++m) {
        const typename V::I xv = broadcast4<V>(x + m * t.cols + u * 4);
        SLUICE_UNROLL
        for (int g = 0; g < G; ++g) dot[g][m] = V::dot(dot[g][m], wv[g], xv);
      }
      hold_loads();
    }
    w += 8 * 4 * R;
    x += 32;
  }
  finish<V, G, MT>(t, plan, dot);
}

template <typename V>
struct RowKernel {
  static constexpr int kRows = V::kRows, kStep = 1;
  static constexpr Heights kMost = V::kRowTiles;

  template <int G, int MT>
  static constexpr TileFn tile = row_tile<V, G, MT>;
};

template <typename V>
void run_rows(const MatmulArgs& a) {
  run_tiles<RowKernel<V>>(a, row_panel_plan<V::kRows>(a.cols).bytes, 1);
}

}  // namespace
}  // namespace sluice::cpu
