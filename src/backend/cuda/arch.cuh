// Features of the architecture for which device code is being compiled. Host code asks target()
// (target.cuh) about the GPU that is there.
#pragma once

#include <cstddef>

// Clusters of blocks, and kernels that start before the one before them ends: sm_90 and later.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define SLUICE_HAS_CLUSTERS 0
#define SLUICE_CLUSTER_DIMS(blocks)
#else
#define SLUICE_HAS_CLUSTERS 1
#define SLUICE_CLUSTER_DIMS(blocks) __cluster_dims__(blocks, 1, 1)
#endif

// Warpgroup matrix instructions: sm_90a alone. Kernels that need them are empty elsewhere, and not
// started (has_wgmma()).
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SLUICE_HAS_WGMMA 0
#else
#define SLUICE_HAS_WGMMA 1
#endif

// Conversions of 8-bit floats: sm_89 and later.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
#define SLUICE_HAS_F8 0
#else
#define SLUICE_HAS_F8 1
#endif

namespace sluice::cuda {

// Shared memory that a block may have on every GPU from 8.0 on. 8.0 and 8.7 have 163 KB; 9.0 and
// 10.0 have 227 KB.
inline constexpr size_t kLeastShared = 99 * 1024;

}  // namespace sluice::cuda
