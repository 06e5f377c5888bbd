// The packed weight layout of int_block32 kernels, shared by packing and kernels.
//
// R rows form a group; a group is one contiguous panel, so that several groups are several read
// streams. Within a panel, planes follow each other, each over all blocks b of 32 columns:
//   q     q8_0: [b][k / I][R][I] bytes. 4-bit: [b][u][R][I] bytes, u < 16 / I, the low nibble is
//         column u I + i and the high nibble column 16 + u I + i. q6_k: its low 4 bits, likewise.
//   high  q6_k: [b][u / 4][R][I] bytes, bits 2 (u % 4) and up: the top 2 bits of column u I + i
//   scale [b][R] f16; q6_k: [b][2][R] int8, of 16 columns each
//   extra q4_1: minimum [b][R] f16. q6_k: super-block scale [b / 8][R] f16
// I is what one instruction multiplies per row: 4 for VPDPBUSD and SDOT (one vector load = 4
// columns of several rows, lanes are rows), 8 for SMMLA (a vector = 2 rows x 8 columns). Rows past
// the matrix' last are zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/tensor.h"

namespace sluice::cpu {

// Offsets of a panel's planes, in bytes from its start.
struct PanelPlan {
  int64_t num_blocks;
  size_t high, scale, extra, bytes;
};

template <Format F, int R>
[[gnu::always_inline]] constexpr PanelPlan panel_plan(int64_t cols) {
  const auto blocks = static_cast<size_t>(cols) / 32;
  const size_t q = blocks * (F == Format::q8_0 ? 32 : 16) * R;
  const size_t high = F == Format::q6_k ? blocks * 8 * R : 0;
  const size_t scale = blocks * 2 * R;
  const size_t extra = F == Format::q4_1 ? scale : F == Format::q6_k ? scale / 8 : 0;
  PanelPlan p{cols / 32, q, q + high, q + high + scale, q + high + scale + extra};
  p.bytes = (p.bytes + 63) / 64 * 64;
  return p;
}

}  // namespace sluice::cpu
