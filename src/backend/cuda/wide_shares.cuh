// wide() of few rows of x where tiles do not come out even among the multiprocessors: all blocks
// have the same number of boxes.
#pragma once

#include <cstdint>

#include "backend/cuda/boxed.cuh"
#include "backend/cuda/handover.cuh"

namespace sluice::cuda {

// Whether this is so, with one range of columns, and there is memory for it. width: rows of x of a
// tile, which is all of them: 32 or 64.
bool can_share(
    const GemmWeight& w, int64_t n, int splits, int width, int num_sms, const Handover& handover);
void wide_shares(const BoxedArgs& a,
                 const Tensor& x,
                 const Tensor& weight,
                 int width,
                 int num_sms,
                 cudaStream_t stream,
                 const Handover& handover);
// About how many clocks it takes.
int64_t share_clocks(const GemmWeight& w, int num_sms);

}  // namespace sluice::cuda
