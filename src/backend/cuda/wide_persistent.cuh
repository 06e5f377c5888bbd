// wide() where there are tiles enough for all multiprocessors.
#pragma once

#include <cstdint>

#include "backend/cuda/boxed.cuh"

namespace sluice::cuda {

// How the work is cut. It changes no bit.
struct PersistentWay {
  // Rows of x of a tile; 0: as is probably fastest. 32, 64, 128 are for all; 192 and 256 too, but
  // of f8 192 with one range alone.
  int width = 0;
  int blocks = 0;  // that copy x for each other: 1, or 2 at a width of 256; 0: as is fastest
};
// splits: ranges of columns, as for wide().
void wide_persistent(const BoxedArgs& a,
                     const Tensor& x,
                     const Tensor& weight,
                     int splits,
                     int num_sms,
                     cudaStream_t stream,
                     PersistentWay way = {});

// About how many clocks it takes.
int64_t persistent_clocks(const GemmWeight& w, int64_t n, int splits, int num_sms);

}  // namespace sluice::cuda
