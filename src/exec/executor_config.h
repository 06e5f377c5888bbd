// Sizes that executors are built with, fixed by the scheduler and the memory plan. Plain data.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/trace.h"
#include "core/kv_exporter.h"
#include "core/pipeline.h"
#include "exec/cache_groups.h"
#include "model/model.h"

namespace sluice {

struct ExecutorConfig {
  int num_blocks = 0, block_size = 16;
  int max_seqs = 0;         // slots
  int max_len = 0;          // positions of a sequence: sizes the block tables
  int max_step_tokens = 0;  // Scheduler::max_step_tokens()
  int logits_rows = 64;     // rows of logits to hold at once, as far as the executor can follow
  Pipeline pipeline;        // steps that may be in flight
  KvType kv_type;
  bool timed = true;            // results say when their step ran
  bool full_sort = false;       // SampleScratch::full_sort
  TraceTrack* trace = nullptr;  // a step's parts, by who runs it; null: none
  int num_places = 0;           // KV blocks in host memory beside the pool
  int num_disk = 0;             // places on disk, behind those
  int num_pages = 0;        // > 0: the pool's memory is mapped in pages, each in every cache group
  int64_t slot_blocks = 0;  // then: addresses of a slot, per cache group
  CacheGroups groups;       // those of the scheduler's plans; none: one group that keeps everything
  // For a model without its first layers: the residual stream [max_step_tokens, hidden] that a step
  // begins with, in memory that the device can copy from. Only one step is in flight then.
  const float* states = nullptr;
  // Is told of blocks that leave while their step computes; null: the executor does no
  // Transfer::send. Needs one cache group.
  KvExporter* sender = nullptr;
};

// Whether a step that sends blocks does so when the first `end` of `num` layers are written: behind
// every layer of most models, and behind groups of those with more. A mark costs a few
// microseconds, a layer of a prompt's chunk some hundred. The last layers go with the step's end.
inline bool sends_behind(size_t end, size_t num) {
  constexpr size_t kMost = 32;
  return end < num && end % ((num + kMost - 1) / kMost) == 0;
}

// Blocks of a sequence in one cache group.
inline int64_t table_len(const ExecutorConfig& c) {
  return (c.max_len + c.block_size - 1) / c.block_size;
}
// Blocks from one cache group's of a slot to the next one's.
inline int64_t group_stride(const ExecutorConfig& c) {
  return c.num_pages > 0 ? c.slot_blocks : table_len(c);
}

// Fills in the default cache group.
inline ExecutorConfig with_groups(ExecutorConfig c, const ModelShape& shape) {
  if (c.groups.layers.empty()) c.groups = one_cache_group(shape.num_layers);
  return c;
}

// Bytes of the residual stream of so many rows.
inline size_t states_bytes(const ModelShape& shape, int rows) {
  return static_cast<size_t>(rows) * static_cast<size_t>(shape.hidden) * sizeof(float);
}

// One row of the buffer that holds logits, or hidden states.
inline size_t output_row_bytes(const ModelShape& shape) {
  return static_cast<size_t>(std::max(shape.vocab, shape.hidden)) * sizeof(float);
}

}  // namespace sluice
