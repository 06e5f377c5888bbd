#include "runtime/ledger.h"

#include <link.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda_plugin.h"
#include "base/str.h"
#include "exec/block_file.h"
#include "exec/disk_tier.h"
#include "exec/cache_groups.h"
#include "exec/device_executor.h"
#include "exec/kv_cache.h"
#include "exec/layer_stream.h"
#include "exec/model_executor.h"
#include "exec/split_executor.h"
#include "exec/swap_rates.h"
#include "runtime/fit.h"
#include "runtime/placement.h"
#include "runtime/stream_plan.h"

namespace sluice {

size_t available_memory() {
  size_t available = SIZE_MAX;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    unsigned long long kb = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %llu kB", &kb) == 1) available = kb * 1024;
  }
  // Control group v2: what is left under the limit; file pages it can drop are not counted as used.
  std::ifstream max_file("/sys/fs/cgroup/memory.max"), now_file("/sys/fs/cgroup/memory.current");
  std::ifstream stat("/sys/fs/cgroup/memory.stat");
  unsigned long long max = 0, now = 0, droppable = 0;
  for (std::string line; std::getline(stat, line);) {
    unsigned long long bytes = 0;
    if (std::sscanf(line.c_str(), "inactive_file %llu", &bytes) == 1) droppable = bytes;
  }
  if (max_file >> max && now_file >> now) {
    now -= std::min(now, droppable);
    available = std::min<size_t>(available, max > now ? max - now : 0);
  }
  return available;
}

namespace {

// The longest sequence of at most `ctx` positions that so many blocks hold.
int longest_that_fits(size_t blocks, int ctx, const SchedulerConfig& c) {
  int fits = 0;
  for (int rest = ctx; rest > 0;) {
    int half = (rest + 1) / 2;  // of what lies above `fits`
    if (static_cast<size_t>(Scheduler::most_blocks(fits + half, c)) <= blocks) {
      fits += half;
      rest -= half;
    } else {
      rest = half - 1;
    }
  }
  return fits;
}

// Code and data of the program and its libraries, as the loader maps them.
size_t mapped_bytes() {
  size_t bytes = 0;
  const auto add = [](dl_phdr_info* object, size_t, void* sum) {
    for (int i = 0; i < object->dlpi_phnum; ++i)
      if (object->dlpi_phdr[i].p_type == PT_LOAD)
        *static_cast<size_t*>(sum) += object->dlpi_phdr[i].p_memsz;
    return 0;
  };
  dl_iterate_phdr(add, &bytes);
  return bytes;
}

// The program and tables of text; scripts/measure_memory.py compares it with what a server takes.
size_t program_bytes(const Checkpoint& checkpoint) {
  const Meta& meta = checkpoint.meta();
  size_t strings = 0, text = 0;
  for (const char* key : {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"}) {
    const std::vector<std::string>* list = meta.strings(key);
    strings += list ? list->size() : 0;
  }
  if (const std::string* json = meta.string("tokenizer.huggingface.json")) text = json->size();
  return mapped_bytes() + strings * 180 + text * 6;
}

}  // namespace

Result<KvType> kv_type_of(const EngineOptions& options, int head_dim, const DeviceMemory* device) {
  const DType own = device ? device->activations : DType::f16;
  if (!options.kv_type) return KvType(own);
  const KvType kv = *options.kv_type;
  const char* name = name_of(kKvTypes, options.kv_type);
  const bool bytes = kv.type == DType::i8 || (device && kv.type == DType::f8);
  const bool works = device ? kv.type == own || (bytes && own != DType::f32)
                            : kv.type == DType::f16 || kv.type == DType::f32 || bytes;
  if (!works)
    return Error{400, device ? strf("--kv %s: on a GPU the cache has the type of the activations "
                                    "(--dtype), or with f16 and bf16 f8 or int8",
                                    name)
                             : strf("--kv %s: use f16, f32 or int8 on the CPU", name)};
  if (kv.group > 0 && head_dim % kv.group != 0)
    return Error{400, strf("--kv %s: heads of %d dimensions are not whole groups of %d; use %s",
                           name, head_dim, kv.group,
                           head_dim % 32 == 0  ? "int8:32"
                           : head_dim % 8 == 0 ? "int8:8"
                                               : "f16")};
  return kv;
}

KvType host_kv_type(KvType gpu) {
  return gpu.type == DType::f32 || gpu.type == DType::i8 ? gpu : KvType(DType::f16);
}

Result<Ledger> plan_memory(const Checkpoint& checkpoint,
                           const ModelShape& shape,
                           EngineOptions& options,
                           const DeviceMemory* device) {
  Result<MemoryEstimate> e = estimate_memory(checkpoint, shape, options, device);
  if (!e) return e.error();
  if (!e->shortage.empty()) return Error{507, e->shortage};
  return e->ledger;
}

ExecutorConfig executor_config(const Scheduler& scheduler, const ModelShape& shape, KvType kv) {
  const SchedulerConfig& c = scheduler.config();
  ExecutorConfig e;
  e.num_blocks = c.num_blocks;
  e.block_size = c.block_size;
  e.max_seqs = c.max_seqs;
  e.max_len = c.max_len;
  e.max_step_tokens = scheduler.max_step_tokens();
  e.logits_rows = std::clamp(e.max_seqs, 16, 64);  // a step's sequences, and some to score prompts
  e.pipeline = c.pipeline;
  e.kv_type = kv;
  e.num_places = c.tiers.memory();
  e.num_disk = c.tiers.disk;
  if (c.mapped()) e.num_pages = c.num_pages(), e.slot_blocks = c.pages.slot_blocks;
  e.groups = cache_groups(shape);
  return e;
}

namespace {

Result<void> check_sizes(const EngineOptions& options, const ModelShape& shape) {
  const SchedulerConfig& c = options.scheduler;
  const int size = c.block_size;
  if (size < 8 || size > 128 || (size & (size - 1)) != 0)
    return Error{400, strf("--block-size %d: use a power of two from 8 to 128", size)};
  if (options.ctx && *options.ctx > shape.max_len)
    return Error{
        400, strf("--ctx %d: the model was trained for %d positions", *options.ctx, shape.max_len)};
  if (c.budget < 1 || c.max_seqs < 1)
    return Error{400, "--budget and --max-seqs must be at least 1"};
  return {};
}

// The model by its headers: it knows what it will allocate on this device.
struct MeasuredModel {
  std::unique_ptr<Model> model;
  size_t scratch = 0;  // of its products
};
Result<MeasuredModel> measure_model(const Checkpoint& checkpoint,
                                    const EngineOptions& options,
                                    const DeviceMemory* device,
                                    LayerRange layers) {
  LoadOptions load;
  load.fuse = options.fuse;
  load.layers = layers;
  Result<LoadQuant> quant = weight_quant(options, checkpoint);
  if (!quant) return quant.error();
  std::unique_ptr<WeightStore> sizes;
  if (device) {
    sizes = cuda_weight_sizes({device->activations, options.quantize == Quantize::fp8,
                               options.gpu_weights == GpuWeights::stored, options.deterministic,
                               std::move(*quant)});
  } else {
    sizes = cpu_weight_sizes(std::move(*quant));
  }
  Result<std::unique_ptr<Model>> model =
      load_model(ModelSource::headers_of(checkpoint), *sizes, load);
  if (!model) return model.error();
  return MeasuredModel{std::move(*model), sizes->scratch_bytes()};
}

// What attention by spans keeps on a GPU: a state for each span of as many rows as there are blocks
// at a time, and those of common prefixes.
size_t span_bytes(const ModelShape& shape, int max_positions, int blocks) {
  const bool many_heads = shape.num_heads > 8 * shape.num_kv_heads;
  const auto floats = static_cast<size_t>((many_heads ? 16 : 8) * (shape.head_dim + 4));
  const auto states = static_cast<size_t>(blocks * num_spans(max_positions));
  return states * floats * sizeof(float) + (size_t{32} << 20);
}

// Memory that does not depend on the pool's size: weights, workspace, program.
void set_fixed(Ledger& ledger,
               const Checkpoint& checkpoint,
               const MeasuredModel& measured,
               const ExecutorConfig& e,
               const DeviceMemory* device,
               size_t front_end) {
  const Model& model = *measured.model;
  if (!device) {
    ledger.weights = model.weight_bytes();
    ledger.workspace = ModelExecutor::workspace_bytes(model, e);
    ledger.program = program_bytes(checkpoint) + front_end;
    ledger.available = available_memory();
    return;
  }
  // Attention's memory, sampling's counts and a lane's scratch, where no device is open to ask: a
  // row of logits for each block that samples alone, one per multiprocessor at most.
  constexpr int kMostBlocks = 192;
  const auto vocab = static_cast<size_t>(model.shape().vocab);
  const auto alone = static_cast<size_t>(std::min(e.max_seqs, kMostBlocks)) * vocab * sizeof(float);
  const size_t own =
      static_cast<size_t>(e.max_seqs) * vocab * sizeof(uint16_t) + (size_t{64} << 20) +
      static_cast<size_t>(e.pipeline.lanes) *
          (measured.scratch + alone + span_bytes(model.shape(), e.max_len, kMostBlocks));
  ledger.weights = device->weights > 0 ? device->weights : model.weight_bytes();
  ledger.workspace =
      device->workspace > 0 ? device->workspace : DeviceExecutor::workspace_bytes(model, e) + own;
  ledger.program = size_t{600} << 20;  // context, libraries, captured graphs
  ledger.available = device->available;
}

// The layers of a model that the CPU runs beside a GPU, and what a block of their K and V takes.
struct HostPart {
  HostLedger ledger;
  size_t block = 0;
};
Result<HostPart> measure_host(const Checkpoint& checkpoint,
                              const EngineOptions& options,
                              ExecutorConfig e,
                              int layers,
                              const DeviceMemory& device) {
  HostPart host;
  const LayerRange range{0, layers};
  Result<MeasuredModel> part = measure_model(checkpoint, options, nullptr, range);
  if (!part) return part.error();
  const ModelShape& shape = part->model->shape();
  host.ledger.layers = layers;
  host.ledger.weights = part->model->weight_bytes();
  host.ledger.workspace = SplitExecutor::workspace_bytes(*part->model, e);
  host.ledger.program = program_bytes(checkpoint) + options.front_end_bytes;
  host.ledger.available = device.host_available > 0 ? device.host_available : available_memory();
  host.block = KvCache::bytes_per_block(shape, part_of(cache_groups(shape), range),
                                        host_kv_type(e.kv_type), e.block_size);
  return host;
}

// Adds the memory of prompts through the GPU. False: the CPU's does not suffice for it.
Result<bool> add_stream(const Checkpoint& checkpoint,
                        const EngineOptions& options,
                        const ExecutorConfig& e,
                        const DeviceMemory& device,
                        const Model& gpu_part,
                        HostPart& host,
                        Ledger& ledger) {
  HostLedger& h = host.ledger;
  const ModelShape& shape = gpu_part.shape();
  Result<size_t> slot = stream_slot_bytes(checkpoint, options, device.activations, h.layers);
  if (!slot) return slot.error();
  const LayerStream::Sizes sizes =
      LayerStream::sizes_for(e, part_of(cache_groups(shape), {0, h.layers}), h.layers, *slot);
  h.streamed = LayerStream::pinned_bytes(shape, sizes);
  // With a tenth of it left for K and V, at least.
  if (h.total() > h.available / 10 * 9) return false;
  if (device.workspace > 0) return true;  // it is in there
  Result<MeasuredModel> part = measure_model(checkpoint, options, &device, {0, h.layers, false});
  if (!part) return part.error();
  ledger.workspace +=
      LayerStream::device_bytes(*part->model, sizes, DeviceExecutor::activation_bytes(gpu_part, e));
  return true;
}

// Bounds a pool of `blocks` by the CPU's memory, of which it may have half of what is left. A size
// that was asked for stays.
size_t bound_by_host(const EngineOptions& options,
                     HostPart& host,
                     size_t blocks,
                     MemoryEstimate& estimate) {
  HostLedger& h = host.ledger;
  if (h.layers == 0) return blocks;
  const size_t fixed = h.total() + host.block;
  const size_t left = h.available > fixed ? h.available - fixed : 0;
  if (!options.kv_bytes && !options.kv_blocks) blocks = std::min(blocks, left / 2 / host.block);
  h.kv = (blocks + 1) * host.block;
  estimate.ledger.host = h;
  if (h.total() > h.available || left == 0)
    estimate.shortage = strf(
        "not enough memory on the CPU: weights of %d layers %s + workspace %s + KV cache %s + "
        "program %s, and %s is free; use a smaller model or format%s",
        h.layers, human_bytes(h.weights).c_str(), human_bytes(h.workspace + h.streamed).c_str(),
        human_bytes(h.kv).c_str(), human_bytes(h.program).c_str(), human_bytes(h.available).c_str(),
        options.kv_bytes ? ", or lower --kv-memory" : "");
  return blocks;
}

// Blocks that a sequence of `len` positions holds at most, in its prompt and past it.
size_t prompt_blocks(int len, const SchedulerConfig& c) {
  return static_cast<size_t>(Scheduler::most_blocks(len, c));
}
size_t later_blocks(int len, const SchedulerConfig& c) {
  return static_cast<size_t>(Scheduler::decode_blocks(len, c));
}

// Blocks that the options ask for, or else as many as are useful: one sequence in its prompt, the
// others past it. `share` bytes may go to the pool.
size_t pool_blocks(const EngineOptions& options, int ctx, size_t block_bytes, size_t share) {
  const SchedulerConfig& c = options.scheduler;
  const auto others = static_cast<size_t>(c.max_seqs - 1);
  size_t blocks =
      std::min(prompt_blocks(ctx, c) + others * later_blocks(ctx, c), share / block_bytes);
  if (options.kv_bytes) blocks = *options.kv_bytes / block_bytes;
  if (options.kv_blocks) blocks = static_cast<size_t>(*options.kv_blocks);
  return std::min<size_t>(blocks, INT32_MAX / 2);
}

// Sizes the KV pool in what the rest leaves free; shortens a context that nobody asked for.
// `pool`: bytes of a pool of so many blocks.
template <typename Pool>
void plan_pool(EngineOptions& options,
               size_t block,
               const Pool& pool,
               bool on_gpu,
               HostPart& host,
               MemoryEstimate& estimate) {
  SchedulerConfig& c = options.scheduler;
  Ledger& ledger = estimate.ledger;
  const size_t fixed = ledger.weights + ledger.workspace + ledger.program + pool(0);
  const size_t left = ledger.available > fixed ? ledger.available - fixed : 0;
  const size_t blocks = bound_by_host(
      options, host, pool_blocks(options, ledger.ctx, block, on_gpu ? left : left / 2), estimate);
  if (!estimate.shortage.empty()) return;
  const size_t least = 2 * c.group_windows.size();
  ledger.kv = pool(blocks);
  if (fixed + blocks * block > ledger.available || blocks < least) {
    ledger.kv = pool(std::max(blocks, least));
    estimate.shortage =
        strf("not enough memory: weights %s + workspace %s + KV cache %s, and %s is free; %s",
             human_bytes(ledger.weights).c_str(), human_bytes(ledger.workspace).c_str(),
             human_bytes(ledger.kv).c_str(), human_bytes(ledger.available).c_str(),
             options.kv_bytes ? "change --kv-memory" : "use a smaller model or format");
    return;
  }
  const int fits = longest_that_fits(blocks, ledger.ctx, c);
  if (fits < ledger.ctx && options.ctx) {
    const size_t needed = prompt_blocks(ledger.ctx, c);
    ledger.kv = pool(needed);
    // As --kv-memory counts: without the null block.
    estimate.shortage = strf(
        "--ctx %d needs %s of KV cache and %s is set aside for it (%s free): lower --ctx%s",
        ledger.ctx, human_bytes(needed * block).c_str(), human_bytes(blocks * block).c_str(),
        human_bytes(ledger.available).c_str(), options.kv_bytes ? " or raise --kv-memory" : "");
    return;
  }
  ledger.ctx = std::min(fits, ledger.ctx);
  c.num_blocks = ledger.num_blocks = static_cast<int>(blocks);
  c.max_len = ledger.ctx;
  ledger.full_sequences =
      static_cast<int>(1 + (blocks - prompt_blocks(ledger.ctx, c)) / later_blocks(ledger.ctx, c));
}

// Memory that the scheduler keeps for each place on disk: its tokens, key and lists.
size_t disk_index_bytes(int block_size) {
  return 72 + static_cast<size_t>(block_size) * sizeof(Token);
}

// Places for blocks in host memory, by what the options give them.
Result<void> plan_tiers(EngineOptions& options,
                        size_t block,
                        bool on_gpu,
                        MemoryEstimate& estimate) {
  TierSizes& tiers = options.scheduler.tiers;
  tiers = {};
  tiers.block_bytes = block;
  Ledger& ledger = estimate.ledger;
  const auto places = [&](uint64_t bytes, const char* flag, int& num) -> Result<void> {
    if (bytes > 0 && bytes < block)
      return Error{400, strf("%s: a KV block takes %s, give room for many", flag,
                             human_bytes(block).c_str())};
    num = static_cast<int>(std::min<uint64_t>(bytes / block, INT32_MAX / 4));
    ledger.tiers += static_cast<size_t>(num) * block;
    return {};
  };
  const size_t taken = on_gpu ? 0 : estimate.total();
  const size_t host = on_gpu ? available_memory() : ledger.available;
  if (options.scheduler.preempt == Preempt::swap) {
    const uint64_t left = host > taken ? host - taken : 0;
    const uint64_t half =
        std::min<uint64_t>(static_cast<uint64_t>(ledger.num_blocks) * block, left);
    const uint64_t bytes = options.swap_bytes.value_or(half / 2 / block * block);
    if (auto ok = places(bytes, "--swap-memory", tiers.swap); !ok) return ok;
  }
  if (auto ok = places(options.prefix_host_bytes, "--prefix-host", tiers.host); !ok) return ok;
  if (options.prefix_disk_bytes > 0) {
    const size_t place = BlockFile::place_bytes(options.scheduler.block_size, block);
    if (options.prefix_disk_bytes < place)
      return Error{400, strf("--prefix-disk: a KV block takes %s on disk, give room for many",
                             human_bytes(place).c_str())};
    tiers.disk =
        static_cast<int>(std::min<uint64_t>(options.prefix_disk_bytes / place, INT32_MAX / 4));
    ledger.tiers +=
        DiskTier::staging_bytes(block) +
        static_cast<size_t>(tiers.disk) * disk_index_bytes(options.scheduler.block_size);
  }
  if (ledger.tiers > 0 && ledger.tiers + taken > host && estimate.shortage.empty())
    estimate.shortage = strf(
        "not enough memory: %s of host memory for KV blocks beside %s, and %s "
        "is free; lower --swap-memory or --prefix-host%s",
        human_bytes(ledger.tiers).c_str(), human_bytes(taken).c_str(), human_bytes(host).c_str(),
        tiers.disk > 0 ? " or --prefix-disk" : "");
  return {};
}

Result<MemoryEstimate> estimate_fixed(const Checkpoint& checkpoint,
                                      const ModelShape& shape,
                                      EngineOptions& options,
                                      const DeviceMemory* device);

// The same without prompts through the GPU, for which memory does not suffice.
Result<MemoryEstimate> estimate_unstreamed(const Checkpoint& checkpoint,
                                           const ModelShape& shape,
                                           EngineOptions& options,
                                           const DeviceMemory* device) {
  options.stream_prompts = false;
  resolve_step_sizes(options, &shape);
  return estimate_fixed(checkpoint, shape, options, device);
}

// With the layers on a GPU that the options say.
Result<MemoryEstimate> estimate_fixed(const Checkpoint& checkpoint,
                                      const ModelShape& shape,
                                      EngineOptions& options,
                                      const DeviceMemory* device) {
  const int host_layers = device ? num_host_layers(options, shape) : 0;
  if (host_layers > 0) {
    if (auto ok = choose_split(options); !ok) return ok.error();
  }
  Result<KvType> kv = kv_type_of(options, shape.head_dim, device);
  if (!kv) return kv.error();
  const LayerRange layers{host_layers, shape.num_layers};
  Result<MeasuredModel> measured = measure_model(checkpoint, options, device, layers);
  if (!measured) return measured.error();

  SchedulerConfig& c = options.scheduler;
  const CacheGroups groups = part_of(cache_groups(shape), layers);
  MemoryEstimate estimate;
  Ledger& ledger = estimate.ledger;
  ledger.ctx = options.ctx.value_or(shape.max_len);
  c.group_windows = groups.windows;
  if (c.mapped()) {
    c.pages = {};
    c.pages.block_bytes = static_cast<int64_t>(shape.num_kv_heads) *
                          static_cast<int64_t>(kv->head_bytes(shape.head_dim, c.block_size));
    c.pages.page_bytes = static_cast<int64_t>(device ? kDevicePage : host_page_bytes());
  }
  SchedulerConfig smallest = c;
  smallest.max_len = ledger.ctx;
  smallest.num_blocks = static_cast<int>(2 * groups.windows.size());
  smallest.tiers = {};  // of an earlier estimate
  const Scheduler scheduler(smallest, nullptr);
  c.max_seqs = scheduler.config().max_seqs;

  const ExecutorConfig e = executor_config(scheduler, shape, *kv);
  set_fixed(ledger, checkpoint, *measured, e, device, options.front_end_bytes);
  HostPart host;
  if (host_layers > 0) {
    Result<HostPart> part = measure_host(checkpoint, options, e, host_layers, *device);
    if (!part) return part.error();
    host = std::move(*part);
  }
  if (host_layers > 0 && streams_prompts(options)) {
    const Result<bool> streams =
        add_stream(checkpoint, options, e, *device, *measured->model, host, ledger);
    if (!streams) return streams.error();
    if (!*streams) return estimate_unstreamed(checkpoint, shape, options, device);
  }
  const size_t block = KvCache::bytes_per_block(shape, groups, *kv, c.block_size);
  const auto pool = [&](size_t blocks) {
    return KvCache::bytes(shape, groups, {*kv, static_cast<int>(blocks), c.block_size});
  };
  const auto num_full = static_cast<size_t>(std::ranges::count(groups.windows, 0));
  const auto per_layer = [&](KvType type) {
    return shape.kv_bytes_per_token(type) / static_cast<size_t>(shape.num_layers);
  };
  ledger.kv_per_token = static_cast<size_t>(shape.num_layers - host_layers) * per_layer(*kv) +
                        static_cast<size_t>(host_layers) * per_layer(host_kv_type(*kv));
  ledger.kv_per_long_token = num_full * (block + host.block) / static_cast<size_t>(c.block_size);
  ledger.window = std::ranges::max(groups.windows);
  plan_pool(options, block, pool, device != nullptr, host, estimate);
  const HostLedger& h = ledger.host;
  if (h.streamed > 0 && (!estimate.shortage.empty() || h.total() >= h.available))
    return estimate_unstreamed(checkpoint, shape, options, device);
  if (auto ok = plan_tiers(options, block, device != nullptr, estimate); !ok) return ok.error();
  const SwapRates rates = device ? kGpuSwapRates : cpu_swap_rates(num_threads(options));
  c.swap_cost = swap_cost(shape, block, measured->model->step_bytes(), rates);
  return estimate;
}

// Whether the pool holds enough sequences to be worth having; one that was asked for does.
bool is_useful(const EngineOptions& o, const MemoryEstimate& e) {
  constexpr int kSequences = 8, kPositions = 1024;
  if (!e.shortage.empty()) return false;
  if (o.kv_bytes || o.kv_blocks) return true;
  const SchedulerConfig& c = o.scheduler;
  const auto others = static_cast<size_t>(c.max_seqs - 1);
  const size_t most = prompt_blocks(c.max_len, c) + others * later_blocks(c.max_len, c);
  const size_t some = kSequences * prompt_blocks(std::min(kPositions, c.max_len), c);
  return static_cast<size_t>(e.ledger.num_blocks) >= std::min(most, some);
}

// The largest number of layers, less than all, that fit the GPU whatever the CPU's memory, with
// prompts through the GPU if the options say so; 0: none.
template <typename With>
Result<int> most_layers(const Checkpoint& checkpoint,
                        const ModelShape& shape,
                        const DeviceMemory& device,
                        const With& with) {
  DeviceMemory gpu_alone = device;
  gpu_alone.host_available = SIZE_MAX;
  int fits = 0, too_many = shape.num_layers;
  while (too_many - fits > 1) {
    const int tried = (fits + too_many) / 2;
    EngineOptions o = with(tried);
    const bool streams = o.stream_prompts;
    const Result<MemoryEstimate> e = estimate_fixed(checkpoint, shape, o, &gpu_alone);
    if (!e) return e.error();
    (is_useful(o, *e) && o.stream_prompts == streams ? fits : too_many) = tried;
  }
  return fits;
}

// With as many layers on the GPU as fit it beside a useful pool; then options.gpu_layers has their
// number, or is absent where all do.
Result<MemoryEstimate> estimate_auto(const Checkpoint& checkpoint,
                                     const ModelShape& shape,
                                     EngineOptions& options,
                                     const DeviceMemory& device) {
  const auto with = [&](int num) {
    EngineOptions o = options;
    o.gpu_layers = num < shape.num_layers ? std::optional(GpuLayers{num}) : std::nullopt;
    resolve_step_sizes(o, &shape);
    return o;
  };
  EngineOptions all = with(shape.num_layers);
  Result<MemoryEstimate> whole = estimate_fixed(checkpoint, shape, all, &device);
  if (!whole) return whole.error();
  if (is_useful(all, *whole)) {
    options = std::move(all);
    return whole;
  }
  Result<int> fits = most_layers(checkpoint, shape, device, with);
  if (!fits) return fits.error();
  EngineOptions chosen = with(std::max(*fits, 1));
  Result<MemoryEstimate> e = estimate_fixed(checkpoint, shape, chosen, &device);
  if (!e) return e.error();
  if (chosen.stream_prompts != options.stream_prompts) {  // what it takes of the GPU is free
    options.stream_prompts = false;
    return estimate_auto(checkpoint, shape, options, device);
  }
  if (*fits == 0 && !e->shortage.empty())
    e->shortage = "not one layer fits the GPU, use --device cpu: " + e->shortage;
  options = std::move(chosen);
  return e;
}

}  // namespace

Result<MemoryEstimate> estimate_memory(const Checkpoint& checkpoint,
                                       const ModelShape& shape,
                                       EngineOptions& options,
                                       const DeviceMemory* device) {
  if (auto ok = check_sizes(options, shape); !ok) return ok.error();
  if (device && options.gpu_layers && !options.gpu_layers->num)
    return estimate_auto(checkpoint, shape, options, *device);
  return estimate_fixed(checkpoint, shape, options, device);
}

}  // namespace sluice
