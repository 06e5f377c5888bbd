// Where a model runs, and in which types: --device, --dtype and --quantize, checked together.
#pragma once

#include <string>

#include "backend/cuda_plugin.h"
#include "base/result.h"
#include "model/model.h"
#include "runtime/options.h"
#include "tensor/checkpoint.h"

namespace sluice {

// Makes `auto` a device that is there, and the options' defaults that device's; refuses what it
// does not do.
Result<void> choose_device(EngineOptions& options, const ModelShape& shape);
// The same for a GPU whether one is there or not.
Result<void> choose_gpu(EngineOptions& options, const ModelShape& shape);

// Why there is no GPU to use, in one line; empty where there is one, or where nothing suggests it.
std::string why_no_gpu(const GpuFacts& facts);

// For a GPU that was chosen.
Result<CudaOptions> cuda_options(const EngineOptions& options, const Checkpoint& checkpoint);

}  // namespace sluice
