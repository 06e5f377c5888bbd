// An MLP's activation functions. Device code.
#pragma once

#include "backend/backend.h"

namespace sluice::cuda {

__device__ inline float activated(float x, Activation activation) {
  if (activation == Activation::silu) return __fdividef(x, 1 + __expf(-x));
  float inner = 0.7978845608f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1 + tanhf(inner));
}

}  // namespace sluice::cuda
