// A weight matrix as the GPU's products read it.
#pragma once

#include <cstdint>
#include <optional>

#include "backend/backend.h"
#include "tensor/tensor.h"

namespace sluice::cuda {

// Makes a product put out activation(gate) * up, [n, rows / 2]: the first half of the weight's rows
// are gates, the second half ups.
struct Gate {
  // Rows of x in bf16. With more, an activation by itself is faster, but where it would read sums
  // in f32, as it does of products in f16 (docs/performance.md).
  static constexpr int kMaxRows = 64;
  static constexpr bool takes(DType type, int64_t rows) {
    return type == DType::f16 || rows <= kMaxRows;
  }

  Activation activation = Activation::silu;
  // Sums are rounded to the weight's type first, as a product by itself leaves them.
  bool rounds = true;
};

struct GemmWeight {
  const void* data = nullptr;  // [rows, cols]
  DType type = DType::bf16;
  int64_t rows = 0, cols = 0;
  const void* bias = nullptr;  // [rows] of bias_type, the activations', or null
  DType bias_type = DType::bf16;
  const float* bias_f32 = nullptr;          // the same in f32
  const float* scale = nullptr;             // type f8 or i8: [rows], value = scale * code
  std::optional<Gate> gate = std::nullopt;  // of narrow() and wide() alone
};

}  // namespace sluice::cuda
