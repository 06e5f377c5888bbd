// Rows in e4m3 with a scale each, by the blocks that hold them.
#pragma once

#include "backend/cuda/cluster.cuh"
#include "backend/cuda/elementwise.cuh"
#include "backend/cuda/launch.cuh"

namespace sluice::cuda {

// What one step of e4m3 codes is worth in a row whose largest element is `most`: that becomes 448.
struct Unit {
  float value, inverse;
  __device__ explicit Unit(float most) : value(most > 0 ? most / 448 : 1), inverse(1 / value) {}
};

__device__ inline float block_max(float v, float* shared) {
  for (int step = 16; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, step));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  float most = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) most = fmaxf(most, shared[w]);
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
    most = fmaxf(most, load_remote(in_block(at, rank)));
  cluster_arrive();
  return most;
}
__device__ inline void leave_cluster_max() { cluster_wait(); }

// The block's row in e4m3 with its scale, from what its threads hold: kVecs groups of N
// neighbouring columns, groups of all threads side by side.
template <int kVecs, int N>
__device__ inline void store_codes(const F8View& codes,
                                   const float (&v)[kVecs][N],
                                   int cols,
                                   float* shared) {
  auto column = [](int k) {
    return (static_cast<int>(threadIdx.x) + k * static_cast<int>(blockDim.x)) * N;
  };
  float most = 0;
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    for (int i = 0; i < N; ++i) most = fmaxf(most, column(k) < cols ? fabsf(v[k][i]) : 0);
  }
  Unit unit(block_max(most, shared));
  if (threadIdx.x == 0) codes.scale[blockIdx.x] = unit.value;
  auto* to = static_cast<__nv_fp8_e4m3*>(codes.data) + static_cast<int64_t>(blockIdx.x) * cols;
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    if (column(k) >= cols) continue;
    Pack<__nv_fp8_e4m3, N> q;
    for (int i = 0; i < N; ++i) q.v[i] = from_float<__nv_fp8_e4m3>(v[k][i] * unit.inverse);
    *reinterpret_cast<Pack<__nv_fp8_e4m3, N>*>(to + column(k)) = q;
  }
}

}  // namespace sluice::cuda
