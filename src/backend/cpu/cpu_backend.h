// The CPU backend: packed weights, paged attention and row ops on one pool of threads.
// Owned by the device thread, which is the pool's worker 0.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "backend/cpu/matmul/load_quant.h"

namespace sluice {

// How attention is computed. All but the first are there to be compared with.
enum class AttentionVia : uint8_t {
  tiled,    // in tiles with a running softmax; decoding rows read K and V once per kv head, and a
            // long context is split between threads
  by_head,  // the same, but decoding rows once per query head, each by one thread: the same bits
  naive,    // all scores in memory (attention_naive.h): the same but for rounding
};

struct CpuOptions {
  int threads = 0;       // 0: one per usable core
  bool pin = true;       // bind threads to cores
  LoadQuant quant = {};  // what load() makes of weights
  AttentionVia attention = AttentionVia::tiled;
};

std::unique_ptr<Backend> make_cpu_backend(CpuOptions options);

// Sizes of weights as that backend packs or maps them.
std::unique_ptr<WeightStore> cpu_weight_sizes(LoadQuant quant);

}  // namespace sluice
