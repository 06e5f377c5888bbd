// y [n, rows] = x [n, cols] · wᵀ + bias for few rows of x, where reading w is all that takes time.
// Weights may be in f8, x then stays as it is. The first weights are on their way before a kernel
// waits for x. Two kernels: skinny() for up to 8 rows, whose blocks have 16 weight rows and share
// out the columns among warps, and narrow() for up to 32, whose blocks have 128 weight rows, share
// x through shared memory, and may split the columns over a cluster of blocks.
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/gemm.cuh"

namespace sluice::cuda {

inline constexpr int kMaxSkinny = 8, kMaxNarrow = 32;
inline constexpr int kMaxNarrow8 = 16;  // weights in f8: from there on cuBLAS reads x in f8 too
inline constexpr int kNarrowSplits[] = {1, 2, 4, 8};

// Whether they take it: half types, widths that are multiples of eight (of 16 in f8).
bool can_stream(const Tensor& out, const Tensor& x, const GemmWeight& w);
void skinny(Tensor out, Tensor x, const GemmWeight& w, cudaStream_t stream);
void narrow(Tensor out, Tensor x, const GemmWeight& w, int splits, cudaStream_t stream);

// x in e4m3, each row with its own scale: the largest element becomes 448.
void quantize_rows(const QuantizedRows& out, Tensor x, cudaStream_t stream);
// A weight [rows, cols] of a half type, the same way.
void quantize_weight(void* out, float* scale, Tensor w, cudaStream_t stream);

}  // namespace sluice::cuda
