#include "exec/host_batch.h"

namespace sluice {

HostBatch::HostBatch(const ExecutorConfig& config, const KvCache& cache)
    : table_stride_(config.groups.num_groups() * group_stride(config)),
      first_block_(cache.first_block()),
      mapped_(cache.mapped()),
      last_token_(static_cast<size_t>(config.max_seqs)) {
  if (!mapped_) tables_.assign(last_token_.size() * static_cast<size_t>(table_stride_), kNullBlock);
  for (auto* v : {&tokens_, &positions_, &row_slot_})
    v->reserve(static_cast<size_t>(config.max_step_tokens));
}

void HostBatch::edit_tables(const StepPlan& plan, const PlanReader& reader) {
  for (const TableEdit& e : plan.edits) tables_[static_cast<size_t>(reader.table_at(e))] = e.block;
}

BatchView HostBatch::build(const StepPlan& plan,
                           std::span<const Slice> list,
                           std::span<const SliceView> slices,
                           int num_decode) {
  tokens_.clear(), positions_.clear(), row_slot_.clear();
  for (const Slice& s : list) {
    for (int32_t k = 0; k < s.count; ++k) {
      tokens_.push_back(s.chained ? last_token_[s.slot]
                                  : plan.tokens[s.token_at + static_cast<uint32_t>(k)]);
      positions_.push_back(s.pos + k);
      row_slot_.push_back(static_cast<int32_t>(s.slot));
    }
  }
  BatchView b;
  b.num_tokens = static_cast<int32_t>(tokens_.size());
  b.num_decode = num_decode;
  b.tokens = tokens_.data();
  b.positions = positions_.data();
  b.row_slot = row_slot_.data();
  b.slices = slices;
  b.tables = mapped_ ? nullptr : tables_.data();
  b.first_block = first_block_;
  b.table_stride = table_stride_;
  return b;
}

}  // namespace sluice
