// Weights that stay on the GPU in their file's format (cuda_packed.h has the layout).
// streamed() is their product for few rows of x: it reads each weight once and decodes in
// registers. A row of x has the same bits whatever the number of rows: each of eight warps adds up
// every eighth tile of 64 columns in ascending order, scaled group by group in f32, then the warps'
// sums are added in order. For many rows decode_packed() gives the products of skinny.cuh and
// cuBLAS their 16 bits.
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda_packed.h"
#include "tensor/tensor.h"

namespace sluice::cuda {

// Rows of one format, whole or a range of a weight's.
struct PackedPart {
  Format format = Format::q8_0;
  uint8_t* data = nullptr;  // PackedShape(format, rows, cols).bytes()
  int64_t rows = 0, cols = 0;
};

// Up to so many rows of x streamed() is faster than decoding first. More than any kernel takes that
// reads weights before it waits for the kernel before it: that one decodes them.
inline constexpr int kMaxStreamed = 64;

// Rows [first, first + rows) of the part from blocks in the file's order; `first` a multiple of 16.
void pack(const PackedPart& to, int64_t first, int64_t rows, const void* raw, cudaStream_t stream);

// out [n, rows] = x [n, cols] · wᵀ + bias. x of a half type, rows of 8 bytes' alignment; out of
// x's type or f32; bias [rows] or null.
void streamed(Tensor out, Tensor x, const PackedPart& w, const float* bias, cudaStream_t stream);

// out [num, cols] of a half type: rows [first, first + num) of w.
void decode_packed(
    void* out, DType type, const PackedPart& w, int64_t first, int64_t num, cudaStream_t stream);

// out [n, cols] = rows `tokens` of the table.
void embed_packed(Tensor out, const PackedPart& table, const int32_t* tokens, cudaStream_t stream);

}  // namespace sluice::cuda
