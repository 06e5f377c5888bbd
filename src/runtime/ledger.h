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

// The layers that run on the CPU where the others run on a GPU.
struct HostLedger {
  int layers = 0;  // 0: all run on one device
  size_t weights = 0, kv = 0, workspace = 0, program = 0, available = 0;
  size_t streamed = 0;  // the same weights as the GPU reads them, and K and V on their way
  size_t total() const { return weights + kv + workspace + program + streamed; }
};

// Sizes on the device; with layers on the CPU, those of the GPU's layers alone.
struct Ledger {
  size_t weights = 0, kv = 0, workspace = 0, available = 0;  // kv: with the null block
  size_t tiers = 0;    // host memory for KV blocks beside the pool, in use as they go there
  size_t program = 0;  // code, tokeniser, EngineOptions::front_end_bytes; a GPU's: context
  HostLedger host;
  size_t kv_per_token = 0;       // K and V of one position in all layers, both sides
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
  size_t host_available = 0;          // for layers on the CPU, before anything is loaded; 0: ask
};

// The KV cache type for heads of `head_dim` dimensions on this device: options.kv_type, checked, or
// the device's default.
Result<KvType> kv_type_of(const EngineOptions& options, int head_dim, const DeviceMemory* device);

// The type of the layers on the CPU where `gpu` is that of the GPU's: the same where the CPU has
// it, else f16.
KvType host_kv_type(KvType gpu);

// Sizes of the executor that runs this scheduler's plans.
ExecutorConfig executor_config(const Scheduler& scheduler, const ModelShape& shape, KvType kv);

// Fixes context, pool size and the layers on a GPU in `options` from what is free, or says with the
// figures why it cannot.
Result<Ledger> plan_memory(const Checkpoint& checkpoint,
                           const ModelShape& shape,
                           EngineOptions& options,
                           const DeviceMemory* device = nullptr);

}  // namespace sluice
