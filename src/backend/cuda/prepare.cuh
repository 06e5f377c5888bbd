// From a packet to the arrays of a step, and a wait for what the host sends later. Each queues one
// kernel on a stream.
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/attention_prefix.cuh"
#include "backend/device.h"

namespace sluice::cuda {

// Edits the tables and fills tokens, positions, row_slot, slices, out_rows and outputs.
// Rows [num_tokens, padded) are padding: token 0 at position 0 of arrays.pad_slot, a slice each
// after the packet's. Outputs [packet.num_outputs, padded) have slot -1.
// last_tokens [slots]: what chained slices take. With groups in the packet, their plan for
// attention of these sizes too.
void prepare(const Packet& packet,
             const StepArrays& arrays,
             int num_tokens,
             int padded,
             const int32_t* last_tokens,
             const PrefixSizes& sizes,
             cudaStream_t stream);

// Holds the stream until *flag, in pinned memory, is at least `value`.
void wait_for(const uint64_t* flag, uint64_t value, cudaStream_t stream);

}  // namespace sluice::cuda
