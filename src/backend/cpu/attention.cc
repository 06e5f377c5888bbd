#include "backend/cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "backend/cpu/attention_naive.h"
#include "backend/cpu/elementwise.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/quantize.h"
#include "backend/cpu/vector_math.h"
#include "base/check.h"

namespace sluice {

namespace {

constexpr float kInlineCost = 2000;  // ns: less than this is not worth waking a thread
constexpr int64_t kScratchFloats =
    int64_t{kMaxAttendRows} * (3 * kMaxHeadDim + kTile) + int64_t{kTile} * kMaxHeadDim;

// First position that any of the queries from `pos` on sees.
int64_t first_visible(int64_t pos, int window) {
  return window > 0 ? std::max<int64_t>(0, pos - window + 1) : 0;
}

// About 4 cycles of FMA per 64 dimensions of a row and position, and the reading of k and v once.
float cost_ns(int rows, int64_t positions, int head_dim) {
  return static_cast<float>(positions * head_dim * (rows + 1)) / 40.0F;
}

}  // namespace

// One call's arguments.
struct CpuAttention::Step {
  const Act& out;
  Tensor rows;  // f32 results: out.f, or our own when only the quantised form is wanted
  Tensor q;
  const AttentionSpec& spec;
  const BatchView& batch;
  KvLayer kv;
  bool quantize_heads;   // a task's columns are whole quantisation blocks of 32
  bool quantize_supers;  // likewise of 256
};

CpuAttention::CpuAttention(ThreadPool& pool, const VectorKernels& kernels, AttentionVia via)
    : pool_(pool), kernels_(kernels), via_(via) {
  auto bytes = static_cast<size_t>(kScratchFloats) * sizeof(float);
  scratch_ = allocate_pages(static_cast<size_t>(pool.size()) * bytes);
}

AttendScratch CpuAttention::scratch(int worker) {
  float* p = static_cast<float*>(scratch_.data()) + worker * kScratchFloats;
  AttendScratch s;
  s.q = p;
  s.span = s.q + kMaxAttendRows * kMaxHeadDim;
  s.total = s.span + kMaxAttendRows * kMaxHeadDim;
  s.scores = s.total + kMaxAttendRows * kMaxHeadDim;
  s.tile = s.scores + kMaxAttendRows * kTile;
  return s;
}

// Kv heads that a decoding row's task takes: as many as a job has rows for, where spans alone give
// every thread enough to do. A head's part of a block is a kilobyte of codes, and memory gives
// less in pieces so short than in whole blocks. (f16 gained nothing.)
int CpuAttention::heads_together(const AttentionSpec& spec,
                                 const BatchView& batch,
                                 const KvLayer& kv) const {
  const int group = spec.num_heads / spec.num_kv_heads, most = kMaxAttendRows / group;
  if (most < 2 || kv.block_size < 16 || kv.type != DType::i8 || via_ != AttentionVia::tiled)
    return 1;
  int64_t spans = 0;
  for (const SliceView& s : batch.slices) {
    if (s.count == 1) spans += s.pos / kSpan - first_visible(s.pos, spec.window) / kSpan + 1;
  }
  if (pool_.size() > 1 && spans < 4 * int64_t{pool_.size()}) return 1;
  const int parts = (spec.num_kv_heads + most - 1) / most;
  return (spec.num_kv_heads + parts - 1) / parts;
}

// Longest first within a slice, so that the last tasks to be claimed are short.
void CpuAttention::add_tasks(const AttentionSpec& spec, const SliceView& slice, int32_t index) {
  int group = spec.num_heads / spec.num_kv_heads;
  const bool by_head = via_ == AttentionVia::by_head && slice.count == 1;
  int chunks = by_head ? group : (group + kMaxAttendRows - 1) / kMaxAttendRows;
  const int together = slice.count == 1 ? heads_together_ : 1;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    int first_head = group * chunk / chunks, heads = group * (chunk + 1) / chunks - first_head;
    int step = kMaxAttendRows / heads;
    for (int first = (slice.count - 1) / step * step; first >= 0; first -= step) {
      Task t;
      t.slice = index;
      t.first_head = first_head;
      t.num_heads = heads;
      t.first_query = first;
      t.num_queries = std::min(step, slice.count - first);
      t.begin = first_visible(slice.pos + first, spec.window) / kSpan * kSpan;
      t.end = slice.pos + first + t.num_queries;
      int64_t seen = t.end - first_visible(slice.pos + first, spec.window);
      const float cost = cost_ns(t.num_queries * heads, seen, spec.head_dim);
      for (t.kv_head = 0; t.kv_head < spec.num_kv_heads; t.kv_head += together) {
        t.num_kv_heads = std::min(together, spec.num_kv_heads - t.kv_head);
        t.num_heads = heads * t.num_kv_heads;
        t.cost = cost * static_cast<float>(t.num_kv_heads);
        planned_.push_back(t);
        total_cost_ += t.cost;
      }
    }
  }
}

// The task as one per span, or by tiles as about `parts`.
void CpuAttention::split(const Task& task, int64_t parts, int64_t state_floats) {
  int64_t length = task.end - task.begin;
  int64_t spans = (length + kSpan - 1) / kSpan, tiles = (length + kTile - 1) / kTile;
  const bool by_tile = parts > spans;
  int64_t states = by_tile ? tiles : spans, unit = by_tile ? kTile : kSpan;
  parts = by_tile ? std::min(parts, tiles) : spans;
  Split split{num_state_floats_, task.begin, static_cast<int32_t>(unit),
              static_cast<int32_t>(states), static_cast<int32_t>(parts)};
  for (int64_t i = 0; i < parts; ++i) {
    Task part = task;
    part.begin = task.begin + states * i / parts * unit;
    part.end = std::min(task.end, task.begin + states * (i + 1) / parts * unit);
    part.cost = task.cost / static_cast<float>(parts);
    part.split = static_cast<int32_t>(splits_.size());
    tasks_.push_back(part);
  }
  splits_.push_back(split);
  num_state_floats_ += states * state_floats;
}

// A task longer than a quarter of a thread's fair share becomes one task per span. Where threads
// would have nothing to do, tasks are split by tiles too: their states cost more to merge.
// planned_ has the kv heads of the same rows side by side; so have tasks_ for every span.
void CpuAttention::split_long_tasks(const AttentionSpec& spec) {
  double share = total_cost_ / pool_.size() / 4;
  const bool idle = static_cast<int>(planned_.size()) < pool_.size();
  num_state_floats_ = 0;
  size_t heads = 1;
  for (size_t i = 0; i < planned_.size(); i += heads) {
    const Task& t = planned_[i];
    for (heads = 1; i + heads < planned_.size() && planned_[i + heads].same_rows(t);) ++heads;
    int64_t parts = (t.end - t.begin + kSpan - 1) / kSpan;
    if (idle) {
      double piece = std::max<double>(kInlineCost, share * 2);
      parts = std::max(parts, static_cast<int64_t>(std::ceil(t.cost / piece)));
    }
    const bool streams = t.num_queries == 1;
    if (pool_.size() == 1 || parts == 1 || (streams && via_ == AttentionVia::by_head) ||
        (t.cost <= share && !streams) || total_cost_ < kInlineCost) {
      tasks_.insert(tasks_.end(), planned_.begin() + static_cast<ptrdiff_t>(i),
                    planned_.begin() + static_cast<ptrdiff_t>(i + heads));
      continue;
    }
    const size_t first = tasks_.size();
    for (size_t h = i; h < i + heads; ++h) {
      const int rows = t.num_queries * planned_[h].num_heads;
      split(planned_[h], parts, rows * state_stride(spec.head_dim));
    }
    std::sort(tasks_.begin() + static_cast<ptrdiff_t>(first), tasks_.end(),
              [](const Task& x, const Task& y) {
                return std::pair(x.begin, x.kv_head) < std::pair(y.begin, y.kv_head);
              });
  }
  reserve_ahead(spec);
}

// Decodes grow by a position a step: room for some spans more than they have, so that few of their
// steps allocate.
void CpuAttention::reserve_ahead(const AttentionSpec& spec) {
  constexpr int64_t kSpansAhead = 4;
  int64_t floats = 0;
  for (const Task& t : planned_) {
    if (t.num_queries > 1) continue;
    int64_t spans = (t.end - t.begin + kSpan - 1) / kSpan;
    floats += (spans + kSpansAhead) / kSpansAhead * kSpansAhead * t.num_heads *
              state_stride(spec.head_dim);
  }
  auto least = static_cast<size_t>(std::max(floats, num_state_floats_));
  if (states_.size() < least) states_.resize(least);
  const size_t tasks = least / static_cast<size_t>(state_stride(spec.head_dim)) + tasks_.size();
  tasks_.reserve(tasks);
  claims_.reserve(tasks + 1);
  splits_.reserve(planned_.size());
}

// Tasks claimed together, so that a claim is worth its atomic add; all kv heads of the same rows
// and positions, where that leaves enough for every thread.
void CpuAttention::group_claims(const AttentionSpec& spec) {
  double least = std::max<double>(kInlineCost, total_cost_ / pool_.size() / 16);
  if (total_cost_ < kInlineCost) least = 2 * total_cost_ + 1;
  const auto heads = static_cast<size_t>(spec.num_kv_heads);
  const bool together = tasks_.size() / heads >= 4 * static_cast<size_t>(pool_.size());
  claims_.assign(1, 0);
  double cost = 0;
  for (size_t i = 0; i < tasks_.size(); ++i) {
    cost += tasks_[i].cost;
    const bool last = i + 1 == tasks_.size();
    const bool whole = !together || last || !tasks_[i + 1].same_rows(tasks_[i]) ||
                       tasks_[i + 1].begin != tasks_[i].begin;
    if ((cost >= least && whole) || last) {
      claims_.push_back(static_cast<int32_t>(i + 1));
      cost = 0;
    }
  }
}

void CpuAttention::plan(const AttentionSpec& spec, const BatchView& batch, const KvLayer& kv) {
  heads_together_ = heads_together(spec, batch, kv);
  planned_.clear();
  tasks_.clear();
  splits_.clear();
  total_cost_ = 0;
  for (size_t i = 0; i < batch.slices.size(); ++i) {
    add_tasks(spec, batch.slices[i], static_cast<int32_t>(i));
  }
  split_long_tasks(spec);
  group_claims(spec);
}

void CpuAttention::run_task(const Step& step, const Task& task, int worker) {
  const SliceView& slice = step.batch.slices[static_cast<size_t>(task.slice)];
  int group = step.spec.num_heads / step.spec.num_kv_heads;
  int64_t row = slice.row + task.first_query;
  int64_t column = int64_t{task.kv_head * group + task.first_head} * step.spec.head_dim;
  AttendJob job;
  job.q = step.q.row(row) + column;
  job.q_stride = step.q.stride;
  job.num_queries = task.num_queries;
  job.num_heads = task.num_heads;
  job.pos = slice.pos + task.first_query;
  job.scale = step.spec.scale;
  job.window = step.spec.window;
  job.softcap = step.spec.softcap;
  job.kv = step.kv;
  job.head_bytes = static_cast<int64_t>(step.kv.head_bytes());
  job.kv_head = task.kv_head;
  job.num_kv_heads = task.num_kv_heads;
  job.table = SlotTable(step.batch, step.kv, slice.slot);
  job.begin = task.begin;
  job.end = task.end;
  float* out = step.rows.row(row) + column;
  if (task.split < 0) {
    job.out = out;
    job.out_stride = step.rows.stride;
    kernels_.attend(job, scratch(worker));
    return finish_rows(step, task);
  }
  Split& split = splits_[static_cast<size_t>(task.split)];
  int64_t state_floats = job.num_rows() * state_stride(step.spec.head_dim);
  float* states = states_.data() + split.states_at;
  job.state = states + (task.begin - split.begin) / split.unit * state_floats;
  job.tile_states = split.unit == kTile;
  kernels_.attend(job, scratch(worker));
  if (std::atomic_ref(split.pending).fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  kernels_.merge_states({states, split.num_states, kSpan / split.unit, task.num_queries,
                         task.num_heads, step.spec.head_dim, out, step.rows.stride},
                        scratch(worker));
  finish_rows(step, task);
}

void CpuAttention::finish_rows(const Step& step, const Task& task) {
  const QuantView& q = step.out.q;
  const SuperQuantView& s = step.out.s;
  const bool blocks = q.q && step.quantize_heads, supers = s.q && step.quantize_supers;
  if (!blocks && !supers) return;
  const SliceView& slice = step.batch.slices[static_cast<size_t>(task.slice)];
  int group = step.spec.num_heads / step.spec.num_kv_heads;
  int64_t column = int64_t{task.kv_head * group + task.first_head} * step.spec.head_dim;
  for (int i = 0; i < task.num_queries; ++i) {
    int64_t row = slice.row + task.first_query + i;
    const float* from = step.rows.row(row) + column;
    const int64_t cols = int64_t{task.num_heads} * step.spec.head_dim;
    if (blocks) {
      int64_t at = row * q.cols + column, block = at / kActBlock;
      quantize_row(from, cols, q.q + at, q.scale + block, q.sum + block);
    }
    if (supers) {
      int64_t at = row * s.cols + column;
      quantize_supers(from, cols, s.q + at, s.scale + at / kActSuper, s.sum + at / kActSum);
    }
  }
}

void CpuAttention::run(
    const Act& out, Tensor q, const AttentionSpec& spec, const BatchView& batch, KvLayer kv) {
  CHECK(spec.head_dim % 8 == 0 && spec.head_dim <= kMaxHeadDim);
  CHECK(spec.num_heads % spec.num_kv_heads == 0 && kv.head_dim == spec.head_dim);
  int64_t cols = int64_t{spec.num_heads} * spec.head_dim;
  int group = spec.num_heads / spec.num_kv_heads;
  Step step{out, out.f, q, spec, batch, kv, true, true};
  const int together = via_ == AttentionVia::tiled ? group : 1;  // heads of a task, at least
  const bool finishes = via_ != AttentionVia::naive && group <= kMaxAttendRows;
  step.quantize_heads = finishes && together * spec.head_dim % kActBlock == 0;
  step.quantize_supers = finishes && together * spec.head_dim % kActSuper == 0;
  if (!out.f.data) {
    auto floats = static_cast<size_t>(batch.num_tokens * cols);
    if (rows_.size() < floats) rows_.resize(floats);
    step.rows = {rows_.data(), DType::f32, batch.num_tokens, cols, cols};
  }
  if (via_ == AttentionVia::naive) {
    attend_naive(pool_, step.rows, q, spec, batch, kv);
  } else {
    plan(spec, batch, kv);
    pool_.for_each(static_cast<int64_t>(claims_.size()) - 1, [&](int64_t i, int worker) {
      for (int32_t t = claims_[static_cast<size_t>(i)]; t < claims_[static_cast<size_t>(i) + 1];
           ++t) {
        run_task(step, tasks_[static_cast<size_t>(t)], worker);
      }
    });
  }
  const bool blocks = out.q.q && !step.quantize_heads;
  const bool supers = out.s.q && !step.quantize_supers;
  if (!blocks && !supers && !out.r.q) return;
  // Whole rows exist when all heads do.
  const double ns = 0.15 * static_cast<double>(cols);
  for_ranges(pool_, batch.num_tokens, ns, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* y = step.rows.row(r);
      if (out.r.q) quantize_whole_row(y, cols, out.r.q + r * cols, out.r.scale + r, out.r.sum + r);
      if (supers) {
        const int64_t at = r * cols;
        quantize_supers(y, cols, out.s.q + at, out.s.scale + at / kActSuper,
                        out.s.sum + at / kActSum);
      }
      if (!blocks) continue;
      int64_t block = r * cols / kActBlock;
      quantize_row(y, cols, out.q.q + r * cols, out.q.scale + block, out.q.sum + block);
    }
  });
}

}  // namespace sluice
