// Memory a model takes, planned from its file's headers: the model, the executor and the backend
// are asked for the sizes they will allocate. Plain functions; any thread.
#pragma once

#include <cstddef>

#include "base/result.h"
#include "core/scheduler.h"
#include "exec/executor_config.h"
#include "model/model.h"
#include "runtime/options.h"
#include "tensor/checkpoint.h"

namespace sluice {

struct Ledger {
  size_t weights = 0, kv = 0, workspace = 0, available = 0;  // kv: with the null block
  size_t tiers = 0;         // host memory for KV blocks beside the pool, in use as they go there
  size_t program = 0;       // code, tokeniser, EngineOptions::front_end_bytes; a GPU's: context
  size_t kv_per_token = 0;  // K and V of one position in all layers
  size_t kv_per_long_token = 0;  // what a position beyond the widest window adds to a sequence
  int window = 0;                // the widest, 0 = every layer sees everything
  int ctx = 0, num_blocks = 0, full_sequences = 0;  // sequences of ctx positions that fit at once
};

// Free memory for this process: the smaller of the system's and the control group's.
size_t available_memory();

// A GPU's free memory and types; null in the functions below: the model runs on the host.
struct DeviceMemory {
  size_t available = 0;
  DType activations = DType::bf16;    // and weights
  size_t weights = 0, workspace = 0;  // exact, once the model is loaded; 0: estimate
};

// The KV cache type for heads of `head_dim` dimensions on this device: options.kv_type, checked, or
// the device's default.
Result<KvType> kv_type_of(const EngineOptions& options, int head_dim, const DeviceMemory* device);

// Sizes of the executor that runs this scheduler's plans.
ExecutorConfig executor_config(const Scheduler& scheduler, const ModelShape& shape, KvType kv);

// Fixes context and pool size in `options` from what is free, or says with the figures why it
// cannot.
Result<Ledger> plan_memory(const Checkpoint& checkpoint,
                           const ModelShape& shape,
                           EngineOptions& options,
                           const DeviceMemory* device = nullptr);

}  // namespace sluice
