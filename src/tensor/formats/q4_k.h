// Q4_K: 256 nibbles in eight groups of 32, a 6-bit scale and minimum each, in units of two halves.
// value = d * scale[group] * q - dmin * min[group].
#pragma once

#include <cstdint>

#include "tensor/formats/f16.h"
#include "tensor/formats/k_scales.h"
#include "tensor/tensor.h"

namespace sluice {

struct BlockQ4K {
  static constexpr Format kFormat = Format::q4_k;
  static constexpr const char* kName = "Q4_K";
  static constexpr uint32_t kGgufType = 12;
  static constexpr int kElems = 256;
  uint16_t d, dmin;    // f16
  uint8_t scales[12];  // k_scales.h
  uint8_t qs[128];     // 32 bytes for two groups: low nibbles the first, high nibbles the second
};
static_assert(sizeof(BlockQ4K) == 144 && alignof(BlockQ4K) == 2);

// The codes of one group of 32.
constexpr void unpack_group(const BlockQ4K& b, int group, uint8_t* q) {
  const uint8_t* qs = b.qs + group / 2 * 32;
  const int shift = group % 2 * 4;
  for (int i = 0; i < 32; ++i) q[i] = static_cast<uint8_t>(qs[i] >> shift & 15);
}

inline void pack(const uint8_t* q, BlockQ4K& b) {
  for (int i = 0; i < 128; ++i) {
    const uint8_t* at = q + i / 32 * 64 + i % 32;
    b.qs[i] = static_cast<uint8_t>(at[0] | at[32] << 4);
  }
}

// The products are exact (11 + 6 + 5 bits); the difference rounds once. Also of Q5_K.
template <typename Block>
constexpr void decode_scaled_groups(const Block& b, float* out) {
  const float d = f16_to_f32(b.d);
  const float dmin = f16_to_f32(b.dmin);
  for (int g = 0; g < 8; ++g) {
    const ScaleMin s = get_scale_min(b.scales, g);
    const float scale = d * static_cast<float>(s.scale);
    const float min = dmin * static_cast<float>(s.min);
    uint8_t q[32];
    unpack_group(b, g, q);
    for (int i = 0; i < 32; ++i) out[32 * g + i] = scale * static_cast<float>(q[i]) - min;
  }
}

template <typename Block>
inline void encode_scaled_groups(const float* in, int levels, Block& b) {
  Affine group[8];
  for (int g = 0; g < 8; ++g) group[g] = best_affine(in + 32 * g, 32, levels);
  SuperScales s = super_scales(group);
  for (int g = 0; g < 8; ++g) s.of[g] = nearest_pair(in + 32 * g, 32, levels, s, s.of[g]);
  b.d = s.d;
  b.dmin = s.dmin;
  put_scale_mins(s.of, b.scales);
  uint8_t q[256];
  for (int g = 0; g < 8; ++g) {
    const Affine used{f16_to_f32(b.d) * static_cast<float>(s.of[g].scale),
                      f16_to_f32(b.dmin) * static_cast<float>(s.of[g].min)};
    affine_codes(in + 32 * g, 32, used, levels, q + 32 * g);
  }
  pack(q, b);
}

constexpr void decode(const BlockQ4K& b, float* out) { decode_scaled_groups(b, out); }
inline void encode(const float* in, BlockQ4K& b) { encode_scaled_groups(in, 15, b); }

}  // namespace sluice
