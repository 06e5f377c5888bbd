// For tests (SLUICE_STAND_INS): the instructions of AMX and AVX512_BF16 in plain code, so that the
// kernels for AMX run on a CPU that has only AVX-512 VNNI. Where the CPU would refuse the shapes of
// the tiles, the program ends too.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace sluice::cpu {

struct TileStandIn {
  int rows = 0, bytes = 0;
  alignas(64) uint8_t row[16][64] = {};
};
inline thread_local TileStandIn tile_stand_ins[8];

inline TileStandIn& configured(int t) {
  TileStandIn& tile = tile_stand_ins[t];
  if (tile.rows == 0) __builtin_trap();
  return tile;
}

inline void stand_in_configure(const uint8_t (&rows)[16], const uint16_t (&row_bytes)[16]) {
  for (int t = 0; t < 8; ++t) {
    tile_stand_ins[t] = {};
    tile_stand_ins[t].rows = rows[t];
    tile_stand_ins[t].bytes = row_bytes[t];
  }
}

inline void stand_in_release() {
  for (TileStandIn& tile : tile_stand_ins) tile = {};
}

inline void stand_in_zero(int t) { std::memset(configured(t).row, 0, sizeof TileStandIn::row); }

inline void stand_in_load(int t, const void* from, int64_t stride) {
  stand_in_zero(t);
  TileStandIn& tile = configured(t);
  for (int r = 0; r < tile.rows; ++r) {
    std::memcpy(tile.row[r], static_cast<const uint8_t*>(from) + r * stride,
                static_cast<size_t>(tile.bytes));
  }
}

inline void stand_in_store(int t, void* to, int64_t stride) {
  const TileStandIn& tile = configured(t);
  for (int r = 0; r < tile.rows; ++r) {
    std::memcpy(static_cast<uint8_t*>(to) + r * stride, tile.row[r],
                static_cast<size_t>(tile.bytes));
  }
}

inline bool shapes_fit(const TileStandIn& c, const TileStandIn& a, const TileStandIn& b) {
  return c.rows == a.rows && c.bytes == b.bytes && a.bytes == b.rows * 4;
}

// C += A times B, whose lanes hold four columns of K each. W: how a byte of B counts.
template <typename W>
void stand_in_dot(int c, int a, int b) {
  TileStandIn& sum = configured(c);
  const TileStandIn &x = configured(a), &w = configured(b);
  if (!shapes_fit(sum, x, w)) __builtin_trap();
  for (int m = 0; m < sum.rows; ++m) {
    int32_t s[16];
    std::memcpy(s, sum.row[m], sizeof s);
    for (int k = 0; k < x.bytes; ++k) {
      const auto q = static_cast<int8_t>(x.row[m][k]);
      for (int n = 0; n < 16; ++n) s[n] += q * static_cast<W>(w.row[k / 4][n * 4 + k % 4]);
    }
    std::memcpy(sum.row[m], s, sizeof s);
  }
}

inline float no_subnormal(float v) {
  return std::abs(v) < std::numeric_limits<float>::min() ? std::copysign(0.0f, v) : v;
}

inline float bf16_at(const uint8_t* p) {
  const uint32_t bits = static_cast<uint32_t>(p[1]) << 24 | static_cast<uint32_t>(p[0]) << 16;
  float v;
  std::memcpy(&v, &bits, sizeof v);
  return no_subnormal(v);
}

// C += A times B in pairs of bf16: a chain over even columns and one over odd ones, then their sum.
inline void stand_in_dot_bf16(int c, int a, int b) {
  TileStandIn& sum = configured(c);
  const TileStandIn &x = configured(a), &w = configured(b);
  if (!shapes_fit(sum, x, w)) __builtin_trap();
  for (int m = 0; m < sum.rows; ++m) {
    for (int n = 0; n < sum.bytes / 4; ++n) {
      float chain[2] = {};
      for (int k = 0; k < x.bytes / 2; ++k) {
        float& v = chain[k % 2];
        v = no_subnormal(
            std::fma(bf16_at(&x.row[m][k * 2]), bf16_at(&w.row[k / 2][n * 4 + k % 2 * 2]), v));
      }
      float s;
      std::memcpy(&s, &sum.row[m][n * 4], sizeof s);
      s = no_subnormal(no_subnormal(s) + no_subnormal(chain[0] + chain[1]));
      std::memcpy(&sum.row[m][n * 4], &s, sizeof s);
    }
  }
}

inline __m512i bf16_bits(__m512 v) {  // in the low half of each lane
  const __m512i bits = _mm512_castps_si512(v), high = _mm512_srli_epi32(bits, 16);
  const __m512i even = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff));
  __m512i to = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  to = _mm512_mask_or_epi32(to, nan, high, _mm512_set1_epi32(0x40));
  const __mmask16 tiny = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
  return _mm512_mask_and_epi32(to, tiny, high, _mm512_set1_epi32(0x8000));
}

inline __m512i stand_in_bf16(__m512 high, __m512 low) {
  const __m256i first = _mm512_cvtepi32_epi16(bf16_bits(low));
  return _mm512_inserti64x4(_mm512_castsi256_si512(first), _mm512_cvtepi32_epi16(bf16_bits(high)),
                            1);
}

}  // namespace sluice::cpu

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbf16ps
#define _tile_zero(t) sluice::cpu::stand_in_zero(t)
#define _tile_loadd(t, from, stride) sluice::cpu::stand_in_load(t, from, stride)
#define _tile_stream_loadd(t, from, stride) sluice::cpu::stand_in_load(t, from, stride)
#define _tile_stored(t, to, stride) sluice::cpu::stand_in_store(t, to, stride)
#define _tile_dpbssd(c, a, b) sluice::cpu::stand_in_dot<int8_t>(c, a, b)
#define _tile_dpbsud(c, a, b) sluice::cpu::stand_in_dot<uint8_t>(c, a, b)
#define _tile_dpbf16ps(c, a, b) sluice::cpu::stand_in_dot_bf16(c, a, b)
#define _tile_release() sluice::cpu::stand_in_release()
#define _mm512_cvtne2ps_pbh(high, low) sluice::cpu::stand_in_bf16(high, low)
