// How an engine is set up: everything the command line, the server and the benchmarks share.
// An absent value means that nobody chose it. choose_device() (placement.h) chooses the device and
// the sizes of a step; plan_memory() (ledger.h) the context and the KV pool.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "base/named.h"
#include "base/result.h"
#include "core/scheduler.h"
#include "core/step_cost.h"
#include "engine/loop.h"

namespace sluice {

// --device
struct DeviceChoice {
  enum class Kind : uint8_t { any, cpu, cuda, ref };  // any: a GPU if there is one, else the CPU
  Kind kind = Kind::any;
  std::optional<int> index;  // which GPU; none: the one with the most free memory

  bool is_gpu() const { return kind == Kind::cuda; }
  bool is_cpu() const { return kind == Kind::cpu; }
  std::string name() const;  // as --device takes it
};
Result<DeviceChoice> parse_device(std::string_view text);

// --quantize: what becomes of weights at load
enum class Quantize : uint8_t { none, w8a8, w4, u8, fp8 };  // GPU: w8a8, fp8; CPU: all but fp8
inline constexpr NamedValue<Quantize> kQuantizes[] = {{"none", Quantize::none},
                                                      {"w8a8", Quantize::w8a8},
                                                      {"w4", Quantize::w4},
                                                      {"u8", Quantize::u8},
                                                      {"fp8", Quantize::fp8}};

// --attention, on the CPU
inline constexpr NamedValue<AttentionVia> kAttentions[] = {{"tiled", AttentionVia::tiled},
                                                           {"by-head", AttentionVia::by_head},
                                                           {"naive", AttentionVia::naive}};

// --gpu-weights: quantised weights of a file on a GPU; absent ("auto"): in 16 bits
enum class GpuWeights : uint8_t { decoded, stored };
inline constexpr NamedValue<std::optional<GpuWeights>> kGpuWeights[] = {
    {"auto", std::nullopt}, {"16bit", GpuWeights::decoded}, {"stored", GpuWeights::stored}};

// --gpu-layers: how many of the model's last layers run on the GPU, the others on the CPU
struct GpuLayers {
  std::optional<int> num;  // none ("auto"): as many as fit
  std::string name() const;
};
Result<GpuLayers> parse_gpu_layers(std::string_view text);

// --generation-config: who says how to sample by default
enum class GenerationConfig : uint8_t { model, none };  // none: as in the OpenAI API
inline constexpr NamedValue<GenerationConfig> kGenerationConfigs[] = {
    {"auto", GenerationConfig::model}, {"none", GenerationConfig::none}};

// --dtype, on a GPU; absent ("auto"): as in the file
inline constexpr NamedValue<std::optional<DType>> kDtypes[] = {
    {"auto", std::nullopt}, {"bf16", DType::bf16}, {"f16", DType::f16}, {"f32", DType::f32}};

// --kv; absent ("auto"): f16 on the CPU, the type of the activations on a GPU
inline bool operator==(const KvType& a, const KvType& b) {
  return a.type == b.type && a.group == b.group;
}
inline const NamedValue<std::optional<KvType>> kKvTypes[] = {{"auto", std::nullopt},
                                                             {"f16", KvType(DType::f16)},
                                                             {"bf16", KvType(DType::bf16)},
                                                             {"f32", KvType(DType::f32)},
                                                             {"f8", KvType(DType::f8)},
                                                             {"int8", KvType(DType::i8, 32)},
                                                             {"int8:8", KvType(DType::i8, 8)},
                                                             {"int8:32", KvType(DType::i8, 32)},
                                                             {"int8:64", KvType(DType::i8, 64)}};

// Sizes of a step whose defaults depend on the device. choose_device() writes them into the
// SchedulerConfig.
struct StepSizes {
  std::optional<int> budget = {}, chunk = {}, mixed_budget = {};
  bool serves = false;  // somebody waits for every token
};

struct EngineOptions {
  std::string model;                  // smollm2, a .gguf path, a directory, or random:SHAPE
  std::optional<std::string> format;  // of random weights; absent: kRandomFormat
  uint64_t random_seed = 1;
  DeviceChoice device;
  std::optional<DType> dtype;  // of weights and activations on a GPU
  std::optional<GpuWeights> gpu_weights;
  std::optional<GpuLayers> gpu_layers;  // absent: all, or the model runs on the CPU
  bool stream_prompts = true;           // prompts run through the GPU in the CPU's layers too
  std::optional<uint64_t> gpu_memory;   // what may be used of the GPU's; absent: what is free
  Quantize quantize = Quantize::none;
  std::string quantize_exclude;  // names of weights that keep their format, with commas
  // On a GPU: bits do not depend on the batch (the CPU's never do). Neither: where that costs
  // little, which resolve_deterministic() (placement.h) decides.
  bool deterministic = false, fast_products = false;
  bool deterministic_by_default = false;  // it did
  bool capture = true;                    // on a GPU: replay decode steps as graphs
  bool fuse_layers = true;                // on a GPU: few decodes of a small model in one kernel
  bool cascade = true;         // on a GPU: a prefix that decodes have in common is read once
  std::optional<int> threads;  // absent: one per core
  bool pin = true;
  bool fuse = true;
  bool forced_tokens = true;  // append what constraints leave no choice about, unsampled
  std::optional<int> ctx;     // positions per sequence; absent: the model's, if they fit
  std::optional<uint64_t>
      kv_bytes;                  // KV pool; absent: what is useful, at most half of what is free
  std::optional<int> kv_blocks;  // the same in blocks
  std::optional<uint64_t> swap_bytes;  // host memory of --preempt swap; absent: half of the pool
  uint64_t prefix_host_bytes = 0;      // host memory for prefixes that the pool has no room for
  uint64_t prefix_disk_bytes = 0;      // a file of prefixes that outlives the process
  std::string prefix_disk_dir;         // where it lies; empty: in the user's cache
  std::optional<KvType> kv_type;
  SchedulerConfig scheduler;    // num_blocks, max_len, tiers, swap_cost and sampling are filled in
  bool pipeline_given = false;  // scheduler.pipeline was asked for
  std::optional<StepSizes> step_sizes;  // absent: `scheduler` has them already
  GenerationConfig generation_config = GenerationConfig::model;
  std::string config;                           // file that options came from, empty: none
  std::string trace;                            // file for a Chrome trace, empty: none
  std::string record_dir;                       // folder for recordings, empty: none
  uint64_t record_bytes = uint64_t{256} << 20;  // of the ring
  bool record_text = false;                     // tokens as they are, else pseudonyms
  std::string record_build;                     // version of the program that records
  // What steps are predicted to cost: --slo starts from it, and with `ttft_limit` or deadlines
  // requests that would be late are refused. Absent: nothing is predicted.
  std::optional<StepCost> cost;
  Time ttft_limit{0};                            // for the first token; 0: none
  int profile_steps = 0;                         // a line on stderr every so many steps; 0: none
  bool full_sort = false;                        // sampling puts all tokens in order (CPU)
  AttentionVia attention = AttentionVia::tiled;  // on the CPU
  bool quiet = false;                            // no progress, no ledger
  bool record_metrics = true;                    // else steps and tokens are not timed
  bool has_accounts = false;                     // requests come with API keys
  size_t front_end_bytes = 0;         // memory of who runs the engine (a server) from the start
  StepObserver observer;              // after each step, engine thread
  KvListener* kv_listener = nullptr;  // of what is cached; outlives the engine
  KvExporter* exporter = nullptr;     // of blocks for other processes; likewise
  std::optional<bool> sends;          // layers leave inside their step; none: on a CPU
};

inline constexpr const char* kRandomFormat = "q8_0";
inline std::string random_format(const EngineOptions& o) {
  return o.format.value_or(kRandomFormat);
}

}  // namespace sluice
