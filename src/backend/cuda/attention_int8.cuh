// K and V as int8 codes with f16 scales (KvType), as the tiled kernels read them. Device code.
//
// A head's part of a block: codes [block_size, head_dim], each plus 128, then scales
// [head_dim / group, block_size]. A tile in shared memory has the rows of K, those of V, and behind
// them the scales of K and of V, [groups, positions]. Products are in f16: a code is exact there,
// and so is one times its scale to within 2^-12. Queries are divided by a power of two.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace sluice::cuda {

struct Codes32 {  // groups of 32 dimensions, or of 64 whose scales are copied twice
  uint8_t code;
};
struct Codes8 {  // groups of 8
  uint8_t code;
};
template <typename KV>
inline constexpr bool kIsCodes = std::is_same_v<KV, Codes32> || std::is_same_v<KV, Codes8>;

// Type of the tensor cores' operands for queries of T.
template <typename T, typename KV>
using Operand = std::conditional_t<kIsCodes<KV>, __half, T>;

// Scales of a tile in shared memory.
template <typename KV, int D, int kPositions>
struct ScaleRows {
  static constexpr int kNum = !kIsCodes<KV> ? 0 : std::is_same_v<KV, Codes8> ? D / 8 : D / 32;
  static constexpr int kStride = kPositions * 2;  // bytes of a group
  static constexpr int kSize = kNum * kStride;    // of K, or of V
};

// Whether products with K take codes as they are stored, plus 128 and as f16's subnormals, and
// start from what that adds (Queries::bias). It takes registers.
template <typename KV, int D>
inline constexpr bool kBiased = std::is_same_v<KV, Codes32>&& D <= 128;

__device__ inline uint32_t load_shared(uint32_t address) {
  uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
__device__ inline uint32_t load_shared_half(uint32_t address) {
  uint16_t x;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(x) : "r"(address) : "memory");
  return x;
}

// d [16, 8] = a [16, 16] · b [16, 8] + c, in f16.
__device__ inline void mma_onto(
    float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const float (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%11,%12,%13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
}

// Bytes kLo and kHi of x as a pair of halves: times 2^-24, or with `base` 0x64646464 plus 1024.
template <int kLo, int kHi>
__device__ uint32_t code_pair(uint32_t x, uint32_t base) {
  return __byte_perm(x, base, 0x4040 | kLo | kHi << 8);
}
// The same less 1152: codes themselves, of pairs that have the base.
__device__ inline uint32_t less_bias(uint32_t high) {
  uint32_t r;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(high), "r"(0xe480e480u));
  return r;
}
template <int kLo, int kHi>
__device__ uint32_t exact_codes(uint32_t x) {
  return less_bias(code_pair<kLo, kHi>(x, 0x64646464u));
}
template <int kLo, int kHi>
__device__ uint32_t scaled_codes(uint32_t x, uint32_t scales) {
  uint32_t r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(exact_codes<kLo, kHi>(x)), "r"(scales));
  return r;
}

// The scales of positions `at` and the one behind it.
__device__ inline float2 scale_pair(uint32_t at) {
  uint32_t x = load_shared(at);
  return __half22float2(reinterpret_cast<const __half2&>(x));
}
__device__ inline float scale_of(uint32_t at) {
  auto x = static_cast<uint16_t>(load_shared_half(at));
  return __half2float(reinterpret_cast<const __half&>(x));
}
// The scale of one position, twice.
__device__ inline uint32_t scale_twice(uint32_t at) {
  return __byte_perm(load_shared_half(at), 0, 0x1010);
}

// V's scales of the first `num` positions become zero; a thread clears one position's.
template <typename Scales>
__device__ void clear_scales(uint32_t values, int num, int thread) {
  if (thread >= num) return;
#pragma unroll 1
  for (int g = 0; g < Scales::kNum; ++g) {
    uint32_t at = values + static_cast<uint32_t>(g * Scales::kStride + thread * 2);
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(at), "h"(uint16_t{0}) : "memory");
  }
}

}  // namespace sluice::cuda
