#include "runtime/ledger.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

#include "base/str.h"
#include "exec/kv_cache.h"

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

// Fixes context and pool from what is free, or says why it cannot.
Result<Ledger> plan_memory(const Checkpoint& checkpoint,
                           const ModelShape& shape,
                           EngineOptions& options) {
  Ledger ledger;
  size_t weights = 0;
  for (const TensorInfo& t : checkpoint.tensors()) weights += t.bytes;
  SchedulerConfig& c = options.scheduler;
  DType kv = options.kv_type == "f32" ? DType::f32 : DType::f16;
  if (options.kv_type != "f16" && options.kv_type != "f32") {
    return Error{400, strf("--kv %s: use f16 or f32", quote(options.kv_type).c_str())};
  }
  int bs = c.block_size;
  if (bs < 8 || bs > 128 || (bs & (bs - 1)) != 0) {
    return Error{400, strf("--block-size %d: use a power of two from 8 to 128", bs)};
  }
  if (options.ctx > shape.max_len) {
    return Error{
        400, strf("--ctx %d: the model was trained for %d positions", options.ctx, shape.max_len)};
  }
  if (c.budget < 1 || c.max_seqs < 1)
    return Error{400, "--budget and --max-seqs must be at least 1"};
  c.max_seqs = std::min(c.max_seqs, c.budget);

  ledger.weights = weights;
  ledger.kv_per_token = shape.kv_bytes_per_token(kv);
  size_t block = KvCache::bytes_per_block(shape, kv, bs);
  int ctx = options.ctx > 0 ? options.ctx : shape.max_len;
  // Activations and logits: an upper bound before the model exists, exact after.
  size_t step =
      static_cast<size_t>(c.prefill == Prefill::whole ? std::max(c.budget, ctx) : c.budget);
  size_t row = (static_cast<size_t>(shape.hidden) * 5 +
                static_cast<size_t>(shape.num_heads) * static_cast<size_t>(shape.head_dim) * 4) *
                   4 +
               static_cast<size_t>(shape.ffn) * 14;
  ledger.workspace = step * row + 64 * static_cast<size_t>(shape.vocab) * 4;
  ledger.available = available_memory();
  size_t fixed = weights + ledger.workspace;
  size_t room = ledger.available > fixed ? ledger.available - fixed : 0;

  size_t wanted = static_cast<size_t>(c.max_seqs) * static_cast<size_t>((ctx + bs - 1) / bs);
  size_t blocks =
      options.kv_bytes > 0 ? options.kv_bytes / block : std::min(wanted, room / 2 / block);
  blocks = std::min<size_t>(blocks, INT32_MAX / 2);
  size_t need = fixed + blocks * block;
  if (need > ledger.available || blocks < 2) {
    return Error{
        507, strf("not enough memory: weights %s + workspace %s + KV cache %s, and %s is free; %s",
                  human_bytes(weights).c_str(), human_bytes(ledger.workspace).c_str(),
                  human_bytes(std::max<size_t>(blocks, 2) * block).c_str(),
                  human_bytes(ledger.available).c_str(),
                  options.kv_bytes > 0 ? "change --kv-memory" : "use a smaller model or format")};
  }
  int fits = static_cast<int>(std::min<size_t>(blocks * static_cast<size_t>(bs), INT32_MAX));
  if (fits < ctx) {
    if (options.ctx > 0) {
      return Error{
          507,
          strf("--ctx %d needs %s of KV cache and %s is set aside for it (%s free): lower --ctx%s",
               ctx, human_bytes(static_cast<size_t>(ctx) * ledger.kv_per_token).c_str(),
               human_bytes(blocks * block).c_str(), human_bytes(ledger.available).c_str(),
               options.kv_bytes > 0 ? " or raise --kv-memory" : "")};
    }
    ctx = fits;
  }
  c.num_blocks = static_cast<int>(blocks);
  c.max_len = ctx;
  ledger.kv = blocks * block;
  ledger.ctx = ctx;
  ledger.num_blocks = c.num_blocks;
  ledger.full_sequences = static_cast<int>(blocks / static_cast<size_t>((ctx + bs - 1) / bs));
  return ledger;
}

}  // namespace sluice
