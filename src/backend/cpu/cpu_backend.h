// The CPU backend: packed weights, paged attention and row ops on one pool of threads.
// Owned by the device thread, which is the pool's worker 0.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cpu/matmul/load_quant.h"

namespace sluice {

struct CpuOptions {
  int threads = 0;       // 0: one per usable core
  bool pin = true;       // bind threads to cores
  LoadQuant quant = {};  // what load() makes of weights
};

std::unique_ptr<Backend> make_cpu_backend(CpuOptions options);

// Sizes of weights as that backend packs or maps them.
std::unique_ptr<WeightStore> cpu_weight_sizes(LoadQuant quant);

}  // namespace sluice
