// What a session plans for a GPU stays within --gpu-memory, and so does what its executor then
// allocates: models that fit and models in two parts, whose layers with and without windows lie on
// both sides. The device computes nothing and counts (exec/device_fake.h).
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cuda_weights.h"
#include "base/str.h"
#include "exec/device_executor.h"
#include "exec/device_fake.h"
#include "exec/kv_cache.h"
#include "exec/layer_stream.h"
#include "load/random_checkpoint.h"
#include "runtime/ledger.h"
#include "runtime/placement.h"

namespace sluice {
namespace {

constexpr size_t kMega = size_t{1} << 20;

// Twelve layers of 8.4 MB in bf16.
std::string memory_config(const char* type, const char* more) {
  return strf(R"({"model_type": "%s", "hidden_size": 512, "num_hidden_layers": 12,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 2048,
    "vocab_size": 1000, "max_position_embeddings": 4096, "tie_word_embeddings": true%s})",
              type, more);
}

// gemma3_text: every sixth layer sees everything, the others 64 positions.
const char* const kWindows = R"(, "sliding_window": 64)";

struct MemoryCase {
  const char* type;
  const char* more;
  std::optional<int> gpu_layers;  // absent: all
  KvType kv;
};

EngineOptions memory_options(const MemoryCase& c, size_t gpu_memory) {
  EngineOptions o;
  o.device.kind = DeviceChoice::Kind::cuda;
  if (c.gpu_layers) o.gpu_layers = GpuLayers{*c.gpu_layers};
  o.gpu_memory = gpu_memory;
  o.kv_type = c.kv;
  o.scheduler.budget = 256;
  o.scheduler.max_seqs = 32;
  return o;
}

// As Session::size_pool() asks once the model is loaded, with what its executor then allocates.
void expect_executor_fits(const Checkpoint& file,
                          const ModelShape& shape,
                          EngineOptions options,
                          DeviceMemory gpu) {
  const LayerRange layers{num_host_layers(options, shape), shape.num_layers};
  std::unique_ptr<WeightStore> sizes = cuda_weight_sizes({.activations = gpu.activations});
  LoadOptions load;
  load.layers = layers;
  std::unique_ptr<Model> model = load_model(ModelSource::headers_of(file), *sizes, load).value();
  NotingDevice device;
  const auto config = [&] {
    ExecutorConfig e = executor_config(Scheduler(options.scheduler, nullptr), shape,
                                       kv_type_of(options, shape.head_dim, &gpu).value());
    e.groups = part_of(e.groups, layers);
    return e;
  };
  options.stream_prompts = false;
  gpu.weights = model->weight_bytes();
  gpu.workspace = DeviceExecutor::workspace_bytes(device, *model, config());
  const int ctx = options.scheduler.max_len;
  const Ledger ledger = plan_memory(file, shape, options, &gpu).value();
  options.scheduler.max_len = std::min(ctx, ledger.ctx);
  RealClock clock;
  ExecutorConfig e = config();
  std::vector<float> states(static_cast<size_t>(e.max_step_tokens) *
                            static_cast<size_t>(shape.hidden));
  if (ledger.host.layers > 0) e.states = states.data();
  const DeviceExecutor executor(device, *model, e, clock, false);
  EXPECT_EQ(executor.kv_bytes(), ledger.kv);
  EXPECT_LE(device.num_bytes, ledger.kv + ledger.workspace);
  EXPECT_LE(ledger.weights + device.num_bytes + ledger.program, *options.gpu_memory);
}

TEST(GpuMemory, PlansAndExecutorsKeepTheLimit) {
  const KvType int8(DType::i8, 32);
  const MemoryCase cases[] = {
      {"llama", "", {}, DType::bf16},
      {"llama", "", {}, int8},
      {"llama", "", 5, DType::bf16},
      {"gemma3_text", kWindows, {}, DType::bf16},
      {"gemma3_text", kWindows, 11, DType::bf16},
      {"gemma3_text", kWindows, 6, DType::bf16},
      {"gemma3_text", kWindows, 6, int8},
      {"gemma3_text", kWindows, 1, DType::f8},
      {"mistral", kWindows, 7, DType::bf16},
  };
  for (const MemoryCase& c : cases) {
    std::unique_ptr<Checkpoint> file =
        random_checkpoint_from_text(memory_config(c.type, c.more), "memory", Format::bf16, 1)
            .value();
    const ModelShape shape = read_shape(*file).value();
    int planned = 0;
    for (size_t mega : {700, 800, 810, 817, 900, 1000, 1300, 4000}) {
      SCOPED_TRACE(strf("%s %d layers, %zu MiB", c.type, c.gpu_layers.value_or(12), mega));
      EngineOptions options = memory_options(c, mega * kMega);
      DeviceMemory gpu{mega * kMega, DType::bf16};
      gpu.host_available = 2000 * kMega;
      const Result<Ledger> ledger = plan_memory(*file, shape, options, &gpu);
      if (!ledger) {  // too little for it, which the message says
        EXPECT_EQ(ledger.error().code, 507) << ledger.error().message;
        continue;
      }
      ++planned;
      EXPECT_LE(ledger->weights + ledger->kv + ledger->workspace + ledger->program, gpu.available);
      EXPECT_LE(ledger->host.total(), gpu.host_available);
      const int host_layers = ledger->host.layers;
      EXPECT_EQ(host_layers, 12 - c.gpu_layers.value_or(12));
      if (host_layers > 0) {
        const CacheGroups groups = part_of(cache_groups(shape), {0, host_layers});
        EXPECT_EQ(ledger->host.kv,
                  KvCache::bytes(shape, groups, {host_kv_type(c.kv), ledger->num_blocks, 16}));
      }
      expect_executor_fits(*file, shape, options, gpu);
    }
    EXPECT_GE(planned, 4) << c.type;
  }
}

}  // namespace
}  // namespace sluice
