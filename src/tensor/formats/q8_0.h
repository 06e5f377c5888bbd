// Q8_0: 32 signed bytes and one half scale. value = d * q.
#pragma once

#include <cmath>
#include <cstdint>

#include "tensor/formats/f16.h"
#include "tensor/tensor.h"

namespace sluice {

struct BlockQ8_0 {
  static constexpr Format kFormat = Format::q8_0;
  static constexpr const char* kName = "Q8_0";
  static constexpr uint32_t kGgufType = 8;
  static constexpr int kElems = 32;
  uint16_t d;  // f16
  int8_t qs[32];
};
static_assert(sizeof(BlockQ8_0) == 34 && alignof(BlockQ8_0) == 2);

// Exact: 11 + 8 bits fit an f32.
constexpr void decode(const BlockQ8_0& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(b.qs[i]);
}

inline void encode(const float* in, BlockQ8_0& b) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::fmax(largest, std::fabs(in[i]));
  const float d = largest / 127;
  const float inverse = d != 0 ? 1 / d : 0;
  b.d = f32_to_f16(d);
  for (int i = 0; i < 32; ++i) {
    b.qs[i] = static_cast<int8_t>(round_within(in[i] * inverse, -127, 127));
  }
}

}  // namespace sluice
