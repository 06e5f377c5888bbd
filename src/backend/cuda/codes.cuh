// Rows of 8-bit codes with a scale each, by the blocks that hold them.
#pragma once

#include "backend/cuda/cluster.cuh"
#include "backend/cuda/elementwise.cuh"
#include "backend/cuda/launch.cuh"

namespace sluice::cuda {

// The larger magnitude. By their bits, so that an infinity or a NaN stays.
__device__ inline float larger(float most, float v) {
  return __uint_as_float(max(__float_as_uint(most), __float_as_uint(fabsf(v))));
}

// The scale of a row whose largest element is `most`. In e4m3 that element becomes 448; in i8 the
// rules are those of cpu/quantize.h, to the bit.
struct Unit {
  float value, inverse;
  bool i8;
  __device__ Unit(float most, DType type) : i8(type == DType::i8) {
    if (!i8) {
      value = most > 0 ? most / 448 : 1;
      inverse = 1 / value;
    } else if (__float_as_uint(most) >= 0x7f800000u) {
      value = __uint_as_float(0x7fc00000u), inverse = 0;
    } else {
      const bool zero = most < 1e-30f;
      value = zero ? 0 : most / 127;
      inverse = zero ? 0 : 127 / most;
    }
  }
  __device__ uint8_t code(float v) const {
    if (i8) return static_cast<uint8_t>(__float2int_rn(v * inverse));
    return from_float<__nv_fp8_e4m3>(v * inverse).__x;
  }
};

__device__ inline float block_max(float v, float* shared) {
  for (int step = 16; step > 0; step /= 2) v = larger(v, __shfl_xor_sync(0xffffffffu, v, step));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  float most = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) most = larger(most, shared[w]);
  __syncthreads();
  return most;
}

// The largest over all blocks of the cluster, once per kernel; before a block ends, it calls
// leave_cluster_max(): others may still read its memory.
constexpr int kClusterMaxFloats = 33;
__device__ inline float cluster_max(float v, float* shared) {
  float most = block_max(v, shared);
  if (threadIdx.x == 0) shared[32] = most;
  cluster_arrive();
  cluster_wait();
  auto at = static_cast<uint32_t>(__cvta_generic_to_shared(shared + 32));
  for (int rank = 0; rank < cluster_blocks(); ++rank)
    most = larger(most, load_remote(in_block(at, rank)));
  cluster_arrive();
  return most;
}
__device__ inline void leave_cluster_max() { cluster_wait(); }

// The block's row in codes with its scale, from what its threads hold: kVecs groups of N
// neighbouring columns, groups of all threads side by side.
template <int kVecs, int N>
__device__ inline void store_codes(const CodesView& codes,
                                   const float (&v)[kVecs][N],
                                   int cols,
                                   float* shared) {
  auto column = [](int k) {
    return (static_cast<int>(threadIdx.x) + k * static_cast<int>(blockDim.x)) * N;
  };
  float most = 0;
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    for (int i = 0; i < N; ++i) most = larger(most, column(k) < cols ? v[k][i] : 0);
  }
  const Unit unit(block_max(most, shared), codes.type);
  if (threadIdx.x == 0) codes.scale[blockIdx.x] = unit.value;
  auto* to = static_cast<uint8_t*>(codes.data) + static_cast<int64_t>(blockIdx.x) * cols;
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    if (column(k) >= cols) continue;
    Pack<uint8_t, N> q;
    for (int i = 0; i < N; ++i) q.v[i] = unit.code(v[k][i]);
    *reinterpret_cast<Pack<uint8_t, N>*>(to + column(k)) = q;
  }
}

}  // namespace sluice::cuda
