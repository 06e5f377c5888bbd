// The memory that a model needs, whether it fits or not, and options that would make it fit. For
// `inspect`; to run a model, call plan_memory().
#pragma once

#include <string>
#include <vector>

#include "runtime/ledger.h"

namespace sluice {

struct MemoryEstimate {
  Ledger ledger;         // where it does not fit, kv is the least it would take
  std::string shortage;  // why it does not fit; empty: it does

  // Without `tiers`, which on a GPU are not in its memory.
  size_t total() const { return ledger.weights + ledger.kv + ledger.workspace + ledger.program; }
};

// As plan_memory(), and an error only for options that contradict each other. Context and pool size
// in `options` are fixed if it fits.
Result<MemoryEstimate> estimate_memory(const Checkpoint& checkpoint,
                                       const ModelShape& shape,
                                       EngineOptions& options,
                                       const DeviceMemory* device = nullptr);

// int8 with the largest groups, up to 32, that heads of `head_dim` dimensions are made of. Of K and
// V in 8 bits the better one on a GPU too: nearer to 16 bits than f8 (perplexity +0.1 % and +0.8 %,
// docs/performance.md) for 1.88 instead of 2 times as many tokens.
KvType int8_kv_type(int head_dim);

struct FitAdvice {
  std::string options;      // "--quantize w4 --ctx 4096"
  MemoryEstimate estimate;  // with them
};

// The smallest changes first; empty where none is enough. `least`, if given, gets the lowest total
// that was found on the way.
std::vector<FitAdvice> what_would_fit(const Checkpoint& checkpoint,
                                      const ModelShape& shape,
                                      const EngineOptions& options,
                                      const DeviceMemory* device,
                                      FitAdvice* least = nullptr);

}  // namespace sluice
