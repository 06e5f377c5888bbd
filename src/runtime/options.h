// How an engine is set up: everything the command line, the server and the benchmarks share.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/scheduler.h"
#include "engine/loop.h"
#include "tensor/tensor.h"

namespace sluice {

struct EngineOptions {
  std::string model;            // smollm2, a .gguf path, a directory, or random:SHAPE
  std::string format = "q8_0";  // of random weights
  uint64_t random_seed = 1;
  std::string backend = "auto";   // auto, cpu, cuda, cuda:N, ref
  std::string dtype = "auto";     // of weights and activations on a GPU: auto, bf16, f16, f32
  std::string quantize = "none";  // of weights at load: none; on the CPU w8a8, w4, u8; on a GPU fp8
  std::string quantize_exclude;   // names of weights that keep their format, with commas (CPU)
  bool deterministic = false;     // on a GPU: bits do not depend on the batch (the CPU's never do)
  bool capture = true;            // on a GPU: replay decode steps as graphs
  bool default_budget = false;    // nobody chose scheduler.budget: the device may
  bool default_chunk = false;     // the same of scheduler.chunk: somebody waits for every token
  bool default_mixed = false;     // the same of scheduler.mixed_budget, with no chunk given either
  int threads = 0;                // 0: one per core
  bool pin = true;
  bool fuse = true;
  int ctx = 0;            // positions per sequence; 0: what the model was trained for, if it fits
  uint64_t kv_bytes = 0;  // KV pool; 0: as much as is useful, at most half of what is free
  int kv_blocks = 0;      // the same in blocks; 0: by kv_bytes
  std::string kv_type = "auto";            // auto, f16, f32, bf16, f8, int8[:GROUP]
  SchedulerConfig scheduler;               // num_blocks, max_len and sampling are filled in
  std::string generation_config = "auto";  // sampling defaults: the model's, or none
  std::string config;                      // file that options came from, empty: none
  std::string trace;                       // file for a Chrome trace, empty: none
  bool quiet = false;                      // no progress, no ledger
  bool has_accounts = false;               // requests come with API keys
  StepObserver observer;                   // after each step, engine thread
};

}  // namespace sluice
