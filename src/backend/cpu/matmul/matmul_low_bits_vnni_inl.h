// int_block32 kernels of q2_k and q3_k for VNNI, over vectors V (matmul_tile_*.h). Lanes are the
// rows of a group; a tile is G groups (read streams) by MT rows of x. Each sixteen columns of a
// block have their own scale: VPDPBUSD sums them in 32 bits, and since such a sum fits 16, VPMADDWD
// and VPDPWSSD multiply it by the scale. q3_k's codes stand 4 above the quants; that comes off
// through sums of the activations.
#pragma once

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_vnni_tiles_inl.h"

namespace sluice::cpu {
namespace {

// Sums of the sixteens of 256 columns of MT rows of x. q3_k: minus four times the sum of sixteen
// 2 b + half. q2_k: both sums of block b, as halves of an integer.
template <Format F, int MT>
struct LowBitSums {
  alignas(64) int32_t of[MT][kThreeBits<F> ? 16 : 8];
};

// The kHalf-th sixteen columns of a block: idot = start + codes times x.
template <typename V, Format F, int kHalf, int G, int MT>
[[gnu::always_inline]] inline void dot_half(const Tile& t,
                                            const LowBitPlan& plan,
                                            int64_t b,
                                            const LowBitSums<F, MT>& sums,
                                            typename V::I (&idot)[G][MT]) {
  constexpr int R = V::kRows;
  typename V::I v[G], top[G];
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    const uint8_t* panel = t.w + g * plan.bytes;
    v[g] = V::load(panel + (b * 8 + kHalf * 4) * R);
    top[g] = kThreeBits<F> ? V::load(panel + plan.top + b * 4 * R) : v[g];
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      idot[g][m] = V::set(kThreeBits<F> ? sums.of[m][b % 8 * 2 + kHalf] : 0);
    }
  }
  const int8_t* x = t.q + b * 32 + kHalf * 16;
  typename V::I w[G][4];
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) V::template low_bit_units<F, kHalf>(v[g], top[g], w[g]);
  SLUICE_UNROLL
  for (int u = 0; u < 4; ++u) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      const typename V::I xv = broadcast4<V>(x + m * t.cols + u * 4);
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) idot[g][m] = V::dot(idot[g][m], w[g][u], xv);
    }
  }
}

// acc += block b. dw, dmin: of its super-block; bytes: its scales (q3_k).
template <typename V, Format F, int G, int MT>
[[gnu::always_inline]] inline void add_block(const Tile& t,
                                             const LowBitPlan& plan,
                                             int64_t b,
                                             const LowBitSums<F, MT>& sums,
                                             const typename V::LowBitBytes (&bytes)[G],
                                             const typename V::F32 (&dw)[G],
                                             const typename V::F32 (&dmin)[G],
                                             typename V::F32 (&acc)[G][MT]) {
  prefetch(t, b);
  typename V::I idot[G][MT], dot[G][MT];
  typename V::LowBitScales scales[G];
  dot_half<V, F, 0, G, MT>(t, plan, b, sums, idot);
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    scales[g] = V::template low_bit_scales<F>(t.w + g * plan.bytes, plan, b, bytes[g]);
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) dot[g][m] = V::dot16(idot[g][m], scales[g].first);
  }
  dot_half<V, F, 1, G, MT>(t, plan, b, sums, idot);
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      dot[g][m] = V::dot16(dot[g][m], idot[g][m], scales[g].second);
      const typename V::F32 dx = V::set(t.scale[m * plan.num_blocks + b]);
      const typename V::F32 value = V::to_float(dot[g][m]);
      if constexpr (kThreeBits<F>) {
        acc[g][m] = V::fma(V::mul(dw[g], dx), value, acc[g][m]);
      } else {
        const typename V::I sum = V::dot16(scales[g].mins, V::set(sums.of[m][b % 8]));
        const typename V::F32 scaled = V::mul(dw[g], value);
        const typename V::F32 term = V::fnma(dmin[g], V::to_float(sum), scaled);
        acc[g][m] = V::fma(dx, term, acc[g][m]);
      }
    }
  }
}

template <typename V, Format F, int G, int MT>
void low_bit_tile(const Tile& t) {
  constexpr int R = V::kRows;
  const LowBitPlan plan = low_bit_plan<F, R>(t.cols);
  typename V::F32 acc[G][MT];
  clear<V>(acc);
  LowBitSums<F, MT> sums;
  typename V::LowBitBytes bytes[G];
  for (int64_t super = 0; super < plan.num_blocks / 8; ++super) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      V::store_low_bit_sums(t.q + m * t.cols + super * 256, sums.of[m]);
    }
    typename V::F32 dw[G], dmin[G];
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      const uint8_t* panel = t.w + g * plan.bytes;
      const uint8_t* halves = panel + plan.extra + super * (kThreeBits<F> ? 2 : 4) * R;
      dw[g] = V::load_f16(halves);
      dmin[g] = kThreeBits<F> ? dw[g] : V::load_f16(halves + 2 * R);
      if constexpr (kThreeBits<F>) V::low_bit_unpack(panel, plan, super, bytes[g]);
    }
    for (int64_t b = super * 8; b < super * 8 + 8; ++b) {
      add_block<V, F, G, MT>(t, plan, b, sums, bytes, dw, dmin, acc);
    }
  }
  store<V, G, MT>(t, acc);
}

template <typename V, Format F>
struct LowBitKernel {
  static constexpr int kRows = V::kRows, kStep = 1;
  static constexpr Heights kMost = V::kLowBitTiles;

  template <int G, int MT>
  static constexpr TileFn tile = low_bit_tile<V, F, G, MT>;
};

template <typename V, Format F>
void run_low_bits(const MatmulArgs& a) {
  run_tiles<LowBitKernel<V, F>>(a, low_bit_plan<F, V::kRows>(a.cols).bytes, a.cols / 32);
}

}  // namespace
}  // namespace sluice::cpu
