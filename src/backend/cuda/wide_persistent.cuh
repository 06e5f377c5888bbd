// wide() where there are tiles enough for all multiprocessors.
#pragma once

#include <cstdint>

#include "backend/cuda/boxed.cuh"
#include "backend/cuda/handover.cuh"

namespace sluice::cuda {

// How the work is cut. It changes no bit.
struct PersistentWay {
  // Rows of x of a tile; 0: as is probably fastest. 32, 64, 128 are for all; 192 and 256 too, but
  // of f8 192 with one range alone.
  int width = 0;
  int blocks = 0;  // that copy x for each other: 1, or 2 at a width of 256; 0: as is fastest
  // With it, few rows of x in 16 bits share out more tiles than there are multiprocessors evenly,
  // if they have one range: a block then begins a tile for the next one.
  Handover handover = {};
};
// splits: ranges of columns, as for wide().
void wide_persistent(const BoxedArgs& a,
                     const Tensor& x,
                     const Tensor& weight,
                     int splits,
                     int num_sms,
                     cudaStream_t stream,
                     PersistentWay way = {});

// Whether that is so for a weight of one range.
bool has_shares(DType type, int64_t rows, int num_sms);

// Boxes of 128 bytes in a row.
inline int num_boxes(const GemmWeight& w) {
  return ceil_div(w.cols * static_cast<int64_t>(dtype_bytes(w.type)), kRowBytes);
}
// About how many clocks it takes.
int64_t persistent_clocks(const GemmWeight& w, int64_t n, int splits, int num_sms);

}  // namespace sluice::cuda
