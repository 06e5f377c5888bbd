// The batch of a step in host memory: block tables by slot, edited as plans say, and an entry per
// row. Owned by an executor that computes on the host, on the thread that runs its steps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "core/step_plan.h"
#include "exec/executor_config.h"
#include "exec/kv_cache.h"
#include "exec/plan_reader.h"

namespace sluice {

class HostBatch {
 public:
  HostBatch(const ExecutorConfig& config, const KvCache& cache);

  void edit_tables(const StepPlan& plan, const PlanReader& reader);
  // The token that a chained slice of this slot takes.
  void set_last_token(Slot slot, Token token) { last_token_[slot] = token; }
  // Valid until the next call, and as long as `slices`.
  BatchView build(const StepPlan& plan, std::span<const SliceView> slices) {
    return build(plan, plan.slices, slices, plan.num_decode);
  }
  // The same of other slices of that plan.
  BatchView build(const StepPlan& plan,
                  std::span<const Slice> list,
                  std::span<const SliceView> slices,
                  int num_decode);
  std::span<const int32_t> tables() const { return tables_; }

 private:
  int64_t table_stride_, first_block_;
  bool mapped_;
  std::vector<int32_t> tables_;  // [slots, groups, blocks]
  std::vector<Token> last_token_;
  std::vector<int32_t> tokens_, positions_, row_slot_;
};

}  // namespace sluice
