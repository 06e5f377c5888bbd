// The CPU's limits that benchmarks compare with: measured now, or read from the cache folder.
#pragma once

#include <string>
#include <vector>

#include "backend/device.h"
#include "model/model.h"
#include "runtime/options.h"
#include "tools/cpu_limits.h"

namespace sluice {

CpuLimits measure_with_status(bool quiet);
// Those in the cache folder, or else measured and kept there.
CpuLimits kept_limits(bool quiet);

// The limits of a run with so many threads.
struct BenchLimits {
  struct Peak {
    std::string name;
    PeakType type;
    double ops_per_s;
  };
  double read = 0;  // bytes per second
  std::vector<Peak> peaks;

  const Peak* best(PeakType type) const;  // or null
};
// threads 0: one per core. Measured now, or `cached`.
BenchLimits run_limits(int threads, bool cached, bool quiet);

// Those of the engine's GPU, measured while nobody else uses its memory.
Result<DeviceLimits> gpu_limits(const EngineOptions& options);
// The limits of the device that an engine with these options runs on, measured now: of the CPU with
// its threads, of the GPU in the activations' type. Empty where none are known.
BenchLimits engine_limits(const EngineOptions& options);

// One kind of matmul of a forward pass.
struct Product {
  const char* name;
  int64_t rows, cols;
  int times;  // per pass
};
std::vector<Product> products(const ModelShape& shape);
// Multiplications and additions of a prompt's forward pass, with the logits of its last position.
double prefill_ops(const ModelShape& shape, int tokens);

}  // namespace sluice
