// Where the memory goes, known from a model file's headers alone.
#pragma once

#include <algorithm>
#include <cstddef>

#include "backend/cpu/load_quant.h"
#include "base/result.h"
#include "model/model.h"
#include "runtime/options.h"
#include "tensor/checkpoint.h"

namespace sluice {

struct Ledger {
  size_t weights = 0, kv = 0, workspace = 0, available = 0;
  size_t program = 0;            // code, threads, tokeniser
  size_t kv_per_token = 0;       // K and V of one position in all layers
  size_t kv_per_long_token = 0;  // what a position beyond the widest window adds to a sequence
  int window = 0;                // the widest, 0 = every layer sees everything
  int ctx = 0, num_blocks = 0, full_sequences = 0;  // sequences of ctx positions that fit at once
};

// Rows of logits to hold at once: those of a step's sequences, and some to score prompts with.
inline int output_rows(int max_seqs) { return std::clamp(max_seqs, 16, 64); }

// Free memory for this process: the smaller of the system's and the control group's.
size_t available_memory();

// What a GPU has and how it holds things; the host's memory is meant where there is none.
struct DeviceMemory {
  size_t available = 0;
  DType activations = DType::bf16;    // and weights
  size_t weights = 0, workspace = 0;  // exact, once the model is loaded; 0: estimate
};

// The KV cache type for heads of `head_dim` dimensions on this device: options.kv_type, checked, or
// the device's default.
Result<KvType> kv_type_of(const EngineOptions& options, int head_dim, const DeviceMemory* device);

// What becomes of weights on the CPU by --quantize and --quantize-exclude; fp8 is a GPU's.
Result<LoadQuant> cpu_weight_quant(const EngineOptions& options, const Checkpoint& checkpoint);

// Fixes context and pool size in `options` from what is free, or says with the figures why it
// cannot.
Result<Ledger> plan_memory(const Checkpoint& checkpoint,
                           const ModelShape& shape,
                           EngineOptions& options,
                           const DeviceMemory* device = nullptr);

}  // namespace sluice
