// Half precision and bfloat16 as bits, and their conversions: portable, exact, rounding to nearest
// even, bit-equal to the hardware's (VCVTPH2PS, VCVTPS2PH, FCVT), NaNs quietened as there.
#pragma once

#include <bit>
#include <cstdint>

namespace sluice {

constexpr float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t mag = h & 0x7fffu;
  // Subnormals are mag * 2^-24: an exact product that needs no f32 subnormals, so FTZ/DAZ are fine.
  if (mag < 0x400u) {
    return std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(mag) * 0x1p-24f) | sign);
  }
  uint32_t bits = (mag << 13) + (112u << 23);
  if (mag >= 0x7c00u) bits += 112u << 23;
  if (mag > 0x7c00u) bits |= 0x400000u;
  return std::bit_cast<float>(bits | sign);
}

constexpr uint16_t f32_to_f16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t mag = bits & 0x7fffffffu;
  if (mag > 0x7f800000u) {
    mag = 0x7e00u | ((mag >> 13) & 0x1ffu);
  } else if (mag >= 0x477ff000u) {  // 65520 and above round to infinity
    mag = 0x7c00u;
  } else if (mag < 0x38800000u) {  // below 2^-14: an ulp of 0.5f is the smallest half, 2^-24
    mag = std::bit_cast<uint32_t>(std::bit_cast<float>(mag) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  } else {
    mag = (mag + 0xfffu + ((mag >> 13) & 1u) - (112u << 23)) >> 13;
  }
  return static_cast<uint16_t>(sign | mag);
}

constexpr float bf16_to_f32(uint16_t b) {
  return std::bit_cast<float>(static_cast<uint32_t>(b) << 16);
}

constexpr uint16_t f32_to_bf16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Nearest integer, halves away from zero, held within [lo, hi]; NaN gives lo.
inline int round_within(float v, int lo, int hi) {
  if (!(v > static_cast<float>(lo))) return lo;
  if (v > static_cast<float>(hi)) return hi;
  const int whole = static_cast<int>(v);
  const float rest = v - static_cast<float>(whole);  // exact
  return whole + (rest >= 0.5f) - (rest <= -0.5f);
}

}  // namespace sluice
