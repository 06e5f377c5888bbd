// Q4_0: 32 nibbles and one half scale. value = d * (q - 8).
#pragma once

#include <cmath>
#include <cstdint>

#include "tensor/formats/f16.h"
#include "tensor/tensor.h"

namespace sluice {

struct BlockQ4_0 {
  static constexpr Format kFormat = Format::q4_0;
  static constexpr const char* kName = "Q4_0";
  static constexpr uint32_t kGgufType = 2;
  static constexpr int kElems = 32;
  uint16_t d;      // f16
  uint8_t qs[16];  // low nibbles: elements 0..15; high nibbles: 16..31
};
static_assert(sizeof(BlockQ4_0) == 18 && alignof(BlockQ4_0) == 2);

// Exact: 11 + 4 bits fit an f32.
constexpr void decode(const BlockQ4_0& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((b.qs[i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((b.qs[i] >> 4) - 8);
  }
}

// The element of largest magnitude maps to q = 0 (-8), whatever its sign: d may be negative.
inline void encode(const float* in, BlockQ4_0& b) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) {
    if (std::fabs(in[i]) > std::fabs(largest)) largest = in[i];
  }
  const float d = largest / -8;
  const float inverse = d != 0 ? 1 / d : 0;
  b.d = f32_to_f16(d);
  for (int i = 0; i < 16; ++i) {
    const int low = round_within(in[i] * inverse + 8, 0, 15);
    const int high = round_within(in[i + 16] * inverse + 8, 0, 15);
    b.qs[i] = static_cast<uint8_t>(low | high << 4);
  }
}

}  // namespace sluice
