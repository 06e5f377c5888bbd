// Gate and up's product with the activation and quantising inside, for prompts: sums never leave a
// core's caches. Driven by the device thread.
#pragma once

#include "backend/backend.h"
#include "backend/cpu/matmul/matmul.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/vector_math.h"
#include "base/thread_pool.h"

namespace sluice {

struct GatedProduct {
  const Act& out;         // [m, f]
  const Act& x;           // [m, w.cols]
  const PackedWeight& w;  // [2 f, cols]: gate, then up
  Activation activation;
};

// Memory between calls: sums of gate and up for each thread. Grows to what was needed most.
struct GatedScratch {
  Buffer sums;
};

// out = activation(gate) * up, with the bits of the product and the activation one after the other.
// False: nothing was done, and those two are no slower. So it is
// - for few rows, whose sums stay in the caches between the two;
// - where out is wanted in f32 or quantised by whole rows: f32 in pieces of a row is slow to write,
//   and read once more for a row's scale (w8a8: 0.97 times the speed, VNNI);
// - where gate and up are one tensor, differ in format, or are too small for the threads.
bool matmul_gated(ThreadPool& pool,
                  const GatedProduct& product,
                  const VectorKernels& kernels,
                  MatmulScratch& scratch,
                  GatedScratch& own);

}  // namespace sluice
