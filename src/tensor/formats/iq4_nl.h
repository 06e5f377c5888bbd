// IQ4_NL: 32 nibbles that choose from sixteen uneven levels, and one half scale.
// value = d * kIq4Levels[q].
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "tensor/formats/f16.h"
#include "tensor/formats/iq4_levels.h"
#include "tensor/tensor.h"

namespace sluice {

struct BlockIQ4NL {
  static constexpr Format kFormat = Format::iq4_nl;
  static constexpr const char* kName = "IQ4_NL";
  static constexpr uint32_t kGgufType = 20;
  static constexpr int kElems = 32;
  uint16_t d;      // f16
  uint8_t qs[16];  // low nibbles: elements 0..15; high nibbles: 16..31
};
static_assert(sizeof(BlockIQ4NL) == 18 && alignof(BlockIQ4NL) == 2);

// Exact: 11 + 7 bits fit an f32.
constexpr void decode(const BlockIQ4NL& b, float* out) {
  constexpr auto kLevels = std::to_array(kIq4Levels);  // a device cannot read the host's array
  const float d = f16_to_f32(b.d);
  for (size_t i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(kLevels[b.qs[i] & 15]);
    out[i + 16] = d * static_cast<float>(kLevels[b.qs[i] >> 4]);
  }
}

// The code whose level is nearest to v; NaN gives 0.
inline int nearest_iq4(float v) {
  int code = 0;
  for (int i = 1; i < 16; ++i) {
    const float middle = 0.5f * static_cast<float>(kIq4Levels[i - 1] + kIq4Levels[i]);
    if (v >= middle) code = i;
  }
  return code;
}

// Scales that map the largest element to -113 .. -141 are tried, each replaced by the least-squares
// scale of the codes it gives; the error is weighted by x².
inline void encode(const float* in, BlockIQ4NL& b) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) {
    if (std::fabs(in[i]) > std::fabs(largest)) largest = in[i];
  }
  const bool usable = std::fabs(largest) > 1e-15f && std::isfinite(largest);
  float best = usable ? largest / -127 : 0;
  float best_gain = 0;
  for (int step = -7; usable && step <= 7; ++step) {
    const float inverse = -(127 + 2 * static_cast<float>(step)) / largest;
    float xq = 0;
    float qq = 0;
    for (int i = 0; i < 32; ++i) {
      const auto level = static_cast<float>(kIq4Levels[nearest_iq4(in[i] * inverse)]);
      const float weight = in[i] * in[i];
      xq += weight * in[i] * level;
      qq += weight * level * level;
    }
    if (qq > 0 && xq * xq > best_gain * qq) {  // the error falls by xq² / qq
      best = xq / qq;
      best_gain = xq * xq / qq;
    }
  }
  b.d = f32_to_f16(best);
  const float d = f16_to_f32(b.d);
  const float inverse = d != 0 ? 1 / d : 0;
  for (int i = 0; i < 16; ++i) {
    b.qs[i] =
        static_cast<uint8_t>(nearest_iq4(in[i] * inverse) | nearest_iq4(in[i + 16] * inverse) << 4);
  }
}

}  // namespace sluice
