// Q3_K: 256 elements of 3 bits in sixteen groups of 16, a signed 6-bit scale each and one half
// scale. value = d * scale[group] * (q - 4).
#pragma once

#include <cmath>
#include <cstdint>

#include "tensor/formats/f16.h"
#include "tensor/formats/k_scales.h"
#include "tensor/tensor.h"

namespace sluice {

struct BlockQ3K {
  static constexpr Format kFormat = Format::q3_k;
  static constexpr const char* kName = "Q3_K";
  static constexpr uint32_t kGgufType = 11;
  static constexpr int kElems = 256;
  uint8_t hmask[32];   // bit p of byte l: the top bit of element 32 p + l
  uint8_t qs[64];      // 32 bytes for each 128 elements; element l + 32 j: bits 2 j of byte l
  uint8_t scales[12];  // scale plus 32: low nibbles in bytes 0..7 (0..7 low, 8..15 high), top two
                       // bits of scale 4 j + i in bits 2 j of byte 8 + i
  uint16_t d;          // f16
};
static_assert(sizeof(BlockQ3K) == 110 && alignof(BlockQ3K) == 2);

constexpr int group_scale(const BlockQ3K& b, int group) {
  const int low = b.scales[group % 8] >> group / 8 * 4 & 15;
  const int top = b.scales[8 + group % 4] >> group / 4 * 2 & 3;
  return (low | top << 4) - 32;
}

// The quants minus 4 of elements 32 part .. 32 part + 31.
constexpr void unpack_part(const BlockQ3K& b, int part, int8_t* q) {
  const uint8_t* qs = b.qs + part / 4 * 32;
  const int shift = part % 4 * 2;
  for (int i = 0; i < 32; ++i) {
    q[i] = static_cast<int8_t>((qs[i] >> shift & 3) + (b.hmask[i] >> part & 1) * 4 - 4);
  }
}

// Exact: 11 + 5 + 2 bits fit an f32.
constexpr void decode(const BlockQ3K& b, float* out) {
  const float d = f16_to_f32(b.d);
  for (int part = 0; part < 8; ++part) {
    int8_t q[32];
    unpack_part(b, part, q);
    for (int i = 0; i < 32; ++i) {
      const float scale = d * static_cast<float>(group_scale(b, part * 2 + i / 16));
      out[32 * part + i] = scale * static_cast<float>(q[i]);
    }
  }
}

inline void encode(const float* in, BlockQ3K& b) {
  float scale[16];
  float largest = 0;
  for (int g = 0; g < 16; ++g) {
    scale[g] = best_signed_scale(in + 16 * g, 4);
    if (std::fabs(scale[g]) > std::fabs(largest)) largest = scale[g];
  }
  const float inverse = largest != 0 ? -32 / largest : 0;
  b = {};
  b.d = f32_to_f16(largest / -32);
  const float d = f16_to_f32(b.d);
  for (int g = 0; g < 16; ++g) {
    const int s = round_within(scale[g] * inverse, -32, 31) + 32;
    b.scales[g % 8] = static_cast<uint8_t>(b.scales[g % 8] | (s & 15) << g / 8 * 4);
    b.scales[8 + g % 4] = static_cast<uint8_t>(b.scales[8 + g % 4] | s >> 4 << g / 4 * 2);
    const float step = d * static_cast<float>(s - 32);
    const float per_step = step != 0 ? 1 / step : 0;
    for (int i = 16 * g; i < 16 * g + 16; ++i) {
      const int q = step != 0 ? round_within(in[i] * per_step, -4, 3) + 4 : 4;
      uint8_t& low = b.qs[i / 128 * 32 + i % 32];
      low = static_cast<uint8_t>(low | (q & 3) << i / 32 % 4 * 2);
      b.hmask[i % 32] = static_cast<uint8_t>(b.hmask[i % 32] | q >> 2 << i / 32);
    }
  }
}

}  // namespace sluice
