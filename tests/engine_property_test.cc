// The contract of the engine, over random workloads: whatever the preset, chunk size, pool, cache
// groups, prefix cache, preemption, pipeline and number of threads, a request's tokens,
// log-probabilities and pooled vectors are bit for bit those of the request alone; blocks are
// conserved after every step; every request has exactly one terminal event. Blocks that become free
// are overwritten, so that a read of one changes the output. Some requests have a constraint or a
// budget of thinking, and every output obeys it. The plans of a workload give the same results on
// another executor. A model whose first layers run apart from the rest gives the same bits as the
// whole, or on a GPU beside a CPU those of the request alone. SLUICE_TEST_FULL=1 runs ten times as
// many, SLUICE_TEST_DEVICE=cuda runs them on a GPU in deterministic mode.
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <random>

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda_plugin.h"
#include "backend/ref/ref_backend.h"
#include "core/plan_codec.h"
#include "core/policy.h"
#include "engine/loop.h"
#include "exec/device_executor.h"
#include "exec/disk_tier.h"
#include "exec/model_executor.h"
#include "exec/split_executor.h"
#include "load/random_checkpoint.h"
#include "model/model.h"
#include "tensor/gguf.h"
#include "ref_device.h"
#include "tiny_constraints.h"

namespace sluice {
namespace {

// Small enough for thousands of steps a second; GQA of 3, two layers, rows that are no multiple
// of 16.
constexpr const char* kTinyConfig = R"({
  "model_type": "qwen2", "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6,
  "num_key_value_heads": 2, "intermediate_size": 160, "vocab_size": 201, "rope_theta": 10000.0,
  "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "max_position_embeddings": 4096})";
constexpr const char* kTinyConfigK = R"({
  "model_type": "qwen3", "hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4,
  "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 256, "vocab_size": 100, "rope_theta": 10000.0,
  "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "max_position_embeddings": 4096})";

constexpr int kMaxThreads = 3;
constexpr size_t kSlotBytes = size_t{1} << 20;  // of a tiny layer's matrices on a device

// One model on backends of one, two and three threads.
struct Subject {
  std::string name;
  std::vector<std::unique_ptr<Checkpoint>> files;
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<std::unique_ptr<Model>> models;
  KvType kv;
  bool cuda = false;
  // In two parts: the first layers, on the CPU; `models` have the others.
  int host_layers = 0;
  std::vector<std::unique_ptr<Backend>> host_backends;
  std::vector<std::unique_ptr<Model>> host_models;
  // The same layers for prompts through the device; empty: all rows are the CPU's.
  std::vector<std::unique_ptr<RefDevice>> stream_devices;
  std::vector<std::unique_ptr<LayerStream>> streams;
};

bool on_gpu() {
  const char* device = std::getenv("SLUICE_TEST_DEVICE");
  return device && std::string_view(device) == "cuda";
}

std::unique_ptr<Backend> make_gpu(DType type, const LoadQuant& quant) {
  CudaOptions options;
  options.activations = type;
  options.deterministic = true;
  options.tune = false;
  options.int8 = quant;  // other kinds are the CPU's
  auto device = open_cuda(options);
  EXPECT_TRUE(device) << device.error().message;
  return std::move(*device);
}

using OpenFile = std::function<Result<std::unique_ptr<Checkpoint>>()>;

Subject make_subject(std::string name, const OpenFile& open, KvType kv, LoadQuant quant = {}) {
  Subject s;
  s.name = std::move(name);
  s.kv = kv;
  for (int t = 1; t <= kMaxThreads; ++t) {
    auto file = open();
    EXPECT_TRUE(file) << file.error().message;
    s.files.push_back(std::move(*file));
    s.cuda = on_gpu();
    s.backends.push_back(s.cuda ? make_gpu(kv.type == DType::i8 ? DType::f16 : kv.type, quant)
                                : make_cpu_backend({.threads = t, .pin = false, .quant = quant}));
    auto model = load_model(*s.files.back(), *s.backends.back(), {});
    EXPECT_TRUE(model) << model.error().message;
    s.models.push_back(std::move(*model));
  }
  return s;
}

// The same in two parts. The one with the last layers is loaded first: it gives back what it reads.
Subject make_split(std::string name, const OpenFile& open, KvType kv, int host_layers) {
  Subject s;
  s.name = std::move(name);
  s.kv = kv;
  s.cuda = on_gpu();
  s.host_layers = host_layers;
  for (int t = 1; t <= kMaxThreads; ++t) {
    auto file = open();
    EXPECT_TRUE(file) << file.error().message;
    s.files.push_back(std::move(*file));
    const int rest = kMaxThreads + 1 - t;
    s.backends.push_back(s.cuda ? make_gpu(kv.type, {})
                                : make_cpu_backend({.threads = rest, .pin = false}));
    s.host_backends.push_back(make_cpu_backend({.threads = t, .pin = false}));
    LoadOptions load;
    load.layers.first = host_layers;
    auto last = load_model(*s.files.back(), *s.backends.back(), load);
    load.layers = {0, host_layers};
    auto first = load_model(*s.files.back(), *s.host_backends.back(), load);
    EXPECT_TRUE(first && last);
    s.models.push_back(std::move(*last));
    s.host_models.push_back(std::move(*first));
  }
  return s;
}

// On the reference backend in f32, or on a GPU that chooses its products freely. With `host_layers`
// the first layers are the CPU's, and prompts run through the device in them.
Subject make_streamed(std::string name, const OpenFile& open, int host_layers, CudaOptions gpu) {
  Subject s;
  s.name = std::move(name);
  s.kv = gpu.activations;
  s.cuda = on_gpu();
  s.host_layers = host_layers;
  for (int t = 1; t <= kMaxThreads; ++t) {
    s.files.push_back(open().value());
    Checkpoint& file = *s.files.back();
    gpu.tune = false;
    if (s.cuda) {
      s.backends.push_back(open_cuda(gpu).value());
    } else {
      s.backends.push_back(make_ref_backend());
    }
    LoadOptions load;
    load.layers.first = host_layers;
    s.models.push_back(load_model(file, *s.backends.back(), load).value());
    if (host_layers == 0) continue;
    s.host_backends.push_back(
        s.cuda ? make_cpu_backend({.threads = t, .pin = false, .quant = gpu.int8})
               : make_ref_backend());
    s.stream_devices.push_back(std::make_unique<RefDevice>());
    Device& device = s.cuda ? static_cast<Device&>(*s.backends.back()) : *s.stream_devices.back();
    LayerStream::Sizes z;
    z.num_layers = host_layers;
    z.slot_bytes = kSlotBytes;
    s.streams.push_back(LayerStream::load(device, file, {}, z).value());
    load.layers = {0, host_layers};
    s.host_models.push_back(load_model(file, *s.host_backends.back(), load).value());
  }
  return s;
}

std::vector<Subject>& subjects() {
  static std::vector<Subject> list = [] {
    std::vector<Subject> v;
    auto gguf = [](const std::string& n) {
      return [n] { return open_gguf(SLUICE_SOURCE_DIR "/tests/golden/models/" + n + ".gguf"); };
    };
    auto random = [](const char* config, Format f) {
      return [=] { return random_checkpoint_from_text(config, "tiny", f, 7); };
    };
    v.push_back(make_subject("llama-f32", gguf("llama"), DType::f32));
    v.push_back(make_subject("llama-window", gguf("llama-window"), DType::f16));
    v.push_back(make_subject("gpt2", gguf("gpt2"), DType::f16));
    v.push_back(make_subject("phi3-longrope", gguf("phi3-longrope"), DType::f16));
    v.push_back(make_subject("gemma2", gguf("gemma2"), DType::f16));
    v.push_back(make_subject("gemma3", gguf("gemma3"), DType::f16));
    v.push_back(make_subject("q8_0", random(kTinyConfig, Format::q8_0), DType::f16));
    v.push_back(make_subject("q4_0", random(kTinyConfig, Format::q4_0), DType::f16));
    v.push_back(make_subject("q4_1", random(kTinyConfig, Format::q4_1), DType::f16));
    v.push_back(make_subject("q6_k", random(kTinyConfigK, Format::q6_k), DType::f16));
    v.push_back(make_subject("q4_k", random(kTinyConfigK, Format::q4_k), DType::f16));
    v.push_back(make_subject("q5_0", random(kTinyConfig, Format::q5_0), DType::f16));
    v.push_back(make_subject("f16", random(kTinyConfig, Format::f16), DType::f16));
    v.push_back(make_subject("w8a8", random(kTinyConfig, Format::f16), DType::f16,
                             {WeightQuant::w8a8, {}}));
    v.push_back(make_subject("w8a8-excluded", random(kTinyConfigK, Format::q4_k), DType::f16,
                             {WeightQuant::w8a8, {"attn_output", "attn_k"}}));
    v.push_back(make_subject("w4", random(kTinyConfig, Format::bf16), DType::f16,
                             {WeightQuant::w4, {"token_embd"}}));
    v.push_back(
        make_subject("u8", random(kTinyConfig, Format::f32), DType::f16, {WeightQuant::u8, {}}));
    v.push_back(make_subject("bf16", random(kTinyConfig, Format::bf16), DType::f16));
    v.push_back(make_subject("kv-int8", random(kTinyConfigK, Format::q8_0), {DType::i8, 32}));
    v.push_back(make_subject("kv-int8:8-window", gguf("llama-window"), {DType::i8, 8}));
    return v;
  }();
  return list;
}

// Models in two parts, each with the whole.
struct SplitPair {
  Subject split, whole;
};
std::vector<SplitPair>& split_subjects() {
  static std::vector<SplitPair> list = [] {
    std::vector<SplitPair> v;
    auto add = [&](const char* name, const OpenFile& open, DType kv, int layers) {
      v.push_back({make_split(name, open, kv, layers), make_subject(name, open, kv)});
    };
    auto gguf = [](const std::string& n) {
      return [n] { return open_gguf(SLUICE_SOURCE_DIR "/tests/golden/models/" + n + ".gguf"); };
    };
    auto q8 = [] { return random_checkpoint_from_text(kTinyConfig, "tiny", Format::q8_0, 7); };
    add("llama-f32", gguf("llama"), DType::f32, 2);
    add("llama-window", gguf("llama-window"), DType::f16, 1);
    add("gpt2", gguf("gpt2"), DType::f16, 1);
    add("phi3-longrope", gguf("phi3-longrope"), DType::f16, 1);
    add("gemma2", gguf("gemma2"), DType::f16, 1);
    add("gemma3", gguf("gemma3"), DType::f16, 3);
    add("q8_0", q8, DType::f16, 1);
    return v;
  }();
  return list;
}

struct Output {
  std::vector<std::vector<Token>> tokens;
  std::vector<std::vector<TopLogprob>> top;
  std::vector<TopLogprob> prompt;
  std::vector<Finish> finish;
  Vector pooled;
  int num_terminal = 0;
};

bool same_bits(const std::vector<TopLogprob>& a, const std::vector<TopLogprob>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0);
}

struct Setup {
  SchedulerConfig scheduler;
  CacheGroups groups;
  int threads = 1;
  bool forced = false;    // tokens that a constraint leaves no choice about are not sampled
  bool replayed = false;  // its plans give the same results once more
  const std::filesystem::path* disk_dir = nullptr;  // with tiers.disk
};

struct Tally {
  uint64_t preemptions = 0, restored = 0, tier_hits = 0, disk_hits = 0;
  uint64_t constrained = 0, complete = 0;  // outputs under a constraint; of those, that ended by it
  uint64_t forced = 0;
  uint64_t replayed = 0;
  uint64_t streamed = 0;              // rows
  uint64_t thinking = 0, closed = 0;  // outputs with a budget of thinking; that have its end mark
};

// All that went into an executor and came out of it, in order.
struct Recorded {
  std::vector<Bytes> calls;         // plans and results
  std::vector<bool> launches;       // which of them are plans
  std::map<uint64_t, Bytes> masks;  // by step
};

// Passes plans, masks and results through their encoding, and checks that nothing is lost. Keeps
// what the steps in flight read: a block may be free while one that was launched still has to move
// it.
class EncodingExecutor final : public Executor {
 public:
  explicit EncodingExecutor(Executor& inner) : inner_(inner) {}
  void launch(const StepPlan& plan) override {
    bytes_.clear();
    encode(plan, bytes_);
    Result<StepPlan> back = decode_plan(bytes_);
    ASSERT_TRUE(back) << back.error().message;
    ASSERT_EQ(*back, plan);
    recorded_.calls.push_back(bytes_);
    recorded_.launches.push_back(true);
    inner_.launch(*back);
    for (const Transfer& t : plan.transfers) moving_[t.id] = t;
  }
  void masks(StepMasks masks) override {  // on a thread of the masks
    Bytes bytes;
    encode(masks, bytes);
    Result<StepMasks> back = decode_masks(bytes);
    EXPECT_TRUE(back) << back.error().message;
    EXPECT_EQ(*back, masks);
    {
      std::lock_guard lock(mutex_);
      recorded_.masks[masks.step] = std::move(bytes);
    }
    inner_.masks(std::move(*back));
  }
  const StepResult& wait() override {
    const StepResult& result = inner_.wait();
    bytes_.clear();
    encode(result, bytes_);
    Result<StepResult> back = decode_result(bytes_);
    EXPECT_TRUE(back) << back.error().message;
    if (!back) return result;
    result_ = std::move(*back);
    EXPECT_TRUE(result_ == result);
    EXPECT_EQ(result_.begin, result.begin);
    recorded_.calls.push_back(bytes_);
    recorded_.launches.push_back(false);
    for (TransferId id : result_.transfers) moving_.erase(id);
    for (TransferId id : result_.lost) moving_.erase(id);
    return result_;
  }
  const std::map<TransferId, Transfer>& moving() const { return moving_; }
  // When all steps have come back.
  const Recorded& recorded() const { return recorded_; }

 private:
  Executor& inner_;
  Recorded recorded_;
  std::mutex mutex_;  // of its masks
  std::map<TransferId, Transfer> moving_;
  StepResult result_;
  Bytes bytes_;
};

// Overwrites every free block with large numbers, not NaN: kernels may multiply what lies behind
// the last position of a block by zero. Of free blocks the steps in flight name those alone that
// they copy or move out.
void poison_free_blocks(const Scheduler& scheduler,
                        const std::map<TransferId, Transfer>& moving,
                        const KvCache& cache) {
  std::vector<BlockUse> uses(static_cast<size_t>(scheduler.config().num_blocks));
  scheduler.block_uses(uses);
  for (const auto& [id, t] : moving) {
    if (t.kind != Transfer::in) uses[static_cast<size_t>(t.from - 1)] = BlockUse::owned;
  }
  for (size_t k = 0; k < uses.size(); ++k) {
    if (uses[k] != BlockUse::free) continue;
    for (const KvLayer& plane : cache.planes()) {
      size_t bytes = plane.block_bytes();
      std::memset(static_cast<std::byte*>(plane.k) + (k + 1) * bytes, 0x7B, bytes);
      std::memset(static_cast<std::byte*>(plane.v) + (k + 1) * bytes, 0x7B, bytes);
    }
  }
}

// The same calls give the same results on another executor, byte for byte.
void replay(const Recorded& run, Executor& fresh) {
  for (size_t k = 0; k < run.calls.size(); ++k) {
    if (run.launches[k]) {
      const StepPlan plan = decode_plan(run.calls[k]).value();
      fresh.launch(plan);
      if (auto m = run.masks.find(plan.step); m != run.masks.end())
        fresh.masks(decode_masks(m->second).value());
      continue;
    }
    const StepResult was = decode_result(run.calls[k]).value();
    ASSERT_TRUE(fresh.wait() == was) << "step " << was.step << " differs when it is replayed";
  }
}

// Runs requests to their end, those in `cancel_at` until that many iterations have passed.
// Requests join over the first iterations, not all at once.
std::map<RequestId, Output> run(Subject& subject,
                                const Setup& setup,
                                const std::vector<Request>& requests,
                                const std::map<RequestId, int>& cancel_at,
                                int join_every,
                                Tally* tally) {
  auto t = static_cast<size_t>(setup.threads - 1);
  Scheduler scheduler(setup.scheduler, nullptr);
  ExecutorConfig e;
  e.num_blocks = setup.scheduler.num_blocks;
  e.block_size = setup.scheduler.block_size;
  e.max_seqs = scheduler.config().max_seqs;
  e.max_len = setup.scheduler.max_len;
  e.max_step_tokens = scheduler.max_step_tokens();
  e.logits_rows = 5;  // several turns of logits per step
  e.kv_type = subject.kv;
  e.groups = setup.groups;
  e.num_places = setup.scheduler.tiers.memory();
  e.num_disk = setup.scheduler.tiers.disk;
  e.pipeline = setup.scheduler.pipeline;
  if (const SchedulerConfig& c = scheduler.config(); c.mapped())
    e.num_pages = c.num_pages(), e.slot_blocks = c.pages.slot_blocks;
  RealClock clock;
  std::unique_ptr<DiskTier> disk;
  std::unique_ptr<Executor> executor, rest;
  std::vector<const KvCache*> caches;  // in this process's memory
  Buffer states;
  ExecutorConfig host = e;
  SplitExecutor* split = nullptr;
  LayerStream* stream = subject.streams.empty() ? nullptr : subject.streams[t].get();
  Model& model = *subject.models[t];
  if (e.num_disk > 0) {
    size_t bytes = KvCache::bytes_per_block(model.shape(), e.groups, e.kv_type, e.block_size);
    Result<BlockFile> file =
        BlockFile::open({*setup.disk_dir, std::string(64, 'a'), e.num_disk, e.block_size, bytes});
    EXPECT_TRUE(file) << file.error().message;
    scheduler.recall(file->list());
    Buffer staging;
    if (subject.cuda)
      staging = static_cast<Device&>(*subject.backends[t]).pinned(DiskTier::staging_bytes(bytes));
    disk = std::make_unique<DiskTier>(std::move(*file), std::move(staging));
  }
  if (subject.host_layers > 0) {
    const int num_layers = model.shape().num_layers;
    const CacheGroups all =
        setup.groups.layers.empty() ? one_cache_group(num_layers) : setup.groups;
    host.groups = part_of(all, {0, subject.host_layers});
    e.groups = part_of(all, {subject.host_layers, num_layers});
    const size_t bytes = states_bytes(model.shape(), e.max_step_tokens);
    states = subject.cuda ? static_cast<Device&>(*subject.backends[t]).pinned(bytes)
                          : subject.host_backends[t]->allocate(bytes);
    e.states = static_cast<const float*>(states.data());
  }
  if (subject.cuda) {
    auto& device = static_cast<Device&>(*subject.backends[t]);
    executor =
        std::make_unique<DeviceExecutor>(device, model, e, clock, setup.threads > 1, disk.get());
  } else {
    auto own = std::make_unique<ModelExecutor>(*subject.backends[t], model, e, clock, disk.get());
    caches.push_back(&own->kv_cache());
    executor = std::move(own);
  }
  if (subject.host_layers > 0) {
    rest = std::move(executor);
    if (stream)
      stream->reserve(LayerStream::sizes_for(host, host.groups, subject.host_layers, kSlotBytes),
                      model.scratch());
    auto own =
        std::make_unique<SplitExecutor>(*subject.host_backends[t], *subject.host_models[t], host,
                                        clock, static_cast<float*>(states.data()), *rest, stream);
    own->set_streams_from(24);
    caches.push_back(&own->kv_cache());
    split = own.get();
    executor = std::move(own);
  }
  EncodingExecutor encoding(*executor);
  Loop loop(scheduler, encoding, clock, setup.scheduler.pipeline, {.forced = setup.forced});

  std::map<RequestId, Output> out;
  size_t added = 0;
  Events events;
  for (int iteration = 0; added < requests.size() || loop.busy(); ++iteration) {
    EXPECT_LT(iteration, 100000) << "no progress";
    while (added < requests.size() && static_cast<int>(added) * join_every <= iteration) {
      const Request& r = requests[added++];
      Output& o = out[r.id];
      o.tokens.resize(static_cast<size_t>(r.n));
      o.top.resize(static_cast<size_t>(r.n));
      o.finish.resize(static_cast<size_t>(r.n));
      auto ok = scheduler.add(r, clock.now());
      EXPECT_TRUE(ok) << ok.error().message;
    }
    for (const auto& [id, at] : cancel_at) {
      if (at == iteration) scheduler.cancel(id, clock.now(), events);
    }
    tally->forced += static_cast<uint64_t>(loop.iterate(events).num_forced);
    BlockCounts blocks = scheduler.count_blocks();
    EXPECT_TRUE(blocks.conserved());
    for (const KvCache* cache : caches)
      if (!cache->mapped()) poison_free_blocks(scheduler, encoding.moving(), *cache);
    for (const Event& ev : events.list) {
      Output& o = out.at(ev.req);
      EXPECT_EQ(o.num_terminal, 0) << "an event after the terminal one";
      EXPECT_EQ(o.finish[ev.choice], Finish::none);
      if (ev.token != kNoToken) o.tokens[ev.choice].push_back(ev.token);
      auto at = [&](uint32_t i) { return events.top.begin() + i; };
      o.top[ev.choice].insert(o.top[ev.choice].end(), at(ev.top_at), at(ev.top_at + ev.num_top));
      o.prompt.insert(o.prompt.end(), at(ev.prompt_at), at(ev.prompt_at + ev.num_prompt));
      o.finish[ev.choice] = ev.finish;
      if (ev.pooled) o.pooled = ev.pooled;
      if (ev.last) ++o.num_terminal;
    }
    events.clear();
    if (testing::Test::HasFailure()) break;
  }
  if (!testing::Test::HasFailure()) {
    BlockCounts blocks = scheduler.count_blocks();
    EXPECT_EQ(blocks.free + blocks.cached, blocks.total) << "blocks left behind";
  }
  SchedulerStats stats = scheduler.stats();
  tally->preemptions += stats.num_preemptions;
  tally->restored += stats.tiers.num_restored;
  tally->tier_hits += stats.tiers.prefix_hits;
  tally->disk_hits += stats.tiers.disk_hits;
  EXPECT_EQ(scheduler.num_held_places(), 0) << "places left behind";
  if (split) tally->streamed += split->num_streamed_rows();
  if (setup.replayed && !subject.cuda && !disk && subject.host_layers == 0 &&
      !testing::Test::HasFailure()) {
    const size_t other = (t + 1) % subject.models.size();  // with another number of threads
    ModelExecutor fresh(*subject.backends[other], *subject.models[other], e, clock);
    replay(encoding.recorded(), fresh);
    ++tally->replayed;
  }
  return out;
}

// Removed at its end.
struct TempDir {
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "sluice-kv-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path = name;
  }
  ~TempDir() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

struct Workload {
  std::vector<Request> requests;
  std::map<RequestId, int> cancel_at;
  Setup setup;
  int join_every = 0;
};

// The model's own groups, or any that keep as much: a layer with a window may be kept in full.
CacheGroups pick_groups(std::mt19937_64& rng, const ModelShape& shape) {
  if (rng() % 2) return cache_groups(shape);
  std::vector<int> windows = shape.windows;
  for (int& w : windows) w = rng() % 3 ? w : 0;
  int planes = 1 + static_cast<int>(rng() % static_cast<uint64_t>(shape.num_layers));
  return split_layers(windows, planes);
}

Workload make_workload(std::mt19937_64& rng, const Subject& subject) {
  const ModelShape& shape = subject.models[0]->shape();
  int vocab = shape.vocab;
  auto pick = [&](int lo, int hi) {
    return lo + static_cast<int>(rng() % static_cast<uint64_t>(hi - lo + 1));
  };
  auto chance = [&](int percent) { return pick(1, 100) <= percent; };
  Workload w;
  std::vector<Token> family;
  for (int i = 0; i < 64; ++i) family.push_back(pick(0, vocab - 1));
  int num = pick(1, 9), longest = 0;
  for (int i = 0; i < num; ++i) {
    Request r;
    r.id = static_cast<RequestId>(i + 1);
    auto prompt = std::make_shared<std::vector<Token>>();
    int len = chance(10) ? 1 : pick(1, 70), shared = chance(50) ? pick(0, std::min(len, 64)) : 0;
    for (int p = 0; p < len; ++p)
      prompt->push_back(p < shared ? family[static_cast<size_t>(p)] : pick(0, vocab - 1));
    r.prompt = prompt;
    auto spec = std::make_shared<SamplingSpec>();
    spec->temperature = chance(50) ? 0 : 0.8f;
    spec->seed = rng();
    if (chance(30)) spec->top_k = pick(1, 20);
    if (chance(30)) spec->top_p = 0.9f;
    if (chance(20)) spec->repetition_penalty = 1.2f;
    if (chance(20)) spec->frequency_penalty = 0.5f;
    if (chance(20)) spec->min_tokens = pick(1, 8);
    if (chance(50)) spec->num_logprobs = pick(0, 3);
    if (chance(20)) spec->prompt_logprobs = pick(0, 2);
    if (chance(40)) r.stop.tokens = {pick(0, vocab - 1), pick(0, vocab - 1), pick(0, vocab - 1)};
    spec->banned_until_min = r.stop.tokens;
    r.sampling = spec;
    r.max_new = pick(1, 24);
    r.n = chance(20) ? pick(2, 4) : 1;
    if (chance(30)) {
      r.constraint = tiny_constraint(pick(0, kNumTinyConstraints - 1), vocab);
      if (chance(60)) {  // what tokens may be forced under
        spec->repetition_penalty = 1, spec->frequency_penalty = 0;
        spec->num_logprobs = -1, spec->min_tokens = 0;
      }
      add_end_tokens(r);
    }
    if (chance(20)) {
      r.constraint = nullptr;
      r.pooling = chance(50) ? Pooling::mean : Pooling::last;
      r.max_new = 0;
      r.n = 1;
      r.sampling = std::make_shared<const SamplingSpec>();
    }
    r.priority = pick(0, 2);
    r.tenant = chance(20) ? 1 : 0;
    r.account = static_cast<TenantId>(pick(0, 2));
    longest = std::max(longest, len + r.max_new);
    if (chance(10)) w.cancel_at[r.id] = pick(0, 30);
    w.requests.push_back(std::move(r));
  }
  SchedulerConfig& c = w.setup.scheduler;
  auto any = [&](const std::vector<std::string>& names) {
    return names[static_cast<size_t>(pick(0, static_cast<int>(names.size()) - 1))];
  };
  apply_preset(any(preset_names()), c).value();
  c.order = *value_named(kOrders, any(names_in(kOrders)));
  if (chance(40)) c.admission = *value_named(kAdmissions, any(names_in(kAdmissions)));
  c.predictor = {static_cast<Predict>(pick(0, 4)), pick(1, 24), 0.5f};
  c.block_size = 8 << pick(0, 2);
  c.max_len = 128;
  c.budget = pick(1, 4) == 1 ? pick(4, 12) : pick(16, 100);
  c.chunk = chance(50) ? pick(1, 20) : 0;
  c.short_share = chance(50) ? 0.25f : 0;
  c.mixed_budget = chance(30) ? pick(1, 30) : 0;
  c.max_seqs = pick(1, 8);
  c.prefix_cache = chance(60);
  c.prefill_delay = chance(20) ? pick(1, 8) : 0;
  c.prefill_batch = chance(20) ? pick(1, 3) : 0;
  c.watermark = chance(50) ? 0.0f : 0.1f;
  if (chance(60)) {
    c.preempt = chance(70) ? Preempt::swap : Preempt::recompute;
    if (chance(20)) c.swap_cost = {1, 1, 8};
    c.tiers.swap = c.preempt == Preempt::swap ? pick(1, 40) : 0;
    c.tiers.host = c.prefix_cache && chance(60) ? pick(1, 40) : 0;
  }
  w.setup.groups = pick_groups(rng, shape);
  c.group_windows = w.setup.groups.windows;
  if (int draw = pick(0, 5); draw < 3) {
    c.allocator = draw == 0   ? KvAllocator::reserve
                  : draw == 1 ? KvAllocator::range
                              : KvAllocator::virtual_;
    c.prefix_cache = false;
    c.preempt = Preempt::recompute;
    c.tiers = {};
    for (Request& r : w.requests) {
      r.n = 1;
      r.predicted_output = chance(30) ? 0 : pick(1, 24);
    }
    if (c.allocator == KvAllocator::reserve) longest = c.max_len;
    if (c.mapped() && c.admission == Admission::predicted_peak) c.admission = Admission::watermark;
    c.pages.block_bytes = static_cast<int64_t>(shape.num_kv_heads) *
                          static_cast<int64_t>(subject.kv.head_bytes(shape.head_dim, c.block_size));
    c.pages.page_bytes = static_cast<int64_t>(subject.backends[0]->page_bytes());
  }
  c.pipeline = *value_named(kPipelines, any(names_in(kPipelines)));
  auto least = static_cast<int>(Scheduler::most_blocks(longest, c));
  c.num_blocks = least + (chance(60) ? pick(0, 4 * w.setup.groups.num_groups()) : 200);
  w.setup.threads = pick(1, kMaxThreads);
  w.setup.forced = chance(70);
  w.join_every = pick(0, 4);
  if (c.prefix_cache && chance(25)) c.tiers.disk = pick(1, 60);
  // By the time that steps really take.
  if (chance(40) && (c.pipeline.depth == 0 || c.pipeline.chained))
    c.slo.itl = std::chrono::microseconds(pick(1, 2000));
  return w;
}

// A small pool that shares prefixes, with room outside it.
void move_much(std::mt19937_64& rng, Workload& w) {
  SchedulerConfig& c = w.setup.scheduler;
  c.allocator = KvAllocator::paged;
  c.slo = {};  // what is counted below must not depend on the machine
  c.prefix_cache = true;
  c.admission = Admission::watermark;
  c.preempt = Preempt::swap;
  c.swap_cost = {};
  c.tiers = {40, 80, 0, c.tiers.disk};
  std::vector<Request> all = std::move(w.requests);
  w.requests.clear();
  int longest = 0;
  for (RequestId id = 1; id <= 9; ++id) {
    Request r = all[id % all.size()];
    auto prompt = std::make_shared<std::vector<Token>>(*all[id % 3 % all.size()].prompt);
    prompt->resize(std::min<size_t>(prompt->size() + 10, 64), static_cast<Token>(rng() % 20));
    r.id = id;
    r.prompt = prompt;
    r.tenant = rng() % 8 == 0;
    longest = std::max(longest, static_cast<int>(prompt->size()) + r.max_new);
    w.requests.push_back(std::move(r));
  }
  c.num_blocks = static_cast<int>(Scheduler::most_blocks(longest, c));
  w.cancel_at = {{static_cast<RequestId>(1 + rng() % 9), static_cast<int>(rng() % 30)}};
}

// Half of the requests search with beams, in a pool that holds little more than the largest of
// them.
void search_with_beams(std::mt19937_64& rng, Workload& w) {
  SchedulerConfig& c = w.setup.scheduler;
  c.allocator = KvAllocator::paged;
  c.max_seqs = std::max(c.max_seqs, 4);
  c.budget = std::max(c.budget, 4);
  c.num_blocks = 0;
  for (Request& r : w.requests) {
    if (rng() % 2 && r.pooling == Pooling::none) {
      r.n = 1 + static_cast<int>(rng() % 4);
      r.constraint = nullptr;
      r.sampling = std::make_shared<const SamplingSpec>();
      r.beams = BeamSpec{static_cast<float>(rng() % 3), static_cast<BeamEnd>(rng() % 3)};
    }
    auto positions = static_cast<int>(r.prompt->size()) + r.max_new;
    int rows = (positions + c.block_size - 1) / c.block_size;
    c.num_blocks = std::max({c.num_blocks, r.n * rows * w.setup.groups.num_groups(),
                             static_cast<int>(Scheduler::most_blocks(positions, c))});
  }
  c.num_blocks += static_cast<int>(rng() % 20);
}

// Some requests get a budget of thinking, by draws of their own.
void bound_thinking(uint64_t seed, int vocab, Workload& w) {
  std::mt19937_64 rng(seed ^ 0x7468696e6b);
  for (Request& r : w.requests) {
    const uint64_t draw = rng();
    if (draw % 4 != 0 || r.beams || r.pooling != Pooling::none) continue;
    r.thinking = tiny_thinking(vocab, draw / 4 % 4 != 0, static_cast<int>(draw / 16 % 8));
    auto spec = std::make_shared<SamplingSpec>(*r.sampling);
    spec->min_tokens = 0;  // it could forbid the end mark
    spec->banned_until_min.clear();
    r.sampling = std::move(spec);
    add_end_tokens(r);
  }
}

Setup alone(const Setup& other) {
  Setup s;
  apply_preset("sarathi", s.scheduler).value();
  s.scheduler.block_size = other.scheduler.block_size == 16 ? 32 : 16;  // must not matter either
  s.scheduler.max_len = other.scheduler.max_len;
  s.scheduler.budget = 256;
  s.scheduler.num_blocks = 64;
  s.scheduler.prefix_cache = false;
  s.scheduler.pipeline = Pipeline::sync;
  s.scheduler.sampling = other.scheduler.sampling;
  return s;
}

// Turns off what a model in two parts cannot do.
void keep_in_the_pool(std::mt19937_64&, Workload& w) {
  SchedulerConfig& c = w.setup.scheduler;
  c.pipeline = Pipeline::sync;
  c.preempt = Preempt::recompute;
  c.tiers = {};
  if (c.mapped()) c.allocator = KvAllocator::range;
}

// `reference`: what runs the requests alone; null: the subject.
void check_workload(Subject& subject,
                    uint64_t seed,
                    Tally* tally,
                    void (*change)(std::mt19937_64&, Workload&) = nullptr,
                    Subject* reference = nullptr) {
  std::mt19937_64 rng(seed);
  Workload w = make_workload(rng, subject);
  if (change) change(rng, w);
  const int vocab = subject.models[0]->shape().vocab;
  bound_thinking(seed, vocab, w);
  SCOPED_TRACE(subject.name + ", seed " + std::to_string(seed));
  const TempDir dir;
  w.setup.disk_dir = &dir.path;
  w.setup.replayed = true;
  auto together = run(subject, w.setup, w.requests, w.cancel_at, w.join_every, tally);
  // Once more, with what is on disk from the first time.
  if (w.setup.scheduler.tiers.disk > 0)
    together = run(subject, w.setup, w.requests, w.cancel_at, w.join_every, tally);
  if (testing::Test::HasFailure()) return;
  for (const Request& r : w.requests) {
    Tally none;
    // Each choice alone: the one thing that tells choices apart is the key of their draws.
    auto solo = run(reference ? *reference : subject, alone(w.setup), {r}, {}, 0, &none);
    const Output &a = together.at(r.id), &b = solo.at(r.id);
    ASSERT_EQ(a.num_terminal, 1);
    ASSERT_EQ(b.num_terminal, 1);
    for (size_t c = 0; c < a.tokens.size(); ++c) {
      if (r.thinking) {
        ASSERT_TRUE(keeps_budget(r.constraint, r.thinking, a.tokens[c]))
            << "request " << r.id << " choice " << c;
        std::string text;
        for (Token t : a.tokens[c]) text += r.thinking->marks->bytes(t);
        ++tally->thinking;
        tally->closed += text.find(kTinyThinkEnd) != text.npos;
      } else if (r.constraint) {
        ASSERT_TRUE(obeys(r.constraint, a.tokens[c])) << "request " << r.id << " choice " << c;
        bool dead_end = r.constraint == tiny_constraint(kDeadEnd, vocab);
        ASSERT_TRUE(dead_end ? a.tokens[c].size() <= 2 : a.finish[c] != Finish::constraint)
            << "request " << r.id << " choice " << c;
        ++tally->constrained;
        tally->complete += a.finish[c] == Finish::stop;
      }
      if (a.finish[c] == Finish::cancelled) {
        ASSERT_LE(a.tokens[c].size(), b.tokens[c].size());
        ASSERT_TRUE(std::equal(a.tokens[c].begin(), a.tokens[c].end(), b.tokens[c].begin()));
        continue;
      }
      ASSERT_EQ(a.finish[c], b.finish[c]) << "request " << r.id << " choice " << c;
      ASSERT_EQ(a.tokens[c], b.tokens[c]) << "request " << r.id << " choice " << c;
      ASSERT_TRUE(same_bits(a.top[c], b.top[c])) << "request " << r.id << " choice " << c;
    }
    if (r.pooling != Pooling::none && a.finish[0] != Finish::cancelled) {
      ASSERT_TRUE(a.pooled && b.pooled);
      ASSERT_EQ(a.pooled->size(), static_cast<size_t>(subject.models[0]->shape().hidden));
      ASSERT_EQ(std::memcmp(a.pooled->data(), b.pooled->data(), a.pooled->size() * sizeof(float)),
                0)
          << "request " << r.id;
    } else {
      ASSERT_FALSE(a.pooled);
    }
    if (!w.cancel_at.contains(r.id)) {
      ASSERT_TRUE(same_bits(a.prompt, b.prompt)) << "request " << r.id;
      if (r.sampling->prompt_logprobs >= 0) {
        size_t per = 1 + static_cast<size_t>(r.sampling->prompt_logprobs);
        ASSERT_EQ(a.prompt.size(), (r.prompt->size() - 1) * per);
      }
    }
  }
}

TEST(EngineProperty, OutputDependsOnTheRequestAlone) {
  const char* full = std::getenv("SLUICE_TEST_FULL");
  const char* from = std::getenv("SLUICE_TEST_SEED");  // replay one
  uint64_t num = full && *full == '1' ? 1000 : 100;
  uint64_t first = from ? std::strtoull(from, nullptr, 10) : 1;
  Tally tally;
  if (from) num = 1;
  for (uint64_t seed = first; seed < first + num; ++seed) {
    check_workload(subjects()[seed % subjects().size()], seed, &tally);
    if (HasFailure()) return;
  }
  if (!from) {
    EXPECT_GT(tally.preemptions, num / 10) << "the workloads hardly preempt: they prove too little";
    EXPECT_GT(tally.restored, num / 40) << "few sequences come back from host memory";
    if (!on_gpu()) {
      EXPECT_GT(tally.constrained, num / 2) << "few requests have a constraint";
      EXPECT_GT(tally.complete, tally.constrained / 8) << "few outputs come to their end";
      EXPECT_GT(tally.forced, num) << "few tokens are forced";
      EXPECT_GT(tally.replayed, num / 2) << "few workloads are replayed";
      EXPECT_GT(tally.thinking, num / 2) << "few requests have a budget of thinking";
      EXPECT_GT(tally.closed, tally.thinking / 4) << "few budgets are used up";
    }
    EXPECT_GT(tally.disk_hits, num / 2) << "few prefixes come from disk";
  }
}

TEST(EngineProperty, ASearchDependsOnTheRequestAlone) {
  const char* full = std::getenv("SLUICE_TEST_FULL");
  uint64_t num = full && *full == '1' ? 200 : 10;
  Tally tally;
  for (uint64_t seed = 1; seed <= num; ++seed) {
    check_workload(subjects()[seed % subjects().size()], seed, &tally, search_with_beams);
    if (HasFailure()) return;
  }
}

TEST(EngineProperty, LayersInTwoPartsComputeTheSame) {
  const char* full = std::getenv("SLUICE_TEST_FULL");
  uint64_t num = full && *full == '1' ? 300 : 35;
  Tally tally;
  for (uint64_t seed = 1; seed <= num; ++seed) {
    SplitPair& pair = split_subjects()[seed % split_subjects().size()];
    check_workload(pair.split, seed, &tally, keep_in_the_pool, on_gpu() ? nullptr : &pair.whole);
    if (HasFailure()) return;
  }
  EXPECT_GT(tally.preemptions, num / 20) << "the workloads hardly preempt";
  if (!on_gpu()) {
    EXPECT_GT(tally.constrained, num / 4) << "few requests have a constraint";
  }
}

// A request alone, greedy, with a prompt of its own that is scored.
Output scored(Subject& subject, uint64_t seed, Tally* tally) {
  Request r;
  r.id = 1;
  r.prompt = std::make_shared<std::vector<Token>>(60 + 3 * seed, static_cast<Token>(seed));
  SamplingSpec spec;
  spec.temperature = 0;
  spec.num_logprobs = spec.prompt_logprobs = 0;
  r.sampling = std::make_shared<SamplingSpec>(spec);
  r.max_new = 4;
  Setup other;
  other.scheduler.max_len = 128;
  Setup setup = alone(other);
  setup.groups = cache_groups(subject.models[0]->shape());
  setup.scheduler.group_windows = setup.groups.windows;
  setup.scheduler.num_blocks *= setup.groups.num_groups();
  setup.scheduler.budget = seed % 2 ? 256 : 40;  // in chunks: some begin with a context
  return run(subject, setup, {r}, {}, 0, tally).at(1);
}

void expect_near(const std::vector<TopLogprob>& a,
                 const std::vector<TopLogprob>& b,
                 float tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].token, b[i].token);
    EXPECT_NEAR(a[i].logprob, b[i].logprob, tolerance);
  }
}

// Prompts run through a device in the layers of the CPU: with the reference on both sides the bits
// are the same, on a GPU they are close, whatever the weights are there.
TEST(EngineProperty, PromptsThroughTheGpuComputeTheSame) {
  struct Case {
    const char* name;
    OpenFile open;
    int host_layers;
    CudaOptions gpu;
  };
  auto gguf = [](const std::string& n) {
    return [n] { return open_gguf(SLUICE_SOURCE_DIR "/tests/golden/models/" + n + ".gguf"); };
  };
  auto q8 = [] { return random_checkpoint_from_text(kTinyConfig, "tiny", Format::q8_0, 7); };
  CudaOptions f32, f16, stored, f8, i8;
  f32.activations = DType::f32;
  f16.activations = stored.activations = f8.activations = i8.activations = DType::f16;
  stored.stored_weights = f8.fp8_weights = true;
  i8.int8 = {WeightQuant::w8a8, {}};
  std::vector<Case> cases{{"llama", gguf("llama"), 2, f32},
                          {"gemma3", gguf("gemma3"), 5, f32},
                          {"gpt2", gguf("gpt2"), 1, f32}};
  if (on_gpu()) {
    cases.push_back({"q8_0 in f16", q8, 1, f16});
    cases.push_back({"q8_0 as stored", q8, 1, stored});
    cases.push_back({"q8_0 in fp8", q8, 1, f8});
    cases.push_back({"q8_0 in int8", q8, 1, i8});
  }
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Subject streamed = make_streamed(c.name, c.open, c.host_layers, c.gpu);
    Subject whole = make_streamed(c.name, c.open, 0, c.gpu);
    Tally tally;
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      if (!on_gpu()) {
        check_workload(streamed, seed, &tally, keep_in_the_pool, &whole);
        if (HasFailure()) return;
      }
      const Output a = scored(streamed, seed, &tally), b = scored(whole, seed, &tally);
      const bool exact = c.gpu.activations == DType::f32;
      expect_near(a.prompt, b.prompt, !on_gpu() ? 0 : exact ? 2e-3f : 3e-2f);
      // The CPU's layers have other arithmetic where weights are not floats.
      if (exact) expect_near(a.top[0], b.top[0], on_gpu() ? 2e-3f : 0);
    }
    EXPECT_GT(tally.streamed, 300u) << "few rows run through the device";
  }
}

// Requests of three families take turns in a pool that holds little more than one of them.
TEST(EngineProperty, NoOutputDependsOnWhereBlocksWere) {
  const char* full = std::getenv("SLUICE_TEST_FULL");
  uint64_t num = full && *full == '1' ? 300 : 30;
  Tally tally;
  for (uint64_t seed = 1; seed <= num; ++seed) {
    check_workload(subjects()[seed % subjects().size()], seed, &tally, move_much);
    if (HasFailure()) return;
  }
  EXPECT_GT(tally.restored, num / 8) << "few sequences come back from host memory";
  EXPECT_GT(tally.tier_hits, 10 * num) << "few prefixes come from host memory";
}

}  // namespace
}  // namespace sluice
