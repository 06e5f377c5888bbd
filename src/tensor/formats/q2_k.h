// Q2_K: 256 codes of 2 bits in sixteen groups of 16, a 4-bit scale and minimum each, in units of
// two halves. value = d * scale[group] * q - dmin * min[group].
#pragma once

#include <cmath>
#include <cstdint>

#include "tensor/formats/f16.h"
#include "tensor/formats/k_scales.h"
#include "tensor/tensor.h"

namespace sluice {

struct BlockQ2K {
  static constexpr Format kFormat = Format::q2_k;
  static constexpr const char* kName = "Q2_K";
  static constexpr uint32_t kGgufType = 10;
  static constexpr int kElems = 256;
  uint8_t
      scales[16];    // of elements 16 i .. 16 i + 15: scale in the low, minimum in the high nibble
  uint8_t qs[64];    // 32 bytes for each 128 elements; element l + 32 j: bits 2 j of byte l
  uint16_t d, dmin;  // f16
};
static_assert(sizeof(BlockQ2K) == 84 && alignof(BlockQ2K) == 2);

// The codes of elements 32 part .. 32 part + 31.
constexpr void unpack_part(const BlockQ2K& b, int part, uint8_t* q) {
  const uint8_t* qs = b.qs + part / 4 * 32;
  const int shift = part % 4 * 2;
  for (int i = 0; i < 32; ++i) q[i] = static_cast<uint8_t>(qs[i] >> shift & 3);
}

// The products are exact; the difference rounds once.
constexpr void decode(const BlockQ2K& b, float* out) {
  const float d = f16_to_f32(b.d);
  const float dmin = f16_to_f32(b.dmin);
  for (int part = 0; part < 8; ++part) {
    uint8_t q[32];
    unpack_part(b, part, q);
    for (int i = 0; i < 32; ++i) {
      const int s = b.scales[part * 2 + i / 16];
      const float scale = d * static_cast<float>(s & 15);
      out[32 * part + i] = scale * static_cast<float>(q[i]) - dmin * static_cast<float>(s >> 4);
    }
  }
}

inline void encode(const float* in, BlockQ2K& b) {
  Affine group[16];
  float scale = 0;
  float min = 0;
  for (int g = 0; g < 16; ++g) {
    group[g] = best_affine(in + 16 * g, 16, 3);
    scale = std::fmax(scale, group[g].scale);
    min = std::fmax(min, group[g].min);
  }
  b.d = f32_to_f16(scale / 15);
  b.dmin = f32_to_f16(min / 15);
  const float d = f16_to_f32(b.d);
  const float dmin = f16_to_f32(b.dmin);
  uint8_t q[256];
  for (int g = 0; g < 16; ++g) {
    const int s = d > 0 ? round_within(group[g].scale / d, 0, 15) : 0;
    const int m = dmin > 0 ? round_within(group[g].min / dmin, 0, 15) : 0;
    b.scales[g] = static_cast<uint8_t>(s | m << 4);
    const Affine used{d * static_cast<float>(s), dmin * static_cast<float>(m)};
    affine_codes(in + 16 * g, 16, used, 3, q + 16 * g);
  }
  for (int i = 0; i < 64; ++i) {
    const uint8_t* at = q + i / 32 * 128 + i % 32;
    b.qs[i] = static_cast<uint8_t>(at[0] | at[32] << 2 | at[64] << 4 | at[96] << 6);
  }
}

}  // namespace sluice
