// Rows of x in two bytes an element (SplitRows), from the threads that hold their columns: for the
// kernels that make x, and those that read it once more.
#pragma once

#include "backend/cuda/codes.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/packed.cuh"

namespace sluice::cuda {

__device__ inline float warp_most(float most) {
  for (int step = 16; step > 0; step /= 2)
    most = larger(most, __shfl_xor_sync(0xffffffffu, most, step));
  return most;
}

// For integer_product(): x = scale * (128 * high + low).
struct IntegerSplit {
  using Sum = int2;
  static constexpr float kMostX = 127 * 128;
  float scale, inverse;

  // most: the largest magnitude of the 256 columns. Not finite: the scale is NaN, codes are 0.
  __device__ explicit IntegerSplit(float most) {
    const bool finite = __float_as_uint(most) < 0x7f800000u;
    scale = finite ? most / kMostX : __uint_as_float(0x7fc00000u);
    inverse = finite && most > 1e-30f ? kMostX / most : 0;
  }
  // Columns 4 four to 4 four + 3 of the 256 and the sum of their codes. Columns 0, 2, 1, 3 of each
  // four, as packed codes have them.
  __device__ Sum put(uint8_t* codes, int four, const float* v) const {
    int high[4], low[4];
    Sum sum{};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int q = __float2int_rn(v[i] * inverse);
      high[i] = (q + 64) >> 7;
      low[i] = q - high[i] * 128;
      sum.x += high[i], sum.y += low[i];
    }
    const auto word = [](const int* q) {
      return static_cast<uint32_t>(q[0] & 255) | static_cast<uint32_t>(q[2] & 255) << 8 |
             static_cast<uint32_t>(q[1] & 255) << 16 | static_cast<uint32_t>(q[3] & 255) << 24;
    };
    auto* words =
        reinterpret_cast<uint32_t*>(codes + four / 8 * 64 + four % 4 * 8 + four / 4 % 2 * 4);
    words[0] = word(high);
    words[8] = word(low);
    return sum;
  }
  static __device__ Sum added(Sum a, Sum b) { return {a.x + b.x, a.y + b.y}; }
  static __device__ Sum other(Sum s, int step) {
    return {__shfl_xor_sync(0xffffffffu, s.x, step), __shfl_xor_sync(0xffffffffu, s.y, step)};
  }
  // Of the 32 columns from 32 unit on, in two digits each.
  static __device__ void put_sum(uint8_t* sums, int unit, Sum sum) {
    const auto put = [](uint8_t* digits, int s) {
      const int upper = (s + 64) >> 7;
      digits[0] = static_cast<uint8_t>(s - upper * 128);
      digits[4] = static_cast<uint8_t>(upper);
    };
    uint8_t* to = sums + unit / 4 * 8 + unit % 4;
    put(to, sum.x);
    put(to + 16, sum.y);
  }
};

// For half_product(). The scale is a power of two: the largest element becomes 1 to 2, and a bf16
// element above 2^-16 of the largest is exact.
struct HalfSplit {
  using Sum = float;
  float scale, inverse;

  __device__ explicit HalfSplit(float most) {
    const bool zero = most < 1e-30f;
    scale = zero ? 0 : __uint_as_float(__float_as_uint(most) & 0x7f800000u);
    inverse = zero ? 0 : 1 / scale;
  }
  // Two times 16 columns side by side, four of each for a lane of the product.
  __device__ Sum put(uint8_t* codes, int four, const float* v) const {
    Pack<__half2, 2> h;
    float sum[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      h.v[i] = __floats2half2_rn(v[2 * i] * inverse, v[2 * i + 1] * inverse);
      const float2 rounded = __half22float2(h.v[i]);
      sum[i] = rounded.x + rounded.y;
    }
    *reinterpret_cast<Pack<__half2, 2>*>(codes + four / 8 * 64 + four % 4 * 16 + four / 4 % 2 * 8) =
        h;
    return sum[0] + sum[1];
  }
  static __device__ Sum added(Sum a, Sum b) { return a + b; }
  static __device__ Sum other(Sum s, int step) { return __shfl_xor_sync(0xffffffffu, s, step); }
  // In two halves.
  static __device__ void put_sum(uint8_t* sums, int unit, Sum sum) {
    auto* to = reinterpret_cast<__half*>(sums + unit / 2 * 8) + unit % 2;
    const __half high = __float2half_rn(sum);
    to[0] = high;
    to[2] = __float2half_rn(sum - __half2float(high));
  }
};

// Puts a thread's 4 * kFours columns, from column 4 * first_four on, of the block of 256 columns
// number `at` (row by row). most: the largest magnitude of the block. Neighbouring threads have
// neighbouring columns, and all threads of a warp call it. The same bits for every kFours.
template <typename Split, int kFours>
__device__ inline void put_split(
    const SplitRows& to, int64_t at, int first_four, const float (&v)[4 * kFours], float most) {
  const Split split(most);
  uint8_t* codes = to.codes + at * kSplitCodes;
  typename Split::Sum sum = split.put(codes, first_four, v);
  if constexpr (kFours == 2) sum = Split::added(sum, split.put(codes, first_four + 1, v + 4));
  static_assert(kFours <= 2);
#pragma unroll
  for (int step = 1; step < 8 / kFours; step *= 2) sum = Split::added(sum, Split::other(sum, step));
  if (first_four % 8 == 0) Split::put_sum(to.sums + at * kSplitSums, first_four / 8, sum);
  if (first_four == 0) to.scales[at] = split.scale;
}

template <int kFours>
__device__ inline void put_split(
    const SplitOut& to, int64_t at, int first_four, const float (&v)[4 * kFours], float most) {
  if (to.kind == FewRows::halves)
    return put_split<HalfSplit, kFours>(to.rows, at, first_four, v, most);
  put_split<IntegerSplit, kFours>(to.rows, at, first_four, v, most);
}

}  // namespace sluice::cuda
