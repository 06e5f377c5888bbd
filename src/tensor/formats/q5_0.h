// Q5_0: 32 codes of 5 bits and one half scale. value = d * (q - 16).
#pragma once

#include <cmath>
#include <cstdint>

#include "tensor/formats/f16.h"
#include "tensor/tensor.h"

namespace sluice {

// Codes of 5 bits in two planes: low nibbles (elements 0..15 in the low, 16..31 in the high half of
// a byte) and bit i of the four bytes `qh` as the top bit of element i.
constexpr void unpack_5_bits(const uint8_t* qs, const uint8_t* qh, uint8_t* q) {
  for (int i = 0; i < 16; ++i) {
    q[i] = static_cast<uint8_t>((qs[i] & 15) | (qh[i / 8] >> (i % 8) & 1) << 4);
    q[i + 16] = static_cast<uint8_t>(qs[i] >> 4 | (qh[2 + i / 8] >> (i % 8) & 1) << 4);
  }
}

inline void pack_5_bits(const uint8_t* q, uint8_t* qs, uint8_t* qh) {
  for (int i = 0; i < 4; ++i) {
    int bits = 0;
    for (int j = 0; j < 8; ++j) bits |= q[i * 8 + j] >> 4 << j;
    qh[i] = static_cast<uint8_t>(bits);
  }
  for (int i = 0; i < 16; ++i) qs[i] = static_cast<uint8_t>((q[i] & 15) | (q[i + 16] & 15) << 4);
}

struct BlockQ5_0 {
  static constexpr Format kFormat = Format::q5_0;
  static constexpr const char* kName = "Q5_0";
  static constexpr uint32_t kGgufType = 6;
  static constexpr int kElems = 32;
  uint16_t d;  // f16
  uint8_t qh[4];
  uint8_t qs[16];
};
static_assert(sizeof(BlockQ5_0) == 22 && alignof(BlockQ5_0) == 2);

// Exact: 11 + 5 bits fit an f32.
constexpr void decode(const BlockQ5_0& b, float* out) {
  uint8_t q[32];
  unpack_5_bits(b.qs, b.qh, q);
  const float d = f16_to_f32(b.d);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(q[i] - 16);
}

// The element of largest magnitude maps to q = 0 (-16), whatever its sign: d may be negative.
inline void encode(const float* in, BlockQ5_0& b) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) {
    if (std::fabs(in[i]) > std::fabs(largest)) largest = in[i];
  }
  const float d = largest / -16;
  const float inverse = d != 0 ? 1 / d : 0;
  b.d = f32_to_f16(d);
  uint8_t q[32];
  for (int i = 0; i < 32; ++i) {
    q[i] = static_cast<uint8_t>(round_within(in[i] * inverse + 16, 0, 31));
  }
  pack_5_bits(q, b.qs, b.qh);
}

}  // namespace sluice
