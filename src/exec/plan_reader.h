// Translates a plan into an executor's work, the same for all executors: the rows it opens, slices,
// and for each Want the rows of logits or hidden states to compute. Owned by an executor, on the
// thread that reads its plans. A request for something that no executor does yet is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/device.h"
#include "core/step_plan.h"
#include "exec/executor_config.h"
#include "exec/pooler.h"
#include "model/model.h"

namespace sluice {

// One step's work. Reused: vectors keep their memory.
struct StepWork {
  int32_t num_tokens = 0;             // rows of the batch
  std::vector<SliceView> slices;      // where each slice of the plan is in the batch
  std::vector<OutputRow> outputs;     // rows of logits to compute
  std::vector<int32_t> result_of;     // by output: in `rows`
  std::vector<PoolRow> pool;          // rows of hidden states to compute
  std::vector<BlockCopy> copies;      // of the run of transfers at hand
  std::vector<TransferId> completed;  // transfers that are done with the step
  std::vector<TransferId> lost;       // those that have failed
  std::vector<Sampled> rows;          // the result's, with their places for tokens
  uint32_t num_samples = 0;           // the result's tokens
  int num_masks = 0;                  // rows of the step's masks
};

class PlanReader {
 public:
  // A row as its RowOp opened it.
  struct Row {
    uint32_t epoch = 0;
    uint16_t choice = 0;
    Pooling pooling = Pooling::none;
    int32_t num_prompt = 0;
    int num_logprobs = -1, prompt_logprobs = -1;
  };

  explicit PlanReader(const ExecutorConfig& config)
      : table_len_(group_stride(config)),
        mapped_(config.num_pages > 0),
        table_stride_(config.groups.num_groups() * table_len_),
        num_places_(config.num_places),
        num_disk_(config.num_disk),
        block_size_(config.block_size),
        sends_(config.sender != nullptr),
        rows_(static_cast<size_t>(config.max_seqs)) {}

  // Takes the rows that the plan opens and fills `work`. Throws std::runtime_error, before anything
  // changes, when the plan asks for draft tokens, or for pages or a transfer that the executor
  // cannot do.
  void read(const StepPlan& plan, StepWork& work);

  const Row& row(Slot slot) const { return rows_[slot]; }
  int64_t table_stride() const { return table_stride_; }  // block ids of a slot, over all groups
  int64_t table_at(const TableEdit& e) const {
    return int64_t{e.slot} * table_stride_ + e.group * table_len_ + e.index;
  }

 private:
  void add_outputs(const StepPlan& plan, const Slice& slice, StepWork& work) const;

  void refuse_unsupported(const StepPlan& plan) const;

  int64_t table_len_;
  bool mapped_;
  int64_t table_stride_;
  int num_places_, num_disk_, block_size_;
  bool sends_;
  std::vector<Row> rows_;  // by slot
};

}  // namespace sluice
