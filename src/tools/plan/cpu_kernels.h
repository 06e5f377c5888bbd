// The kernels that a model's steps run on this CPU, with their rates: kept, or measured and kept.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "backend/cpu/matmul/load_quant.h"
#include "tensor/checkpoint.h"
#include "tools/cpu_limits.h"
#include "tools/plan/derive.h"

namespace sluice {

// Weights of a step's products, by kernel. Those of the logits apart: only sampled rows need them.
struct KernelUse {
  const MatmulRow* kernel = nullptr;
  double body = 0, logits = 0;
  int calls = 0;  // of the body's: tensors that are one weight (Q, K and V) have one
};
std::vector<KernelUse> kernels_of(const Checkpoint& file, const LoadQuant& quant);

// Measures what `limits` does not have for so many threads, and adds it; `say` hears of each kernel
// before it is measured. True if anything was added.
bool complete_rates(CpuLimits& limits,
                    std::span<const KernelUse> uses,
                    const ModelShape& shape,
                    int threads,
                    const std::function<void(const std::string& kernel)>& say);

// From limits that have all of them.
CpuKernels kernels_with_rates(const CpuLimits& limits,
                              std::span<const KernelUse> uses,
                              const ModelShape& shape,
                              int threads);

// All of it for this machine: one line on stderr where it measures.
CpuKernels this_cpu(const Checkpoint& file,
                    const ModelShape& shape,
                    const LoadQuant& quant,
                    int threads,
                    bool quiet);

}  // namespace sluice
