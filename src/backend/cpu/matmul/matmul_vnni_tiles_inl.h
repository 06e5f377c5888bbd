// What the kernels for VNNI share, over vectors V.
#pragma once

#include <cstdint>
#include <cstring>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/matmul_tiles_inl.h"

namespace sluice::cpu {
namespace {

template <typename V>
[[gnu::always_inline]] inline typename V::I broadcast4(const int8_t* x) {
  int32_t v;
  std::memcpy(&v, x, 4);
  return V::set(v);
}

// x and its scales as tiles of F read them.
template <typename V, Format F, int MT>
using XRows = Rows<int8_t, MT, V::template kSharing<F, MT>>;
template <typename V, Format F, int MT>
using ScaleRows = Rows<float, MT, V::template kSharing<F, MT> == 0 ? 0 : 3>;

// idot += one 32-column block of 4-bit or 5-bit codes. tops: its high plane.
template <typename V, Format F, int G, int MT>
[[gnu::always_inline]] inline void dot_codes(const uint8_t* w,
                                             const uint8_t* tops,
                                             size_t panel,
                                             const XRows<V, F, MT>& x,
                                             typename V::I (&idot)[G][MT]) {
  SLUICE_UNROLL
  for (int u = 0; u < 4; ++u) {
    typename V::I low[G], high[G];
    SLUICE_UNROLL
    for (int g = 0; g < G; ++g) {
      V::template load_units<F>(w + g * panel, tops + g * panel, u, low[g], high[g]);
    }
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      const typename V::I x0 = broadcast4<V>(x.row(m) + u * 4);
      const typename V::I x1 = broadcast4<V>(x.row(m) + 16 + u * 4);
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) idot[g][m] = V::dot(idot[g][m], low[g], x0);
      SLUICE_UNROLL
      for (int g = 0; g < G; ++g) idot[g][m] = V::dot(idot[g][m], high[g], x1);
    }
    if constexpr (V::kHoldLoads && MT > 1) hold_loads();
  }
}

template <typename V, int G, int MT>
[[gnu::always_inline]] inline void clear(typename V::F32 (&acc)[G][MT]) {
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) acc[g][m] = V::set(0.0f);
  }
}

template <typename V, int G, int MT>
[[gnu::always_inline]] inline void store(const Tile& t, const typename V::F32 (&acc)[G][MT]) {
  SLUICE_UNROLL
  for (int g = 0; g < G; ++g) {
    const typename V::Mask which = V::first(t.rows_left - g * V::kRows);
    const typename V::F32 bias = t.bias ? V::load(t.bias + g * V::kRows, which) : V::set(0.0f);
    SLUICE_UNROLL
    for (int m = 0; m < MT; ++m) {
      V::store(t.out + m * t.out_stride + g * V::kRows, V::add(acc[g][m], bias), which);
    }
  }
}

}  // namespace
}  // namespace sluice::cpu
