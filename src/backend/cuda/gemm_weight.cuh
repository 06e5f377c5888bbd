// A weight matrix as the GPU's products read it.
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "tensor/tensor.h"

namespace sluice::cuda {

struct GemmWeight {
  const void* data = nullptr;  // [rows, cols]
  DType type = DType::bf16;
  int64_t rows = 0, cols = 0;
  const void* bias = nullptr;  // [rows] of bias_type, the activations', or null
  DType bias_type = DType::bf16;
  const float* bias_f32 = nullptr;  // the same in f32
  const float* scale = nullptr;     // type f8 or i8: [rows], value = scale * code
};

}  // namespace sluice::cuda
