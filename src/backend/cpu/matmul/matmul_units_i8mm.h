// Codes of packed panels as SDOT and SMMLA take them: a unit is 8 columns of a pair of rows. Each
// file that includes this has its own copy.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "backend/cpu/matmul/matmul_panels_neon.h"
#include "backend/cpu/matmul/pack_plan.h"

namespace sluice::cpu {
namespace {

// A block's planes. Two blocks of 5 bits share their bytes of the high plane: `shift` takes this
// block's bit of unit 0 to bit 4.
struct Planes {
  const uint8_t* low;
  const uint8_t* high;
  int shift;
};

template <Format F>
[[gnu::always_inline]] inline Planes planes_of(const uint8_t* panel,
                                               const PanelPlan& plan,
                                               int64_t b) {
  const int64_t high = kHighBits<F> == 1 ? b / 2 : b;
  return {panel + b * kLowBytes<F> * R, panel + plan.high + high * 8 * R,
          static_cast<int>(4 - b % 2 * 4)};
}

// The nibble of unit u below the top bits, which are in place; bits above `mask` are anything.
[[gnu::always_inline]] inline uint8x16_t join(uint8x16_t top, uint8x16_t low, int u, int mask) {
  const uint8x16_t q = u < 2 ? vbslq_u8(vdupq_n_u8(15), low, top) : vsriq_n_u8(top, low, 4);
  return vandq_u8(q, vdupq_n_u8(static_cast<uint8_t>(mask)));
}

// Unit u of pair p of a block: codes, or the levels that they choose.
template <Format F>
[[gnu::always_inline]] inline int8x16_t load_unit(const Planes& planes, int u, int p) {
  const uint8_t* low = planes.low;
  if constexpr (F == Format::q8_0) {
    return vreinterpretq_s8_u8(vld1q_u8(low + u * R * 8 + p * 16));
  } else {
    const uint8x16_t v = vld1q_u8(low + u % 2 * R * 8 + p * 16);
    if constexpr (F == Format::q6_k) {
      const uint8x16_t h = vld1q_u8(planes.high + p * 16);
      const uint8x16_t top = u == 0   ? vshlq_n_u8(h, 4)
                             : u == 1 ? vshlq_n_u8(h, 2)
                             : u == 2 ? h
                                      : vshrq_n_u8(h, 2);
      return vreinterpretq_s8_u8(join(top, v, u, 63));
    } else if constexpr (kHighBits<F> == 1) {
      const int8x16_t shift = vdupq_n_s8(static_cast<int8_t>(planes.shift - u));
      return vreinterpretq_s8_u8(join(vshlq_u8(vld1q_u8(planes.high + p * 16), shift), v, u, 31));
    } else {
      const uint8x16_t q = u < 2 ? vandq_u8(v, vdupq_n_u8(15)) : vshrq_n_u8(v, 4);
      if constexpr (kHasLevels<F>) return vqtbl1q_s8(vld1q_s8(levels_of<F>()), q);
      return vreinterpretq_s8_u8(q);
    }
  }
}

}  // namespace
}  // namespace sluice::cpu
