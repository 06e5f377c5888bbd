// Q6_K: 256 elements of 6 bits in sixteen groups of 16, a signed byte scale each and one half
// scale. value = d * scale[group] * (q - 32).
#pragma once

#include <cmath>
#include <cstdint>

#include "tensor/formats/f16.h"
#include "tensor/formats/k_scales.h"
#include "tensor/tensor.h"

namespace sluice {

// Each half of the block (128 elements) has 64 bytes of ql and 32 of qh. Elements l, l + 32, l + 64
// and l + 96 (l < 32) of a half share qh[l], two bits each, low first; their low nibbles are
// ql[l] & 15, ql[l + 32] & 15, ql[l] >> 4, ql[l + 32] >> 4.
struct BlockQ6K {
  static constexpr Format kFormat = Format::q6_k;
  static constexpr const char* kName = "Q6_K";
  static constexpr uint32_t kGgufType = 14;
  static constexpr int kElems = 256;
  uint8_t ql[128];
  uint8_t qh[64];
  int8_t scales[16];  // of elements 16 i .. 16 i + 15
  uint16_t d;         // f16
};
static_assert(sizeof(BlockQ6K) == 210 && alignof(BlockQ6K) == 2);

// The 6-bit quants minus 32, in element order.
constexpr void unpack(const BlockQ6K& b, int8_t* q) {
  for (int half = 0; half < 2; ++half) {
    const uint8_t* ql = b.ql + 64 * half;
    const uint8_t* qh = b.qh + 32 * half;
    for (int l = 0; l < 32; ++l) {
      int8_t* at = q + 128 * half + l;
      at[0] = static_cast<int8_t>(((ql[l] & 15) | (qh[l] & 3) << 4) - 32);
      at[32] = static_cast<int8_t>(((ql[l + 32] & 15) | (qh[l] >> 2 & 3) << 4) - 32);
      at[64] = static_cast<int8_t>((ql[l] >> 4 | (qh[l] >> 4 & 3) << 4) - 32);
      at[96] = static_cast<int8_t>((ql[l + 32] >> 4 | qh[l] >> 6 << 4) - 32);
    }
  }
}

// The inverse: q in [-32, 31].
inline void pack(const int8_t* q, BlockQ6K& b) {
  for (int half = 0; half < 2; ++half) {
    for (int l = 0; l < 32; ++l) {
      const int8_t* at = q + 128 * half + l;
      const int v[4] = {at[0] + 32, at[32] + 32, at[64] + 32, at[96] + 32};
      b.ql[64 * half + l] = static_cast<uint8_t>((v[0] & 15) | (v[2] & 15) << 4);
      b.ql[64 * half + l + 32] = static_cast<uint8_t>((v[1] & 15) | (v[3] & 15) << 4);
      b.qh[32 * half + l] =
          static_cast<uint8_t>(v[0] >> 4 | v[1] >> 4 << 2 | v[2] >> 4 << 4 | v[3] >> 4 << 6);
    }
  }
}

// Exact: 11 + 7 + 6 bits fit an f32.
constexpr void decode(const BlockQ6K& b, float* out) {
  int8_t q[256];
  unpack(b, q);
  const float d = f16_to_f32(b.d);
  for (int i = 0; i < 256; ++i) {
    out[i] = d * static_cast<float>(b.scales[i / 16]) * static_cast<float>(q[i]);
  }
}

inline void encode(const float* in, BlockQ6K& b) {
  float scale[16];
  float largest = 0;
  for (int g = 0; g < 16; ++g) {
    scale[g] = best_signed_scale(in + 16 * g, 32);
    if (std::fabs(scale[g]) > std::fabs(largest)) largest = scale[g];
  }
  const float inverse = largest != 0 ? -128 / largest : 0;
  b.d = f32_to_f16(largest / -128);
  const float d = f16_to_f32(b.d);
  int8_t q[256];
  for (int g = 0; g < 16; ++g) {
    b.scales[g] = static_cast<int8_t>(round_within(scale[g] * inverse, -128, 127));
    const float step = d * static_cast<float>(b.scales[g]);
    const float per_step = step != 0 ? 1 / step : 0;
    for (int i = 16 * g; i < 16 * g + 16; ++i) {
      q[i] = static_cast<int8_t>(step != 0 ? round_within(in[i] * per_step, -32, 31) : 0);
    }
  }
  pack(q, b);
}

}  // namespace sluice
