// INT4: what AWQ and GPTQ checkpoints hold, repacked: 32 nibbles, a half scale and a whole zero
// point. value = d * (q + m). Q4_1 cannot hold it: d * m does not fit a half. Not in GGUF files.
#pragma once

#include <cmath>
#include <cstdint>

#include "tensor/formats/f16.h"
#include "tensor/tensor.h"

namespace sluice {

struct BlockInt4 {
  static constexpr Format kFormat = Format::int4;
  static constexpr const char* kName = "INT4";
  static constexpr uint32_t kGgufType = UINT32_MAX;  // kNotInGguf
  static constexpr int kElems = 32;
  uint16_t d;      // f16
  uint16_t m;      // f16: minus the zero point, a whole number from -16 to 0
  uint8_t qs[16];  // low nibbles: elements 0..15; high nibbles: 16..31
};
static_assert(sizeof(BlockInt4) == 20 && alignof(BlockInt4) == 2);

// Exact: 11 + 5 bits fit an f32.
constexpr void decode(const BlockInt4& b, float* out) {
  const float d = f16_to_f32(b.d);
  const float m = f16_to_f32(b.m);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * (static_cast<float>(b.qs[i] & 15) + m);
    out[i + 16] = d * (static_cast<float>(b.qs[i] >> 4) + m);
  }
}

inline void encode(const float* in, BlockInt4& b) {
  float lowest = 0;  // zero is always among the values
  float highest = 0;
  for (int i = 0; i < 32; ++i) {
    lowest = std::fmin(lowest, in[i]);
    highest = std::fmax(highest, in[i]);
  }
  b.d = f32_to_f16((highest - lowest) / 15);
  const float d = f16_to_f32(b.d);
  const float inverse = d != 0 ? 1 / d : 0;
  const int zero = round_within(-lowest * inverse, 0, 15);
  b.m = f32_to_f16(static_cast<float>(-zero));
  for (int i = 0; i < 16; ++i) {
    const int low = round_within(in[i] * inverse, -zero, 15 - zero) + zero;
    const int high = round_within(in[i + 16] * inverse, -zero, 15 - zero) + zero;
    b.qs[i] = static_cast<uint8_t>(low | high << 4);
  }
}

}  // namespace sluice
