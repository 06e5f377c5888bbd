// Q4_1: 32 nibbles, a half scale and a half minimum. value = d * q + m.
#pragma once

#include <cmath>
#include <cstdint>

#include "tensor/formats/f16.h"
#include "tensor/tensor.h"

namespace sluice {

struct BlockQ4_1 {
  static constexpr Format kFormat = Format::q4_1;
  static constexpr const char* kName = "Q4_1";
  static constexpr uint32_t kGgufType = 3;
  static constexpr int kElems = 32;
  uint16_t d;      // f16
  uint16_t m;      // f16
  uint8_t qs[16];  // low nibbles: elements 0..15; high nibbles: 16..31
};
static_assert(sizeof(BlockQ4_1) == 20 && alignof(BlockQ4_1) == 2);

// The product is exact; the sum rounds once.
constexpr void decode(const BlockQ4_1& b, float* out) {
  const float d = f16_to_f32(b.d);
  const float m = f16_to_f32(b.m);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(b.qs[i] & 15) + m;
    out[i + 16] = d * static_cast<float>(b.qs[i] >> 4) + m;
  }
}

inline void encode(const float* in, BlockQ4_1& b) {
  float lowest = in[0];
  float highest = in[0];
  for (int i = 1; i < 32; ++i) {
    lowest = std::fmin(lowest, in[i]);
    highest = std::fmax(highest, in[i]);
  }
  const float d = (highest - lowest) / 15;
  const float inverse = d != 0 ? 1 / d : 0;
  b.d = f32_to_f16(d);
  b.m = f32_to_f16(lowest);
  for (int i = 0; i < 16; ++i) {
    const int low = round_within((in[i] - lowest) * inverse, 0, 15);
    const int high = round_within((in[i + 16] - lowest) * inverse, 0, 15);
    b.qs[i] = static_cast<uint8_t>(low | high << 4);
  }
}

}  // namespace sluice
