#include "runtime/ledger.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda_packed.h"
#include "base/str.h"
#include "exec/block_file.h"
#include "exec/disk_tier.h"
#include "exec/kv_cache.h"
#include "exec/model_executor.h"
#include "exec/split_executor.h"
#include "load/random_checkpoint.h"
#include "model/checkpoint_fake.h"
#include "runtime/placement.h"
#include "tensor/formats/all.h"

namespace sluice {
namespace {

Result<KvType> type_of(const char* name, int head_dim, const DeviceMemory* device = nullptr) {
  std::optional<std::optional<KvType>> kv = value_named(kKvTypes, name);
  if (!kv) return Error{400, "no such type"};
  EngineOptions o;
  o.kv_type = *kv;
  return kv_type_of(o, head_dim, device);
}

TEST(KvTypeOf, Int8HasGroupsOf32UnlessAsked) {
  EXPECT_EQ(type_of("auto", 64)->type, DType::f16);
  for (auto [name, group] :
       {std::pair{"int8", 32}, {"int8:8", 8}, {"int8:32", 32}, {"int8:64", 64}}) {
    Result<KvType> t = type_of(name, 128);
    ASSERT_TRUE(t);
    EXPECT_EQ(t->type, DType::i8);
    EXPECT_EQ(t->group, group);
  }
}

TEST(KvTypeOf, Int8IsForGpusToo) {
  DeviceMemory gpu;
  for (DType type : {DType::f16, DType::bf16}) {
    gpu.activations = type;
    EXPECT_EQ(type_of("auto", 128, &gpu)->type, type);
    EXPECT_EQ(type_of("int8:64", 128, &gpu)->group, 64);
    EXPECT_EQ(type_of("int8:8", 80, &gpu)->group, 8);
    EXPECT_EQ(type_of("f8", 80, &gpu)->group, 0);
  }
}

TEST(KvTypeOf, RefusesWhatDoesNotFit) {
  EXPECT_EQ(type_of("int8", 80).error().message,
            "--kv int8: heads of 80 dimensions are not whole groups of 32; use int8:8");
  EXPECT_EQ(type_of("int8:64", 96).error().message,
            "--kv int8:64: heads of 96 dimensions are not whole groups of 64; use int8:32");
  DeviceMemory gpu;
  EXPECT_EQ(type_of("int8", 80, &gpu).error().message,
            "--kv int8: heads of 80 dimensions are not whole groups of 32; use int8:8");
  gpu.activations = DType::f32;
  EXPECT_EQ(type_of("int8", 64, &gpu).error().message,
            "--kv int8: on a GPU the cache has the type of the activations (--dtype), or with f16 "
            "and bf16 f8 or int8");
  EXPECT_FALSE(type_of("f8", 64, &gpu));
  EXPECT_FALSE(type_of("f8", 64));
  EXPECT_FALSE(type_of("int8:16", 64));
}

TEST(KvTypeOf, BytesCountTheScales) {
  ModelShape m;
  m.num_layers = 30;
  m.num_kv_heads = 3;
  m.head_dim = 64;
  EXPECT_EQ(m.kv_bytes_per_token(DType::f16), 30U * 3 * 2 * 128);
  EXPECT_EQ(m.kv_bytes_per_token({DType::i8, 8}), 30U * 3 * 2 * 80);   // 1.6 times as many tokens
  EXPECT_EQ(m.kv_bytes_per_token({DType::i8, 32}), 30U * 3 * 2 * 68);  // 1.88
  EXPECT_EQ(m.kv_bytes_per_token({DType::i8, 64}), 30U * 3 * 2 * 66);  // 1.94
  EXPECT_EQ(KvCache::bytes_per_block(m, one_cache_group(30), {DType::i8, 32}, 16),
            16 * m.kv_bytes_per_token({DType::i8, 32}));
}

std::string tiny_config(const char* type, bool tied, const char* more = "") {
  return strf(R"({"model_type": "%s", "hidden_size": 256, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 512,
    "vocab_size": 300, "max_position_embeddings": 512, "tie_word_embeddings": %s%s})",
              type, tied ? "true" : "false", more);
}

// Families with everything that changes sizes: tied and untied outputs, windows, fused tensors, a
// second rotation, biases, learned positions.
const std::vector<std::string>& tiny_models() {
  static const std::vector<std::string> configs = {
      tiny_config("llama", false),
      tiny_config("mistral", true, R"(, "sliding_window": 32)"),
      tiny_config("qwen2", false),
      tiny_config("phi3", false),
      tiny_config("gemma3_text", true, R"(, "sliding_window": 32)"),
      R"({"model_type": "gpt2", "n_embd": 256, "n_layer": 3, "n_head": 8, "n_positions": 512,
        "vocab_size": 300})",
  };
  return configs;
}

class LedgerOf : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = (std::filesystem::temp_directory_path() / "sluice_ledger_XXXXXX").string();
    ASSERT_NE(mkdtemp(dir_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::unique_ptr<Checkpoint> open(const std::string& config, Format format) {
    const std::string path = dir_ + "/config.json";
    std::ofstream(path) << config;
    return random_checkpoint(path, format, 1).value();
  }

 private:
  std::string dir_;
};

// What the headers promise is what loading and the executor allocate, to the byte.
TEST_F(LedgerOf, TinyModelsIsWhatTheyAllocate) {
  struct Setting {
    Format format;
    const char* quantize;
    const char* kv;
    Prefill prefill;
    int max_seqs;
  };
  const Setting settings[] = {{Format::q8_0, "none", "f16", Prefill::chunked, 4},
                              {Format::q4_k, "none", "int8", Prefill::whole, 4},
                              {Format::f16, "none", "f32", Prefill::chunked, 40},
                              {Format::bf16, "w8a8", "int8:8", Prefill::chunked, 4},
                              {Format::f32, "w4", "f16", Prefill::chunked, 1},
                              {Format::q6_k, "u8", "f16", Prefill::chunked, 4}};
  for (const std::string& config : tiny_models()) {
    for (const Setting& set : settings) {
      SCOPED_TRACE(strf("%s, %s, --quantize %s --kv %s", config.substr(0, 30).c_str(),
                        format_info(set.format).name, set.quantize, set.kv));
      std::unique_ptr<Checkpoint> file = open(config, set.format);
      const ModelShape shape = read_shape(*file).value();
      EngineOptions options;
      options.quantize = *value_named(kQuantizes, set.quantize);
      options.kv_type = *value_named(kKvTypes, set.kv);
      options.kv_blocks = 40 * 8;
      options.scheduler.budget = 48;
      options.scheduler.max_seqs = set.max_seqs;
      options.scheduler.prefill = set.prefill;
      const Result<Ledger> ledger = plan_memory(*file, shape, options);
      ASSERT_TRUE(ledger) << ledger.error().message;

      std::unique_ptr<Backend> backend = make_cpu_backend(
          {.threads = 1, .pin = false, .quant = weight_quant(options, *file).value()});
      std::unique_ptr<Model> model = load_model(*file, *backend, {}).value();
      EXPECT_EQ(ledger->weights, model->weight_bytes());
      const ExecutorConfig e =
          executor_config(Scheduler(options.scheduler, nullptr), shape,
                          kv_type_of(options, shape.head_dim, nullptr).value());
      EXPECT_EQ(ledger->workspace, ModelExecutor::workspace_bytes(*model, e));
      RealClock clock;
      const ModelExecutor executor(*backend, *model, e, clock);
      EXPECT_EQ(ledger->kv, executor.kv_bytes());
    }
  }
}

// A model in two parts: what the headers promise of the CPU's is what it allocates, and both pools
// have as many blocks.
TEST_F(LedgerOf, LayersOnTheCpuBesideAGpu) {
  for (const std::string& config : tiny_models()) {
    SCOPED_TRACE(config.substr(0, 30));
    std::unique_ptr<Checkpoint> file = open(config, Format::q8_0);
    const ModelShape shape = read_shape(*file).value();
    if (shape.num_layers < 2) continue;
    EngineOptions options;
    options.device.kind = DeviceChoice::Kind::cuda;
    options.gpu_layers = GpuLayers{shape.num_layers - 1};
    options.kv_blocks = 40 * 8;
    options.scheduler.budget = 48;
    options.scheduler.max_seqs = 4;
    EngineOptions all = options;
    all.gpu_layers.reset();
    const DeviceMemory gpu{size_t{8} << 30, DType::bf16};
    const Ledger ledger = plan_memory(*file, shape, options, &gpu).value();
    const Ledger whole = plan_memory(*file, shape, all, &gpu).value();
    EXPECT_EQ(whole.host.layers, 0);
    EXPECT_EQ(ledger.host.layers, 1);
    EXPECT_LT(ledger.weights, whole.weights);
    EXPECT_LT(ledger.kv, whole.kv);
    EXPECT_GT(ledger.host.streamed, 0u);
    EngineOptions without = options;
    without.stream_prompts = false;
    const Ledger unstreamed = plan_memory(*file, shape, without, &gpu).value();
    EXPECT_EQ(unstreamed.host.streamed, 0u);
    EXPECT_LT(unstreamed.workspace, ledger.workspace);
    EXPECT_EQ(options.scheduler.pipeline, Pipeline::sync);
    EXPECT_EQ(all.scheduler.pipeline, Pipeline::overlap);

    std::unique_ptr<Backend> backend = make_cpu_backend({.threads = 1, .pin = false});
    LoadOptions load;
    load.layers = {0, 1};
    std::unique_ptr<Model> first = load_model(*file, *backend, load).value();
    EXPECT_EQ(ledger.host.weights, first->weight_bytes());
    ExecutorConfig e =
        executor_config(Scheduler(options.scheduler, nullptr), shape, host_kv_type(DType::bf16));
    e.groups = part_of(e.groups, load.layers);
    EXPECT_EQ(ledger.host.workspace, SplitExecutor::workspace_bytes(*first, e));
    EXPECT_EQ(ledger.host.kv, KvCache::bytes(shape, e.groups, {e.kv_type, 40 * 8, 16}));
  }
}

// On a GPU bits do not depend on the batch by default where that costs little.
TEST_F(LedgerOf, WhereBitsDoNotDependOnTheBatch) {
  std::unique_ptr<Checkpoint> file = open(tiny_models()[0], Format::q8_0);
  ModelShape seven;  // of Qwen2.5-7B
  seven.num_layers = 28, seven.hidden = 3584, seven.ffn = 18944;
  seven.num_heads = 28, seven.num_kv_heads = 4, seven.head_dim = 128;
  const auto resolved = [&](ModelShape shape, auto&& change) {
    EngineOptions o;
    o.device.kind = DeviceChoice::Kind::cuda;
    o.dtype = DType::bf16;
    change(o);
    resolve_deterministic(o, shape, *file);
    EXPECT_TRUE(o.deterministic || !o.deterministic_by_default);
    return std::pair(o.deterministic, o.deterministic_by_default);
  };
  const std::pair yes(true, true), no(false, false);
  EXPECT_EQ(resolved(seven, [](EngineOptions&) {}), yes);
  EXPECT_EQ(resolved(seven, [](EngineOptions& o) { o.fast_products = true; }), no);
  EXPECT_EQ(resolved(seven, [](EngineOptions& o) { o.deterministic = true; }),
            std::pair(true, false));  // on every GPU
  EXPECT_EQ(resolved(seven, [](EngineOptions& o) { o.dtype = DType::f16; }), yes);
  EXPECT_EQ(resolved(seven, [](EngineOptions& o) { o.dtype = DType::f32; }), no);
  EXPECT_EQ(resolved(seven, [](EngineOptions& o) { o.dtype.reset(); }), yes);  // Q8_0 becomes f16
  EXPECT_EQ(resolved(seven, [](EngineOptions& o) { o.quantize = Quantize::w8a8; }), yes);
  EXPECT_EQ(resolved(seven, [](EngineOptions& o) { o.quantize = Quantize::fp8; }), no);
  EXPECT_EQ(resolved(seven, [](EngineOptions& o) { o.kv_type = KvType(DType::i8, 32); }), no);
  EXPECT_EQ(resolved(seven, [](EngineOptions& o) { o.gpu_weights = GpuWeights::stored; }), no);
  EXPECT_EQ(resolved(seven, [](EngineOptions& o) { o.gpu_layers = GpuLayers{8}; }), no);
  EXPECT_EQ(resolved(seven, [](EngineOptions& o) { o.device.kind = DeviceChoice::Kind::cpu; }), no);
  ModelShape small = seven;
  small.num_layers = 14;
  EXPECT_EQ(resolved(small, [](EngineOptions&) {}), no);
  ModelShape large = seven;
  large.num_layers = 56;
  EXPECT_EQ(resolved(large, [](EngineOptions&) {}), no);
}

// Prompts run through the GPU only where the CPU's memory suffices for weights in both forms.
TEST_F(LedgerOf, PromptsAreStreamedWhereHostMemoryAllows) {
  std::unique_ptr<Checkpoint> file = open(tiny_models()[0], Format::q8_0);
  const ModelShape shape = read_shape(*file).value();
  EngineOptions options;
  options.device.kind = DeviceChoice::Kind::cuda;
  options.gpu_layers = GpuLayers{1};
  options.step_sizes = StepSizes{};
  options.kv_blocks = 40 * 8;
  DeviceMemory gpu{size_t{8} << 30, DType::bf16};
  const auto plan = [&](EngineOptions o) {
    resolve_step_sizes(o, &shape);
    const Ledger ledger = plan_memory(*file, shape, o, &gpu).value();
    return std::pair(ledger, o.scheduler.budget);
  };
  const auto [rich, budget] = plan(options);
  EXPECT_GT(rich.host.streamed, 0u);
  EXPECT_EQ(budget, 4096);
  gpu.host_available = rich.host.total();
  EXPECT_EQ(plan(options).first.host.streamed, 0u) << "nothing is left for K and V";
  EXPECT_EQ(plan(options).second, 512);
  gpu.host_available = 0;
  for (KvType kv : {KvType(DType::f8), KvType(DType::i8, 8)}) {
    EngineOptions bytes = options;
    bytes.kv_type = kv;
    EXPECT_EQ(plan(bytes).first.host.streamed, 0u);
  }
  options.deterministic = true;
  EXPECT_EQ(plan(options).first.host.streamed, 0u);
}

constexpr const char* kTwentyLayers =
    R"({"model_type": "qwen2", "hidden_size": 1024, "num_hidden_layers": 20,
    "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 4096,
    "vocab_size": 2000, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
    "max_position_embeddings": 4096})";

// If streamed prompts do not fit the GPU, the CPU computes them.
TEST_F(LedgerOf, StreamingPromptsRefusesNoNumberOfLayers) {
  std::unique_ptr<Checkpoint> file = open(kTwentyLayers, Format::bf16);
  const ModelShape shape = read_shape(*file).value();
  const DeviceMemory gpu{size_t{1300} << 20, DType::bf16};
  int with = 0, without = 0;
  for (int num = 1; num < shape.num_layers; ++num) {
    SCOPED_TRACE(num);
    EngineOptions options;
    options.device.kind = DeviceChoice::Kind::cuda;
    options.scheduler.max_seqs = 16;
    options.gpu_layers = GpuLayers{num};
    EngineOptions plain = options;
    plain.stream_prompts = false;
    const Result<Ledger> least = plan_memory(*file, shape, plain, &gpu);
    const Result<Ledger> ledger = plan_memory(*file, shape, options, &gpu);
    EXPECT_EQ(static_cast<bool>(ledger), static_cast<bool>(least));
    if (!ledger) continue;
    EXPECT_EQ(ledger->host.streamed > 0, options.stream_prompts);
    EXPECT_LE(ledger->weights + ledger->kv + ledger->workspace + ledger->program, gpu.available);
    ++(ledger->host.streamed > 0 ? with : without);
  }
  EXPECT_TRUE(with > 0 && without > 0) << with << " " << without;
}

// auto: the largest number that fits; one more does not, or leaves no useful pool, or prompts do
// not run through the GPU any more.
TEST_F(LedgerOf, AutoTakesAsManyLayersAsFit) {
  std::unique_ptr<Checkpoint> file = open(kTwentyLayers, Format::bf16);
  const ModelShape shape = read_shape(*file).value();
  int last = 0;
  for (size_t mega : {1200, 1300, 1400, 8000}) {
    SCOPED_TRACE(mega);
    EngineOptions options;
    options.device.kind = DeviceChoice::Kind::cuda;
    options.gpu_layers = GpuLayers{};
    options.scheduler.max_seqs = 16;
    const EngineOptions asked = options;
    const DeviceMemory gpu{mega << 20, DType::bf16};
    const Ledger ledger = plan_memory(*file, shape, options, &gpu).value();
    EXPECT_LE(ledger.weights + ledger.kv + ledger.workspace + ledger.program, gpu.available);
    const int num = shape.num_layers - ledger.host.layers;
    EXPECT_GT(num, last);
    last = num;
    EXPECT_GE(ledger.num_blocks, 8 * 1024 / 16);
    if (ledger.host.layers == 0) {
      EXPECT_FALSE(options.gpu_layers) << "all fit: as if nobody had asked";
      EXPECT_EQ(options.scheduler.pipeline, Pipeline::overlap);
      continue;
    }
    EXPECT_EQ(options.gpu_layers->num, num);
    EngineOptions more = asked;
    more.gpu_layers->num = num + 1;
    const Result<Ledger> too_many = plan_memory(*file, shape, more, &gpu);
    EXPECT_TRUE(!too_many || too_many->num_blocks < 8 * 1024 / 16 ||
                (ledger.host.streamed > 0 && too_many->host.streamed == 0));
  }
  EXPECT_EQ(last, shape.num_layers);
  // Not one layer.
  EngineOptions options;
  options.device.kind = DeviceChoice::Kind::cuda;
  options.gpu_layers = GpuLayers{};
  const DeviceMemory tiny{size_t{700} << 20, DType::bf16};
  const Result<Ledger> none = plan_memory(*file, shape, options, &tiny);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("--device cpu"), std::string::npos) << none.error().message;
}

TEST_F(LedgerOf, LayersOnTheCpuRefuseWhatTheyCannotDo) {
  std::unique_ptr<Checkpoint> file = open(tiny_models()[0], Format::q8_0);
  const ModelShape shape = read_shape(*file).value();
  const DeviceMemory gpu{size_t{8} << 30, DType::bf16};
  const auto refused = [&](void (*change)(EngineOptions&)) {
    EngineOptions options;
    options.device.kind = DeviceChoice::Kind::cuda;
    options.gpu_layers = GpuLayers{1};
    change(options);
    const Result<Ledger> ledger = plan_memory(*file, shape, options, &gpu);
    return ledger ? std::string() : strf("%d ", ledger.error().code) + ledger.error().message;
  };
  EXPECT_EQ(refused([](EngineOptions&) {}), "");
  EXPECT_EQ(
      refused([](EngineOptions& o) { o.scheduler.preempt = Preempt::swap; }),
      "400 --gpu-layers 1 leaves layers on the CPU, and does not go with --preempt swap: leave "
      "one of them out");
  EXPECT_NE(refused([](EngineOptions& o) { o.pipeline_given = true; }).find("--pipeline"),
            std::string::npos);
  EXPECT_NE(refused([](EngineOptions& o) { o.prefix_host_bytes = 1 << 30; }).find("--prefix-host"),
            std::string::npos);
  EXPECT_NE(refused([](EngineOptions& o) { o.prefix_disk_bytes = 1 << 30; }).find("--prefix-disk"),
            std::string::npos);
  EXPECT_NE(refused([](EngineOptions& o) {
              o.scheduler.allocator = KvAllocator::virtual_;
            }).find("virtual"),
            std::string::npos);
  // All layers on the GPU: nothing is refused.
  EXPECT_EQ(refused([](EngineOptions& o) {
              o.gpu_layers = GpuLayers{99};
              o.scheduler.preempt = Preempt::swap;
            }),
            "");
}

// Host memory beside the pool is counted in blocks, and only where it is asked for.
TEST_F(LedgerOf, TiersHoldWhatTheOptionsGiveThem) {
  std::unique_ptr<Checkpoint> file = open(tiny_models()[0], Format::q8_0);
  const ModelShape shape = read_shape(*file).value();
  const size_t block = KvCache::bytes_per_block(shape, cache_groups(shape), DType::f16, 16);
  const auto tiers = [&](EngineOptions options, Ledger* ledger) {
    options.kv_blocks = 320;
    *ledger = plan_memory(*file, shape, options).value();
    return options.scheduler.tiers;
  };
  Ledger ledger;
  EngineOptions options;
  EXPECT_EQ(tiers(options, &ledger).total(), 0);
  EXPECT_EQ(ledger.tiers, 0u);
  options.scheduler.preempt = Preempt::swap;
  EXPECT_EQ(tiers(options, &ledger).swap, 160) << "half of the pool";
  options.swap_bytes = 7 * block + 1;
  options.prefix_host_bytes = 9 * block;
  TierSizes sizes = tiers(options, &ledger);
  EXPECT_EQ(sizes.swap, 7);
  EXPECT_EQ(sizes.host, 9);
  EXPECT_EQ(sizes.block_bytes, block);
  EXPECT_EQ(ledger.tiers, 16 * block);
  options.prefix_host_bytes = block - 1;
  Result<Ledger> small = plan_memory(*file, shape, options);
  ASSERT_FALSE(small);
  EXPECT_NE(small.error().message.find("--prefix-host"), std::string::npos);
  options.prefix_host_bytes = uint64_t{1} << 50;
  Result<Ledger> large = plan_memory(*file, shape, options);
  ASSERT_FALSE(large);
  EXPECT_NE(large.error().message.find("lower --swap-memory or --prefix-host"), std::string::npos);
  options.prefix_host_bytes = 0;
  options.prefix_disk_bytes = uint64_t{3} * BlockFile::place_bytes(16, block) + 1;
  sizes = tiers(options, &ledger);
  EXPECT_EQ(sizes.disk, 3);
  EXPECT_EQ(sizes.memory(), 7);
  EXPECT_GE(ledger.tiers, 7 * block + DiskTier::staging_bytes(block));
  options.prefix_disk_bytes = uint64_t{1} << 60;
  Result<Ledger> index = plan_memory(*file, shape, options);
  ASSERT_FALSE(index) << "what is where takes memory too";
  EXPECT_NE(index.error().message.find("--prefix-disk"), std::string::npos);
  options.prefix_disk_bytes = 1;
  small = plan_memory(*file, shape, options);
  ASSERT_FALSE(small);
  EXPECT_NE(small.error().message.find("--prefix-disk"), std::string::npos);
}

// The rule for preempted sequences: long ones are moved, the shortest are computed again.
TEST_F(LedgerOf, SwapCostComesFromTheModel) {
  std::unique_ptr<Checkpoint> file = open(tiny_models()[0], Format::q8_0);
  EngineOptions options;
  options.threads = 4;
  ASSERT_TRUE(plan_memory(*file, read_shape(*file).value(), options));
  const SwapCost& cost = options.scheduler.swap_cost;
  EXPECT_GT(cost.move_block, 0);
  EXPECT_GT(cost.delay, 0);
  EXPECT_TRUE(swap_pays(64, 1024, cost));
  EXPECT_FALSE(swap_pays(1, 1, cost));
}

// A file that does not hold the model is refused before anything is loaded.
TEST_F(LedgerOf, AnIncompleteFileIsAnError) {
  FakeCheckpoint file;
  file.add_weights();
  file.drop_tensor("blk.1.ffn_down.weight");
  EngineOptions options;
  const Result<Ledger> ledger = plan_memory(file, read_shape(file).value(), options);
  ASSERT_FALSE(ledger);
  EXPECT_EQ(ledger.error().message, "the model file has no tensor blk.1.ffn_down.weight");
}

// The program has its own size, and so has who runs the engine.
TEST_F(LedgerOf, MemoryOfAServerCounts) {
  std::unique_ptr<Checkpoint> file = open(tiny_models()[0], Format::f32);
  const ModelShape shape = read_shape(*file).value();
  EngineOptions alone, served;
  served.front_end_bytes = 12'345'678;
  const size_t program = plan_memory(*file, shape, alone).value().program;
  EXPECT_GT(program, size_t{1} << 20);
  EXPECT_EQ(plan_memory(*file, shape, served).value().program, program + 12'345'678);
}

// A GPU's weights are counted in its types, without the file's data or a device.
TEST_F(LedgerOf, AGpuIsMeasuredWithoutOne) {
  std::unique_ptr<Checkpoint> file = open(tiny_models()[0], Format::f32);
  const ModelShape shape = read_shape(*file).value();
  EngineOptions options;
  const auto plan = [&](DType type, const char* quantize) {
    DeviceMemory gpu{size_t{8} << 30, type};
    options = {};
    options.quantize = *value_named(kQuantizes, quantize);
    return plan_memory(*file, shape, options, &gpu).value();
  };
  const size_t layer = 256 * (256 + 64 + 64 + 256) + 3 * 256 * 512, ends = 2 * 300 * 256;
  const size_t norms = 7 * 256 * 4, scales = (256 + 128 + 256 + 1024 + 256) * 4;
  EXPECT_EQ(plan(DType::f32, "none").weights, 4 * (3 * layer + ends) + norms);
  const Ledger bf16 = plan(DType::bf16, "none"), fp8 = plan(DType::bf16, "fp8");
  EXPECT_EQ(bf16.weights, 2 * (3 * layer + ends) + norms);
  EXPECT_EQ(fp8.weights, 3 * (layer + scales) + 2 * ends + norms);
  const Ledger int8 = plan(DType::bf16, "w8a8");
  EXPECT_EQ(int8.weights, fp8.weights);
  EXPECT_EQ(int8.workspace, fp8.workspace);
  // The inputs of layers' matrices (hidden, heads, MLP) once more in fp8.
  const auto rows = static_cast<size_t>(Scheduler(options.scheduler, nullptr).max_step_tokens());
  EXPECT_GE(fp8.workspace - bf16.workspace, rows * (256 + 256 + 512 + 3 * sizeof(float)));
}

TEST_F(LedgerOf, AGpuKeepsStoredWeights) {
  std::unique_ptr<Checkpoint> file = open(tiny_models()[0], Format::q8_0);
  const ModelShape shape = read_shape(*file).value();
  const auto plan = [&](std::optional<GpuWeights> weights, bool deterministic) {
    DeviceMemory gpu{size_t{8} << 30, DType::f16};
    EngineOptions options;
    options.gpu_weights = weights;
    options.deterministic = deterministic;
    return plan_memory(*file, shape, options, &gpu).value();
  };
  const size_t layer = 256 * (256 + 64 + 64 + 256) + 3 * 256 * 512, norms = 7 * 256 * 4;
  const size_t ends = 2 * 304 * 256;  // rows in whole tiles of 16
  const Ledger decoded = plan(std::nullopt, false), stored = plan(GpuWeights::stored, false);
  EXPECT_EQ(stored.weights, (3 * layer + ends) / 32 * 34 + norms);
  EXPECT_LT(stored.weights, decoded.weights);
  // Few rows of x are split where they are made: normed, final and activated.
  const auto split = [](int64_t cols) {
    return static_cast<size_t>(split_bytes(kMaxStreamed, cols));
  };
  const size_t made = 2 * split(256) + split(512);
  // Many rows need the largest weight, gate and up, in 16 bits.
  EXPECT_EQ(stored.workspace - decoded.workspace, made + 2 * 2 * 512 * 256);
  // Deterministic, products split more rows than that themselves, of 512 columns at most.
  EXPECT_EQ(plan(GpuWeights::stored, true).workspace - decoded.workspace, made + split(512));
}

}  // namespace
}  // namespace sluice
