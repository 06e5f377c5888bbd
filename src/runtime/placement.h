// Where a model runs, and in which types: --device, --dtype and --quantize, checked together.
#pragma once

#include <string>

#include "backend/cpu/matmul/load_quant.h"
#include "backend/cuda_plugin.h"
#include "base/result.h"
#include "model/model.h"
#include "runtime/options.h"
#include "tensor/checkpoint.h"

namespace sluice {

int num_threads(const EngineOptions& options);

// A device that is there, where none was asked for, and which of several GPUs.
DeviceChoice resolve_device(const DeviceChoice& asked);

// Writes options.step_sizes, with the defaults of options.device for what is absent, into
// options.scheduler. `shape` null: the model is not known; mixed_budget stays 0.
void resolve_step_sizes(EngineOptions& options, const ModelShape* shape);

// Resolves device and step sizes; refuses options that the device does not support.
Result<void> choose_device(EngineOptions& options, const ModelShape& shape);
// The same for a GPU whether one is there or not.
Result<void> choose_gpu(EngineOptions& options, const ModelShape& shape);

// Layers that run on the CPU where the others run on a GPU; 0: all run on one device.
int num_host_layers(const EngineOptions& options, const ModelShape& shape);
// Fixes what a model on both takes: steps follow each other. Refuses options that it does not
// support.
Result<void> choose_split(EngineOptions& options);

// Why there is no GPU to use, in one line; empty where there is one, or where nothing suggests it.
std::string why_no_gpu(const GpuFacts& facts);

// How --quantize and --quantize-exclude store weights, but for fp8, which the device does.
Result<LoadQuant> weight_quant(const EngineOptions& options, const Checkpoint& checkpoint);

// The type of a GPU's activations, and of weights that are not in 8 bits.
DType gpu_type(const EngineOptions& options, const Checkpoint& checkpoint);

// Whether K and V were asked for in 8 bits.
bool kv_in_bytes(const EngineOptions& options);

// On a GPU, where neither --deterministic nor --fast-products was given: whether bits depend on the
// batch.
void resolve_deterministic(EngineOptions& options,
                           const ModelShape& shape,
                           const Checkpoint& checkpoint);

// For options.device, which is a GPU.
Result<CudaOptions> cuda_options(const EngineOptions& options, const Checkpoint& checkpoint);

}  // namespace sluice
