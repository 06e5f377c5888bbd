// wide() in int8, where there are tiles enough for all multiprocessors.
#pragma once

#include "backend/cuda/boxed.cuh"

namespace sluice::cuda {

void wide_int8(
    const BoxedArgs& a, const Tensor& x, const Tensor& weight, int num_sms, cudaStream_t stream);

}  // namespace sluice::cuda
