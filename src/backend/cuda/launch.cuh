// Kernel launches that overlap the end of the kernel before (programmatic dependent launch) where
// the GPU has that, and conversions between element types.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "backend/cuda/arch.cuh"
#include "backend/cuda/check.cuh"
#include "backend/cuda/target.cuh"
#include "tensor/tensor.h"

namespace sluice::cuda {

// The kernel must call wait_for_inputs() before it touches memory that an earlier kernel wrote or
// still reads.
template <typename... Params, typename... Args>
void launch(const char* name,
            void (*kernel)(Params...),
            dim3 grid,
            dim3 block,
            size_t shared,
            cudaStream_t stream,
            Args&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = target().overlap ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(std::forward<Args>(args))...),
        name);
}

__device__ inline void wait_for_inputs() {
#if SLUICE_HAS_CLUSTERS
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// From here on the next kernel may take what this one leaves free of the device.
__device__ inline void let_next_start() {
#if SLUICE_HAS_CLUSTERS
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ inline float to_float(float v) { return v; }
__device__ inline float to_float(__half v) { return __half2float(v); }
__device__ inline float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline float to_float(__nv_fp8_e4m3 v) { return static_cast<float>(v); }

// Rounds to nearest even; halves and fp8 saturate to the largest finite value.
template <typename T>
__device__ inline T from_float(float v);
template <>
__device__ inline float from_float<float>(float v) {
  return v;
}
template <>
__device__ inline __half from_float<__half>(float v) {
  return __float2half_rn(fminf(fmaxf(v, -65504.0f), 65504.0f));
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}
template <>
__device__ inline __nv_fp8_e4m3 from_float<__nv_fp8_e4m3>(float v) {
  return __nv_fp8_e4m3(v);
}

inline int ceil_div(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

// N neighbouring elements in one access.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};

// Calls f with a value of the element type.
template <typename F>
void with_type(DType type, F&& f) {
  switch (type) {
    case DType::f32:
      return f(float{});
    case DType::f16:
      return f(__half{});
    case DType::bf16:
      return f(__nv_bfloat16{});
    case DType::f8:
    case DType::i8:
      break;
  }
  throw std::runtime_error("CUDA: 8 bits are not a type of activations");
}

__device__ inline float warp_sum(float v) {
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
  return v;
}

// The same bits for every thread; the order of addition depends on blockDim.x alone. `shared` has
// 33 floats; all threads call it.
__device__ inline float block_sum(float v, float* shared) {
  v = warp_sum(v);
  int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int warps = (static_cast<int>(blockDim.x) + 31) / 32;
  if (lane == 0) shared[warp] = v;
  __syncthreads();
  if (warp == 0) {
    float s = warp_sum(lane < warps ? shared[lane] : 0);
    if (lane == 0) shared[32] = s;
  }
  __syncthreads();
  float total = shared[32];
  __syncthreads();
  return total;
}

}  // namespace sluice::cuda
