// Random tensor data, written straight as a format's blocks. Counter-based: a byte depends only on
// the key and on its block's index, so any range can be filled by any thread. No state.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/random.h"
#include "tensor/tensor.h"

namespace sluice {

struct RandomMatrix {
  Format format = Format::f32;
  uint64_t key = 0;
  int64_t cols = 0;  // mean 0, standard deviation 1 / sqrt(cols)
};

// Ranges are in units: a block of a quantised format, or 64 elements of a plain one (the last unit
// of a tensor may be cut short by `num_elems`).
int64_t random_unit_elems(Format format);

// Fills units [begin, end) of `tensor` (its first byte), which has num_elems elements in all.
void fill_random(
    const RandomMatrix& m, std::byte* tensor, int64_t num_elems, int64_t begin, int64_t end);

}  // namespace sluice
