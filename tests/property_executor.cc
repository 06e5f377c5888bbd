#include "property_executor.h"

#include <cstddef>
#include <cstring>
#include <utility>

#include <gtest/gtest.h>

namespace sluice {

void EncodingExecutor::launch(const StepPlan& plan) {
  bytes_.clear();
  encode(plan, bytes_);
  Result<StepPlan> back = decode_plan(bytes_);
  ASSERT_TRUE(back) << back.error().message;
  ASSERT_EQ(*back, plan);
  recorded_.calls.push_back(bytes_);
  recorded_.launches.push_back(true);
  inner_.launch(*back);
  for (const Transfer& t : plan.transfers) moving_[t.id] = t;
}

void EncodingExecutor::masks(StepMasks masks) {
  Bytes bytes;
  encode(masks, bytes);
  Result<StepMasks> back = decode_masks(bytes);
  EXPECT_TRUE(back) << back.error().message;
  EXPECT_EQ(*back, masks);
  {
    std::lock_guard lock(mutex_);
    recorded_.masks[masks.step] = std::move(bytes);
  }
  inner_.masks(std::move(*back));
}

const StepResult& EncodingExecutor::wait() {
  const StepResult& result = inner_.wait();
  bytes_.clear();
  encode(result, bytes_);
  Result<StepResult> back = decode_result(bytes_);
  EXPECT_TRUE(back) << back.error().message;
  if (!back) return result;
  result_ = std::move(*back);
  EXPECT_TRUE(result_ == result);
  EXPECT_EQ(result_.begin, result.begin);
  recorded_.calls.push_back(bytes_);
  recorded_.launches.push_back(false);
  for (TransferId id : result_.transfers) moving_.erase(id);
  for (TransferId id : result_.lost) moving_.erase(id);
  return result_;
}

void poison_free_blocks(const Scheduler& scheduler,
                        const std::map<TransferId, Transfer>& moving,
                        const KvCache& cache) {
  std::vector<BlockUse> uses(static_cast<size_t>(scheduler.config().num_blocks));
  scheduler.block_uses(uses);
  for (const auto& [id, t] : moving) {
    if (t.kind != Transfer::in) uses[static_cast<size_t>(t.from - 1)] = BlockUse::owned;
  }
  for (size_t k = 0; k < uses.size(); ++k) {
    if (uses[k] != BlockUse::free) continue;
    for (const KvLayer& plane : cache.planes()) {
      size_t bytes = plane.block_bytes();
      std::memset(static_cast<std::byte*>(plane.k) + (k + 1) * bytes, 0x7B, bytes);
      std::memset(static_cast<std::byte*>(plane.v) + (k + 1) * bytes, 0x7B, bytes);
    }
  }
}

void replay(const Recorded& run, Executor& fresh) {
  for (size_t k = 0; k < run.calls.size(); ++k) {
    if (run.launches[k]) {
      const StepPlan plan = decode_plan(run.calls[k]).value();
      fresh.launch(plan);
      if (auto m = run.masks.find(plan.step); m != run.masks.end())
        fresh.masks(decode_masks(m->second).value());
      continue;
    }
    const StepResult was = decode_result(run.calls[k]).value();
    ASSERT_TRUE(fresh.wait() == was) << "step " << was.step << " differs when it is replayed";
  }
}

}  // namespace sluice
