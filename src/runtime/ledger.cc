#include "runtime/ledger.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

#include "backend/cpu/matmul.h"
#include "base/str.h"
#include "exec/cache_groups.h"
#include "exec/kv_cache.h"
#include "runtime/fit.h"

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

// Activations of a step and logits, as the models carve them: f32 streams, and what matmuls read in
// the forms that the layers' formats ask for.
size_t workspace_bytes(const Checkpoint& checkpoint,
                       const LoadQuant& quant,
                       const ModelShape& shape,
                       size_t step,
                       size_t outputs) {
  uint8_t needs = 0;
  for (const TensorInfo& t : checkpoint.tensors()) {
    if (t.rows <= 1 || !t.name.starts_with("blk.")) continue;
    needs |= choose_matmul(t, quant.of(t)).act_needs;
  }
  auto act = [&](size_t cols) {
    return (needs & kActF32 ? cols * 4 : 0) + (needs & kActQ8 ? cols + cols / 4 : 0) +
           (needs & kActRow8 ? cols : 0);
  };
  auto hidden = static_cast<size_t>(shape.hidden), ffn = static_cast<size_t>(shape.ffn);
  auto head = static_cast<size_t>(shape.head_dim);
  size_t q = static_cast<size_t>(shape.num_heads) * head;
  size_t kv = static_cast<size_t>(shape.num_kv_heads) * head;
  size_t row = hidden * 8 + act(hidden) + (q + 2 * kv) * 4 + act(q) + ffn * 8 + act(ffn) + head * 4;
  return step * row + outputs * (static_cast<size_t>(shape.vocab) * 4 + act(hidden));
}

// The program, its threads, what a server records (6 MB) and tables of text. Measured, not derived:
// scripts/measure_memory.py holds it to the truth.
size_t program_bytes(const Checkpoint& checkpoint) {
  size_t bytes = 18'500'000;
  const Meta& meta = checkpoint.meta();
  size_t strings = 0, text = 0;
  for (const char* key : {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"}) {
    const std::vector<std::string>* list = meta.strings(key);
    strings += list ? list->size() : 0;
  }
  if (const std::string* json = meta.string("tokenizer.huggingface.json")) text = json->size();
  return bytes + strings * 180 + text * 6;
}

}  // namespace

Result<KvType> kv_type_of(const EngineOptions& options, int head_dim, const DeviceMemory* device) {
  const DType own = device ? device->activations : DType::f16;
  if (!options.kv_type) return KvType(own);
  const KvType kv = *options.kv_type;
  const char* name = name_of(kKvTypes, options.kv_type);
  const bool works = device
                         ? kv.type == own || (kv.type == DType::f8 && own != DType::f32)
                         : kv.type == DType::f16 || kv.type == DType::f32 || kv.type == DType::i8;
  if (!works)
    return Error{400, device ? strf("--kv %s: on a GPU the cache has the type of the activations "
                                    "(--dtype) or f8",
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

namespace {

// Weights as a GPU holds them: every matrix in one type, those of layers perhaps in f8.
size_t device_weights(const Checkpoint& checkpoint, DType type, bool fp8) {
  size_t bytes = 0;
  for (const TensorInfo& t : checkpoint.tensors()) {
    size_t elems = static_cast<size_t>(t.rows) * static_cast<size_t>(t.cols);
    bool narrow = fp8 && t.name.starts_with("blk.") && t.rows % 16 == 0 && t.cols % 16 == 0;
    bytes += elems * (t.rows == 1 ? 4 : narrow ? 1 : dtype_bytes(type));
  }
  return bytes;
}

// Activations in one type, a residual stream in f32, logits, and counts of tokens for penalties.
size_t device_workspace(const ModelShape& shape,
                        DType type,
                        size_t step,
                        const SchedulerConfig& c) {
  auto hidden = static_cast<size_t>(shape.hidden), ffn = static_cast<size_t>(shape.ffn);
  auto head = static_cast<size_t>(shape.head_dim), vocab = static_cast<size_t>(shape.vocab);
  size_t q = static_cast<size_t>(shape.num_heads) * head;
  size_t kv = static_cast<size_t>(shape.num_kv_heads) * head;
  size_t out = type == DType::f16 ? 4 : dtype_bytes(type);  // Backend::output_type()
  size_t q_apart = out != dtype_bytes(type) ? q : 0;
  size_t row = hidden * 4 + dtype_bytes(type) * (hidden + q + q_apart + ffn) +
               out * (hidden + q + 2 * kv + 2 * ffn) + head * 4;
  auto seqs = static_cast<size_t>(c.max_seqs);
  return step * (row + 1100) + seqs * vocab * 6 + (size_t{64} << 20);
}

}  // namespace

Result<LoadQuant> cpu_weight_quant(const EngineOptions& options, const Checkpoint& checkpoint) {
  const Quantize kind = options.quantize == Quantize::fp8 ? Quantize::none : options.quantize;
  return load_quant(name_of(kQuantizes, kind), options.quantize_exclude, checkpoint.tensors());
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

// Tokens of the largest step, for a context of `ctx` positions.
size_t step_tokens(const SchedulerConfig& c, int ctx) {
  return static_cast<size_t>(c.prefill == Prefill::whole ? std::max(c.budget, ctx) : c.budget);
}

// Weights, workspace and program on the CPU, and what is free there.
void plan_host(const Checkpoint& checkpoint,
               const ModelShape& shape,
               const SchedulerConfig& c,
               const LoadQuant& quant,
               Ledger& ledger) {
  for (const TensorInfo& t : checkpoint.tensors()) ledger.weights += packed_bytes(t, quant);
  ledger.workspace = workspace_bytes(checkpoint, quant, shape, step_tokens(c, ledger.ctx),
                                     static_cast<size_t>(output_rows(c.max_seqs)));
  ledger.program = program_bytes(checkpoint);
  ledger.available = available_memory();
}

// The same on a GPU: estimates before the model exists, exact after.
void plan_device(const Checkpoint& checkpoint,
                 const ModelShape& shape,
                 const EngineOptions& options,
                 const DeviceMemory& device,
                 Ledger& ledger) {
  const SchedulerConfig& c = options.scheduler;
  const bool fp8 = options.quantize == Quantize::fp8;
  ledger.weights =
      device.weights > 0 ? device.weights : device_weights(checkpoint, device.activations, fp8);
  ledger.workspace = device.workspace > 0 ? device.workspace
                                          : device_workspace(shape, device.activations,
                                                             step_tokens(c, ledger.ctx), c);
  ledger.program = size_t{600} << 20;  // context, libraries, captured graphs
  ledger.available = device.available;
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
void plan_pool(EngineOptions& options, size_t block, bool on_gpu, MemoryEstimate& estimate) {
  SchedulerConfig& c = options.scheduler;
  Ledger& ledger = estimate.ledger;
  const size_t fixed = ledger.weights + ledger.workspace + ledger.program;
  const size_t left = ledger.available > fixed ? ledger.available - fixed : 0;
  const size_t blocks = pool_blocks(options, ledger.ctx, block, on_gpu ? left : left / 2);
  const size_t least = 2 * c.group_windows.size();
  ledger.kv = blocks * block;
  if (fixed + ledger.kv > ledger.available || blocks < least) {
    ledger.kv = std::max(blocks, least) * block;
    estimate.shortage =
        strf("not enough memory: weights %s + workspace %s + KV cache %s, and %s is free; %s",
             human_bytes(ledger.weights).c_str(), human_bytes(ledger.workspace).c_str(),
             human_bytes(ledger.kv).c_str(), human_bytes(ledger.available).c_str(),
             options.kv_bytes ? "change --kv-memory" : "use a smaller model or format");
    return;
  }
  const int fits = longest_that_fits(blocks, ledger.ctx, c);
  if (fits < ledger.ctx && options.ctx) {
    ledger.kv = prompt_blocks(ledger.ctx, c) * block;
    estimate.shortage = strf(
        "--ctx %d needs %s of KV cache and %s is set aside for it (%s free): lower --ctx%s",
        ledger.ctx, human_bytes(ledger.kv).c_str(), human_bytes(blocks * block).c_str(),
        human_bytes(ledger.available).c_str(), options.kv_bytes ? " or raise --kv-memory" : "");
    return;
  }
  ledger.ctx = std::min(fits, ledger.ctx);
  c.num_blocks = ledger.num_blocks = static_cast<int>(blocks);
  c.max_len = ledger.ctx;
  ledger.full_sequences =
      static_cast<int>(1 + (blocks - prompt_blocks(ledger.ctx, c)) / later_blocks(ledger.ctx, c));
}

}  // namespace

Result<MemoryEstimate> estimate_memory(const Checkpoint& checkpoint,
                                       const ModelShape& shape,
                                       EngineOptions& options,
                                       const DeviceMemory* device) {
  LoadQuant quant;
  if (!device) {
    Result<LoadQuant> resolved = cpu_weight_quant(options, checkpoint);
    if (!resolved) return resolved.error();
    quant = std::move(*resolved);
  }
  Result<KvType> kv = kv_type_of(options, shape.head_dim, device);
  if (!kv) return kv.error();
  if (auto ok = check_sizes(options, shape); !ok) return ok.error();

  SchedulerConfig& c = options.scheduler;
  const CacheGroups groups = cache_groups(shape);
  c.max_seqs = std::min(c.max_seqs, c.budget);
  c.group_windows = groups.windows;
  const size_t block = KvCache::bytes_per_block(shape, groups, *kv, c.block_size);
  const auto num_full = static_cast<size_t>(std::ranges::count(groups.windows, 0));
  MemoryEstimate estimate;
  Ledger& ledger = estimate.ledger;
  ledger.ctx = options.ctx.value_or(shape.max_len);
  ledger.kv_per_token = shape.kv_bytes_per_token(*kv);
  ledger.kv_per_long_token = num_full * block / static_cast<size_t>(c.block_size);
  ledger.window = std::ranges::max(groups.windows);
  if (device) {
    plan_device(checkpoint, shape, options, *device, ledger);
  } else {
    plan_host(checkpoint, shape, c, quant, ledger);
  }
  plan_pool(options, block, device != nullptr, estimate);
  return estimate;
}

}  // namespace sluice
