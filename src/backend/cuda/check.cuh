// Errors of the CUDA runtime become exceptions: the step fails, the engine lives. Out of memory is
// std::bad_alloc.
#pragma once

#include <cuda_runtime.h>

#include <new>
#include <stdexcept>
#include <string>

#include "backend/cuda/target.cuh"

namespace sluice::cuda {

inline void check(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return;
  if (e == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    throw std::bad_alloc();
  }
  throw std::runtime_error(std::string("CUDA: ") + what + ": " + cudaGetErrorString(e));
}

// After a launch.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

// Lets a kernel have so much dynamic shared memory, once on each device.
template <auto kKernel>
void allow_shared(int bytes, const char* name) {
  constexpr int kDevices = 64;
  static bool done[kDevices] = {};
  int device = 0;
  check(cudaGetDevice(&device), name);
  if (device < kDevices && done[device]) return;
  cudaFuncAttributes kernel{};
  check(cudaFuncGetAttributes(&kernel, kKernel), name);
  if (kernel.sharedSizeBytes + static_cast<size_t>(bytes) > target().shared)
    throw std::logic_error(std::string("CUDA: ") + name +
                           " takes more shared memory than there is");
  check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), name);
  if (device < kDevices) done[device] = true;
}

}  // namespace sluice::cuda
