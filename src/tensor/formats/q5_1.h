// Q5_1: 32 codes of 5 bits, a half scale and a half minimum. value = d * q + m.
#pragma once

#include <cmath>
#include <cstdint>

#include "tensor/formats/f16.h"
#include "tensor/formats/q5_0.h"
#include "tensor/tensor.h"

namespace sluice {

struct BlockQ5_1 {
  static constexpr Format kFormat = Format::q5_1;
  static constexpr const char* kName = "Q5_1";
  static constexpr uint32_t kGgufType = 7;
  static constexpr int kElems = 32;
  uint16_t d;  // f16
  uint16_t m;  // f16
  uint8_t qh[4];
  uint8_t qs[16];
};
static_assert(sizeof(BlockQ5_1) == 24 && alignof(BlockQ5_1) == 2);

// The product is exact; the sum rounds once.
constexpr void decode(const BlockQ5_1& b, float* out) {
  uint8_t q[32];
  unpack_5_bits(b.qs, b.qh, q);
  const float d = f16_to_f32(b.d);
  const float m = f16_to_f32(b.m);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(q[i]) + m;
}

inline void encode(const float* in, BlockQ5_1& b) {
  float lowest = in[0];
  float highest = in[0];
  for (int i = 1; i < 32; ++i) {
    lowest = std::fmin(lowest, in[i]);
    highest = std::fmax(highest, in[i]);
  }
  const float d = (highest - lowest) / 31;
  const float inverse = d != 0 ? 1 / d : 0;
  b.d = f32_to_f16(d);
  b.m = f32_to_f16(lowest);
  uint8_t q[32];
  for (int i = 0; i < 32; ++i) {
    q[i] = static_cast<uint8_t>(round_within((in[i] - lowest) * inverse, 0, 31));
  }
  pack_5_bits(q, b.qs, b.qh);
}

}  // namespace sluice
