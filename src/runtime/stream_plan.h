// Sizes of a LayerStream (exec/layer_stream.h) for a model in two parts. Plain functions; any
// thread.
#pragma once

#include <cstddef>

#include "base/result.h"
#include "runtime/options.h"
#include "tensor/checkpoint.h"

namespace sluice {

// Whether prompts may run through the GPU in layers of the CPU. They do not have the bits of rows
// that the CPU computes, and their K and V are converted, which those in 8 bits are not.
bool streams_prompts(const EngineOptions& options);

// The largest of the first `num_layers` layers' matrices on a GPU with these activations.
Result<size_t> stream_slot_bytes(const Checkpoint& checkpoint,
                                 const EngineOptions& options,
                                 DType activations,
                                 int num_layers);

}  // namespace sluice
