#include "exec/plan_reader.h"

#include <algorithm>
#include <stdexcept>

#include "base/check.h"
#include "base/str.h"

namespace sluice {

void PlanReader::refuse_unsupported(const StepPlan& plan) const {
  if (!plan.pages.empty() && !mapped_)
    throw std::runtime_error("this executor's KV cache is not mapped in pages");
  if (mapped_ && !(plan.edits.empty() && plan.transfers.empty()))
    throw std::runtime_error("this executor's KV cache has neither tables nor blocks to move");
  for (const Transfer& t : plan.transfers) {
    if (t.kind == Transfer::copy) continue;
    const bool sends = t.kind == Transfer::send && sends_;
    if (t.kind != Transfer::out && t.kind != Transfer::in && !sends)
      throw std::runtime_error(
          strf("this executor cannot do transfers of kind \"%s\"", transfer_name(t.kind)));
    if (sends && plan.slices.empty())
      throw std::runtime_error("the plan sends a block that no slice of it writes");
    BlockId place = t.kind == Transfer::in ? t.from : t.to;
    if (!sends && place > num_places_ && place - num_places_ <= num_disk_) {
      if (t.key < 0 || static_cast<size_t>(t.key) >= plan.keys.size())
        throw std::runtime_error(strf("the plan does not say what place %d on disk holds", place));
      if (plan.keys[static_cast<size_t>(t.key)].num_tokens != static_cast<uint32_t>(block_size_))
        throw std::runtime_error(strf("place %d on disk holds a block of another size", place));
      continue;
    }
    if (place < 1 || place > num_places_)
      throw std::runtime_error(
          strf("this executor has no place %d in host memory, only %d", place, num_places_));
  }
  for (const Slice& s : plan.slices) {
    if (s.num_draft > 0) throw std::runtime_error("this executor cannot check draft tokens");
  }
}

void PlanReader::read(const StepPlan& plan, StepWork& work) {
  refuse_unsupported(plan);
  for (const RowOp& op : plan.rows) {
    if (op.kind != RowOp::open) continue;
    const SamplingSpec& spec = plan.sampling[op.sampling];
    rows_[op.slot] = {op.epoch,          op.id.choice,
                      op.pooling,        static_cast<int32_t>(op.num_prompt),
                      spec.num_logprobs, spec.prompt_logprobs};
  }
  work.num_tokens = 0, work.num_samples = 0, work.num_masks = 0;
  work.slices.clear(), work.outputs.clear(), work.result_of.clear(), work.pool.clear();
  work.copies.clear(), work.completed.clear(), work.lost.clear(), work.rows.clear();
  for (const Transfer& t : plan.transfers) {
    // What comes from disk comes with a later step.
    if (t.kind != Transfer::in || t.from <= num_places_) work.completed.push_back(t.id);
  }
  for (const Slice& s : plan.slices) {
    CHECK(rows_[s.slot].epoch == s.epoch);
    work.slices.push_back({work.num_tokens, s.count, s.pos, static_cast<int32_t>(s.slot)});
    if (s.want != Want::none) add_outputs(plan, s, work);
    work.num_tokens += s.count;
  }
}

void PlanReader::add_outputs(const StepPlan& plan, const Slice& s, StepWork& work) const {
  const Row& row = rows_[s.slot];
  const int32_t first = work.num_tokens;
  auto result = static_cast<int32_t>(work.rows.size());
  Sampled sampled;
  sampled.slot = s.slot, sampled.epoch = s.epoch;
  sampled.token_at = work.num_samples;
  auto add = [&](int32_t k, Token actual, int num_top, int32_t mask) {
    work.outputs.push_back(
        {first + k, static_cast<int32_t>(s.slot), s.pos + k + 1, actual, num_top, mask});
    work.result_of.push_back(result);
  };
  if (scores(s.want)) {
    for (int32_t k = 0; k < s.count && s.pos + k + 1 < row.num_prompt; ++k) {
      add(k, plan.tokens[s.token_at + static_cast<uint32_t>(k) + 1], row.prompt_logprobs, kNoMask);
    }
  }
  if (samples(s.want)) {
    add(s.count - 1, kNoToken, row.num_logprobs, s.mask);
    work.num_masks = std::max(work.num_masks, s.mask + 1);
    sampled.num_tokens = 1;
    ++work.num_samples;
  }
  add_pool_rows(s, {first, result, s.slot, row.pooling, row.num_prompt}, work.pool);
  work.rows.push_back(sampled);
}

}  // namespace sluice
