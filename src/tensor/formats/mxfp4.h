// MXFP4: 32 nibbles that are floats of 4 bits (e2m1), and one power of two as their scale.
// value = 2^(e - 128) * kMxfp4Levels[q].
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "tensor/formats/f16.h"
#include "tensor/formats/mxfp4_levels.h"
#include "tensor/tensor.h"

namespace sluice {

struct BlockMXFP4 {
  static constexpr Format kFormat = Format::mxfp4;
  static constexpr const char* kName = "MXFP4";
  static constexpr uint32_t kGgufType = 39;
  static constexpr int kElems = 32;
  uint8_t e;
  uint8_t qs[16];  // low nibbles: elements 0..15; high nibbles: 16..31
};
static_assert(sizeof(BlockMXFP4) == 17 && alignof(BlockMXFP4) == 1);

// 2^(e - 128) as a bf16, which holds all 256 of them; 0 and 1 are subnormal.
constexpr uint16_t mxfp4_scale_bits(uint8_t e) {
  return static_cast<uint16_t>(e < 2 ? 0x20 << e : (e - 1) << 7);
}
constexpr uint8_t mxfp4_exponent(uint16_t scale_bits) {
  return static_cast<uint8_t>(scale_bits < 0x80 ? scale_bits >> 6 : (scale_bits >> 7) + 1);
}

// Exact, but that 2^127 times 2 and more is infinite.
constexpr void decode(const BlockMXFP4& b, float* out) {
  constexpr auto kLevels = std::to_array(kMxfp4Levels);  // a device cannot read the host's array
  const float d = bf16_to_f32(mxfp4_scale_bits(b.e));
  for (size_t i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(kLevels[b.qs[i] & 15]);
    out[i + 16] = d * static_cast<float>(kLevels[b.qs[i] >> 4]);
  }
}

// The first of the levels nearest to v / d; NaN gives 0.
inline int nearest_mxfp4(float v, float d) {
  int code = 0;
  float least = std::fabs(v);
  for (int i = 1; i < 16; ++i) {
    const float error = std::fabs(v - d * static_cast<float>(kMxfp4Levels[i]));
    if (error < least) {
      least = error;
      code = i;
    }
  }
  return code;
}

// The largest element comes to lie between 4 and 8, the top level is 6.
inline void encode(const float* in, BlockMXFP4& b) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::fmax(largest, std::fabs(in[i]));
  const int exponent = std::isfinite(largest) && largest > 0 ? std::ilogb(largest) + 125
                       : largest > 0                         ? 254
                                                             : 0;
  b.e = static_cast<uint8_t>(exponent < 0 ? 0 : exponent);
  const float d = bf16_to_f32(mxfp4_scale_bits(b.e));
  for (int i = 0; i < 16; ++i) {
    b.qs[i] = static_cast<uint8_t>(nearest_mxfp4(in[i], d) | nearest_mxfp4(in[i + 16], d) << 4);
  }
}

}  // namespace sluice
