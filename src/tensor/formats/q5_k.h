// Q5_K: 256 codes of 5 bits in eight groups of 32, scaled as in Q4_K.
// value = d * scale[group] * q - dmin * min[group].
#pragma once

#include <cstdint>

#include "tensor/formats/q4_k.h"
#include "tensor/tensor.h"

namespace sluice {

struct BlockQ5K {
  static constexpr Format kFormat = Format::q5_k;
  static constexpr const char* kName = "Q5_K";
  static constexpr uint32_t kGgufType = 13;
  static constexpr int kElems = 256;
  uint16_t d, dmin;    // f16
  uint8_t scales[12];  // k_scales.h
  uint8_t qh[32];      // bit g of byte i: the top bit of element i of group g
  uint8_t qs[128];     // low nibbles, as in Q4_K
};
static_assert(sizeof(BlockQ5K) == 176 && alignof(BlockQ5K) == 2);

constexpr void unpack_group(const BlockQ5K& b, int group, uint8_t* q) {
  const uint8_t* qs = b.qs + group / 2 * 32;
  const int shift = group % 2 * 4;
  for (int i = 0; i < 32; ++i) {
    q[i] = static_cast<uint8_t>((qs[i] >> shift & 15) | (b.qh[i] >> group & 1) << 4);
  }
}

inline void pack(const uint8_t* q, BlockQ5K& b) {
  for (int i = 0; i < 128; ++i) {
    const uint8_t* at = q + i / 32 * 64 + i % 32;
    b.qs[i] = static_cast<uint8_t>((at[0] & 15) | (at[32] & 15) << 4);
  }
  for (int i = 0; i < 32; ++i) {
    int bits = 0;
    for (int g = 0; g < 8; ++g) bits |= q[32 * g + i] >> 4 << g;
    b.qh[i] = static_cast<uint8_t>(bits);
  }
}

constexpr void decode(const BlockQ5K& b, float* out) { decode_scaled_groups(b, out); }
inline void encode(const float* in, BlockQ5K& b) { encode_scaled_groups(in, 31, b); }

}  // namespace sluice
