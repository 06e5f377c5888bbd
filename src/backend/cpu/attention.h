// Paged attention on the CPU. Owned by the backend, used by its thread.
//
// The arithmetic of a query row depends on its position alone, never on what shares the step:
//   - tiles of 64 positions anchored at 0, each with its own maximum, sum and output;
//   - tiles merge in ascending order into spans of 1024 positions anchored at 0, spans in ascending
//     order into the row's result;
//   - a score is one FMA chain over ascending dimensions (lanes are positions), an output one FMA
//     chain over a tile's ascending positions (lanes are dimensions).
// With K and V in int8 both are exact integer sums instead (attention_codes_inl.h): of a row's own
// 16-bit codes over each group of dimensions, and over a tile's positions.
// So tasks may take any rows together, and split a row's context between threads at spans, or at
// tiles whose states are kept apart until they are merged in that order.
// Positions a row does not see are excluded by selection: what lies there may be NaN.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "base/thread_pool.h"

namespace sluice {

inline constexpr int kTile = 64;           // positions
inline constexpr int kSpan = 16 * kTile;   // positions
inline constexpr int kMaxAttendRows = 96;  // (query, head) rows of one job
inline constexpr int kMaxHeadDim = 256;
inline constexpr int padded16(int n) { return (n + 15) / 16 * 16; }

// Consecutive queries of one sequence, some heads of one kv head's group, over [begin, end); or one
// query and the groups of several kv heads, so that a block is read from end to end.
struct AttendJob {
  const float* q = nullptr;            // first query's first head; heads follow each other
  int64_t q_stride = 0;                // from one query to the next
  int num_queries = 0, num_heads = 0;  // heads of all the job's kv heads
  int64_t pos = 0;                     // of the first query
  float scale = 1;
  int window = 0;
  float softcap = 0;
  KvLayer kv;
  int64_t head_bytes = 0;             // kv.head_bytes(), which kernels of one ISA must not call
  int kv_head = 0, num_kv_heads = 1;  // several: of codes, with one query
  SlotTable table;
  int64_t begin = 0,
          end = 0;  // positions to visit: begin starts a span (or tile), end is past the last seen
  // Either the finished rows, laid out like q, or (out null) the state of the one span visited, or
  // with `tile_states` of each of its tiles.
  float* out = nullptr;
  int64_t out_stride = 0;
  float* state = nullptr;  // [states, rows, state_stride(head_dim)]: o, then maximum, sum
  bool tile_states = false;

  // Row = query * num_heads + head; and those that read one kv head.
  [[gnu::always_inline]] int num_rows() const { return num_queries * num_heads; }
  [[gnu::always_inline]] int kv_rows() const { return num_rows() / num_kv_heads; }
};

[[gnu::always_inline]] inline int64_t state_stride(int head_dim) { return padded16(head_dim) + 16; }

// One worker's memory for a job.
struct AttendScratch {
  float* q;       // [rows, dim16] scaled, or codes
  float* scores;  // [rows, kTile]
  float* tile;    // [head_dim, kTile] of k, then [kTile, dim16] of v, as f32; or codes of both
  float* span;    // [rows, dim16]
  float* total;   // [rows, dim16]
};

// States of the same rows, ascending from the start of a span, into the result.
struct MergeJob {
  const float* states = nullptr;  // [num_states, rows, state_stride]
  int num_states = 0, per_span = 1;
  int num_queries = 0, num_heads = 0, head_dim = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

struct VectorKernels;

class CpuAttention {
 public:
  CpuAttention(ThreadPool& pool, const VectorKernels& kernels, AttentionVia via);
  void run(const Act& out, Tensor q, const AttentionSpec& spec, const BatchView& batch, KvLayer kv);

 private:
  struct Task {
    int32_t slice, kv_head, num_kv_heads;
    int32_t first_head, num_heads;  // heads of the kv head's group, or all of several groups
    int32_t first_query, num_queries;
    int64_t begin, end;  // positions
    int32_t split = -1;  // index in splits_ when this is one part of several
    float cost;          // about nanoseconds

    bool same_rows(const Task& x) const {
      return slice == x.slice && first_query == x.first_query && first_head == x.first_head;
    }
  };
  // Rows whose spans, or tiles, are visited by several tasks; the last to finish merges.
  struct Split {
    int64_t states_at;  // in states_
    int64_t begin;      // position of the first state
    int32_t unit;       // positions of a state: kSpan or kTile
    int32_t num_states, pending;
  };
  struct Step;

  void plan(const AttentionSpec& spec, const BatchView& batch, const KvLayer& kv);
  void add_tasks(const AttentionSpec& spec, const SliceView& slice, int32_t index);
  int heads_together(const AttentionSpec& spec, const BatchView& batch, const KvLayer& kv) const;
  void split_long_tasks(const AttentionSpec& spec);
  void split(const Task& task, int64_t parts, int64_t state_floats);
  void reserve_ahead(const AttentionSpec& spec);
  void group_claims(const AttentionSpec& spec);
  void run_task(const Step& step, const Task& task, int worker);
  void finish_rows(const Step& step, const Task& task);
  AttendScratch scratch(int worker);

  ThreadPool& pool_;
  const VectorKernels& kernels_;
  const AttentionVia via_;
  std::vector<Task> tasks_, planned_;
  std::vector<Split> splits_;
  std::vector<int32_t> claims_;  // first task of each claim, then the end
  std::vector<float> states_, rows_;
  int64_t num_state_floats_ = 0;
  int heads_together_ = 1;  // of the plan
  Buffer scratch_;
  double total_cost_ = 0;
};

}  // namespace sluice
