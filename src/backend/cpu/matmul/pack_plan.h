// The packed weight layout of int_block32 and int_super kernels, shared by packing and kernels.
//
// R rows form a group; a group is one contiguous panel, so that several groups are several read
// streams. Within a panel, planes follow each other, each over all blocks b of 32 columns. A unit
// is I columns; U = 32 / I is the number of units in a block:
//   q     q8_0: [b][u][R][I] bytes. Others: the low 4 bits of every code, [b][u][R][I] bytes with
//         u < U / 2; the low nibble is column u I + i and the high nibble column 16 + u I + i.
//   high  the top H bits of codes of 4 + H bits (q5_*: 1, q6_k: 2): [unit H / 8][R][I] bytes, bits
//         unit H % 8 and up, where unit = b U + u
//   scale [b][R] f16, mxfp4: bf16. q6_k: [b][2][R] int8, of 16 columns each. q4_k, q5_k: [b][R]
//   bytes, low
//         nibbles of scale (low) and minimum (high)
//   tops  q4_k, q5_k: [b / 2][R] bytes, four bits for each b % 2: two of the scale (low), two of
//   the
//         minimum
//   extra q4_1, q5_1, int4: minimum [b][R] f16. q6_k: super-block scale [b / 8][R] f16. q4_k, q5_k:
//         super-block scale and minimum [b / 8][2][R] f16
// q2_k and q3_k have planes of their own (LowBitPlan):
//   codes the low two bits: [unit / 4][R][I] bytes, bits 2 (unit % 4) and up, where unit = b U + u
//   top   q3_k: the third bits: [unit / 8][R][I] bytes, bit low_bit_top<I>(unit)
//   scale q2_k: [b][R][2] bytes, of 16 columns each: scale (low nibble) and minimum. q3_k: [b][R]
//         bytes, low nibbles of the two scales plus 32
//   tops  q3_k: [b / 2][R] bytes, four bits for each b % 2: the top two of either scale
//   extra super-block scale, for q2_k and minimum: [b / 8][1 or 2][R] f16
// Weights of w8a8 (int8 per row, WeightQuant) are panels too: q [cols / I][R][I] bytes, then the
// rows' scales [R] f32. Weights of u8 are rows of u8_pitch bytes: scale f32, minimum f32,
// q [cols] bytes; value = fma(q, scale, minimum).
//
// I is what one instruction multiplies per row: 4 for VPDPBUSD and SDOT (one vector load = 4
// columns of several rows, lanes are rows), 8 for SMMLA (a vector = 2 rows x 8 columns). Rows past
// the matrix' last are zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/formats/iq4_levels.h"
#include "tensor/formats/mxfp4_levels.h"
#include "tensor/tensor.h"

namespace sluice::cpu {

// Bits of a code beyond the low four.
template <Format F>
inline constexpr int kHighBits = F == Format::q6_k                                             ? 2
                                 : F == Format::q5_0 || F == Format::q5_1 || F == Format::q5_k ? 1
                                                                                               : 0;
// Scales and minimums of 32 columns are 6-bit multiples of a super-block's halves.
template <Format F>
inline constexpr bool kSuperScales = F == Format::q4_k || F == Format::q5_k;
template <Format F>
inline constexpr bool kHasMin =
    F == Format::q4_1 || F == Format::q5_1 || F == Format::int4 || kSuperScales<F>;
// Minimums are in units of the scale.
template <Format F>
inline constexpr bool kScaledMin = F == Format::int4;
// What codes stand above the quants they mean.
template <Format F>
inline constexpr int32_t kCodeOffset = F == Format::q4_0   ? 8
                                       : F == Format::q5_0 ? 16
                                       : F == Format::q6_k ? 32
                                                           : 0;
// Codes are indices of levels.
template <Format F>
inline constexpr bool kHasLevels = F == Format::iq4_nl || F == Format::mxfp4;
template <Format F>
[[gnu::always_inline]] constexpr const int8_t* levels_of() {
  static_assert(kHasLevels<F>);
  return F == Format::mxfp4 ? kMxfp4Levels : kIq4Levels;
}
// Bytes of a row's block in plane q.
template <Format F>
inline constexpr int kLowBytes = F == Format::q8_0 ? 32 : 16;

// Offsets of a panel's planes, in bytes from its start.
struct PanelPlan {
  int64_t num_blocks;
  size_t high, scale, tops, extra, bytes;
};

template <Format F, int R>
[[gnu::always_inline]] constexpr PanelPlan panel_plan(int64_t cols) {
  const auto blocks = static_cast<size_t>(cols) / 32;
  const size_t q = blocks * kLowBytes<F> * R;
  // Two blocks may share bytes.
  const size_t high = kHighBits<F> == 2 ? blocks * 8 * R : (blocks + 1) / 2 * 8 * R * kHighBits<F>;
  const size_t scale = blocks * (kSuperScales<F> ? 1 : 2) * R;
  const size_t tops = kSuperScales<F> ? blocks / 2 * R : 0;
  const size_t extra = kSuperScales<F>     ? blocks / 2 * R
                       : kHasMin<F>        ? scale
                       : F == Format::q6_k ? scale / 8
                                           : 0;
  PanelPlan p{};
  p.num_blocks = cols / 32;
  p.high = q;
  p.scale = p.high + high;
  p.tops = p.scale + scale;
  p.extra = p.tops + tops;
  p.bytes = (p.extra + extra + 63) / 64 * 64;
  return p;
}

// Where a unit's third bits are in their bytes. With units of 4 columns, those of a block's half go
// beside the low two bits of units 0 and 2, then of 1 and 3, by one shift each.
template <int I>
[[gnu::always_inline]] constexpr int low_bit_top(int unit) {
  constexpr int kBits[8] = {2, 3, 6, 7, 1, 0, 5, 4};
  return I == 4 ? kBits[unit % 8] : unit % 8;
}

template <Format F>
inline constexpr bool kThreeBits = F == Format::q3_k;  // else two

struct LowBitPlan {
  int64_t num_blocks;
  size_t top, scale, tops, extra, bytes;
};

template <Format F, int R>
[[gnu::always_inline]] constexpr LowBitPlan low_bit_plan(int64_t cols) {
  const auto blocks = static_cast<size_t>(cols) / 32;
  LowBitPlan p{};
  p.num_blocks = cols / 32;
  p.top = blocks * 8 * R;
  p.scale = p.top + (kThreeBits<F> ? blocks * 4 * R : 0);
  p.tops = p.scale + blocks * (kThreeBits<F> ? 1 : 2) * R;
  p.extra = p.tops + (kThreeBits<F> ? blocks / 2 * R : 0);
  p.bytes = (p.extra + blocks / 8 * (kThreeBits<F> ? 2 : 4) * R + 63) / 64 * 64;
  return p;
}

// Where the scales of a w8a8 panel are; its codes begin at 0.
struct RowPanelPlan {
  size_t scale, bytes;
};

template <int R>
[[gnu::always_inline]] constexpr RowPanelPlan row_panel_plan(int64_t cols) {
  const size_t q = static_cast<size_t>(cols) * R;
  return {q, (q + 4 * R + 63) / 64 * 64};
}

inline constexpr int kU8Head = 8;  // bytes before a row's codes

[[gnu::always_inline]] constexpr int64_t u8_pitch(int64_t cols) {
  return kU8Head + (cols + 7) / 8 * 8;
}

// bf16: [column / I][R][I], columns completed by zeros to whole steps of the kernels. AMX wants
// pairs (I = 2) in steps of a tile, BFMMLA quads (a vector = 2 rows x 4 columns).
inline constexpr int64_t kPairStep = 32, kQuad = 4;

template <int R, int64_t kStep>
[[gnu::always_inline]] constexpr size_t bf16_panel_bytes(int64_t cols) {
  return static_cast<size_t>((cols + kStep - 1) / kStep * kStep) * R * 2;
}

// 16-bit floats in lines of the cache: panels of four rows, [column / 32][4][32], columns completed
// by zeros. Panels follow each other, so a stretch of them is one read stream.
inline constexpr int64_t kLine = 32;
inline constexpr int64_t kLineRows = 4;

[[gnu::always_inline]] constexpr size_t line_panel_bytes(int64_t cols) {
  return static_cast<size_t>((cols + kLine - 1) / kLine * kLine * kLineRows) * 2;
}

}  // namespace sluice::cpu
