// Codes of packed panels as SDOT takes them in the kernels without SMMLA: a unit is 4 columns of
// four rows. Each file that includes this has its own copy.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "backend/cpu/matmul/matmul_panels_neon.h"
#include "backend/cpu/matmul/matmul_tile_neon.h"
#include "backend/cpu/matmul/pack_plan.h"

namespace sluice::cpu {
namespace {

// Sixteen codes as signed bytes: nibbles of `v`, and of 5 bits the top one, bit 4 half + u of
// `top`.
template <Format F>
[[gnu::always_inline]] inline int8x16_t unit_codes(uint8x16_t v, uint8x16_t top, int half, int u) {
  uint8x16_t q = half == 0 ? vandq_u8(v, vdupq_n_u8(15)) : vshrq_n_u8(v, 4);
  if constexpr (kHighBits<F> == 1) {
    const int8x16_t shift = vdupq_n_s8(static_cast<int8_t>(4 - u - half * 4));
    q = vorrq_u8(q, vandq_u8(vshlq_u8(top, shift), vdupq_n_u8(16)));
  }
  if constexpr (kHasLevels<F>) return vqtbl1q_s8(vld1q_s8(levels_of<F>()), q);
  return vreinterpretq_s8_u8(q);
}

// idot += the half-th sixteen columns of a block of one group, whose planes begin at `low` and
// `high` (5 bits). All formats but q6_k.
template <Format F, int MT>
[[gnu::always_inline]] inline void dot_half(const uint8_t* low,
                                            const uint8_t* high,
                                            int half,
                                            const int8x16_t (&x)[MT],
                                            int32x4_t (&idot)[MT][2]) {
  uint8x16_t top[2] = {};
  if constexpr (kHighBits<F> == 1) {
    top[0] = vld1q_u8(high);
    top[1] = vld1q_u8(high + 16);
  }
  const auto load = [&](int u, int h) __attribute__((always_inline)) {
    if constexpr (F == Format::q8_0) {
      return vreinterpretq_s8_u8(vld1q_u8(low + (half * 4 + u) * 32 + h * 16));
    } else {
      return unit_codes<F>(vld1q_u8(low + u * 32 + h * 16), top[h], half, u);
    }
  };
  dot_16<MT>(load, x, idot);
}

}  // namespace
}  // namespace sluice::cpu
