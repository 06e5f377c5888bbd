// 8-bit floats where the GPU has no instructions for them. Device code.
#pragma once

#include <cstdint>

namespace sluice::cuda {

// Two e4m3 in the upper halves of 16 bits each as a pair of halves. Sign, exponent and mantissa
// move into place; the product with 2^8 (15 - 7, the difference of the biases) sets the exponent
// right, for subnormals too.
__device__ inline uint32_t f8_bits_to_half(uint32_t high) {
  uint32_t bits = ((high >> 1) & 0x3f803f80u) | (high & 0x80008000u), r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(bits), "r"(0x5c005c00u));
  return r;
}

}  // namespace sluice::cuda
