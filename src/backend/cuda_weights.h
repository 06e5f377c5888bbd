// How a GPU keeps weights and activations: rules that the CUDA backend follows and that
// cuda_weight_sizes() plans memory by. Plain functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/backend.h"

namespace sluice {

// Types of a GPU's weights, as CudaOptions has them.
struct CudaTypes {
  DType activations = DType::bf16;  // and of weights that are not in fp8
  bool fp8_weights = false;
};

// The type of matmul outputs that are not the input of another matmul. With f16 activations it is
// f32: sums keep their precision on the way to the residual stream.
inline DType cuda_output_type(const CudaTypes& types) {
  return types.activations == DType::f16 ? DType::f32 : types.activations;
}

struct CudaWeightPlan {
  int64_t rows = 0, cols = 0;
  bool layer = false;  // belongs to a layer; the embedding and the output matrix do not
  DType type = DType::bf16;
  uint8_t act = kActF32;  // ActNeeds
  size_t bytes = 0;       // elements, and in fp8 one f32 scale per row
};

// fp8 is for layers' matrices alone: the embedding and the output matrix are few and matter most.
inline CudaWeightPlan plan_cuda_weight(std::span<const WeightSegment> segments,
                                       const CudaTypes& types) {
  CudaWeightPlan p;
  for (const WeightSegment& s : segments) p.rows += s.tensor->rows;
  p.cols = segments[0].tensor->cols;
  p.layer = segments[0].tensor->name.starts_with("blk.");
  const bool f8 = types.fp8_weights && p.layer && p.rows % 16 == 0 && p.cols % 16 == 0;
  p.type = f8 ? DType::f8 : types.activations;
  p.act = f8 ? kActF32 | kActF8 : kActF32;
  const auto rows = static_cast<size_t>(p.rows), cols = static_cast<size_t>(p.cols);
  p.bytes = rows * cols * dtype_bytes(p.type) + (f8 ? rows * sizeof(float) : 0);
  return p;
}

}  // namespace sluice
