// A long prompt is promised its blocks and takes them chunk by chunk.
#include <algorithm>

#include <gtest/gtest.h>

#include "core/fake_executor.h"
#include "core/scheduler.h"

namespace sluice {
namespace {

constexpr int kPrompt = 120'000, kChunk = 2048, kBlock = 16;

class LongPrompts : public testing::Test {
 protected:
  static SchedulerConfig config() {
    SchedulerConfig c;
    c.budget = kChunk;
    c.max_seqs = 8;
    c.max_len = 128 * 1024;
    c.block_size = kBlock;
    c.num_blocks = 2 * c.max_len / kBlock;
    c.watermark = 0;
    return c;
  }
  // Each under a tenant of its own: nothing is shared.
  void add(RequestId id, int max_new) {
    Request r;
    r.id = r.tenant = id;
    r.prompt = prompt_;
    r.sampling = std::make_shared<SamplingSpec>();
    r.max_new = max_new;
    ASSERT_TRUE(scheduler_.add(std::move(r), Time{0}));
  }
  void plan() { scheduler_.plan(Time{0}, plan_, events_); }
  void complete() {
    StepResult result;
    FakeExecutor::answer(
        plan_, [](const StepPlan&, const Slice&) { return Token{7}; }, result);
    scheduler_.complete(result, Time{0}, events_);
  }
  void run_all() {
    while (scheduler_.has_work()) {
      plan();
      if (plan_.empty()) return;
      complete();
    }
  }
  int count(BlockUse use) {
    std::vector<BlockUse> uses(static_cast<size_t>(scheduler_.config().num_blocks));
    scheduler_.block_uses(uses);
    return static_cast<int>(std::count(uses.begin(), uses.end(), use));
  }

  Scheduler scheduler_{config(), nullptr};
  std::shared_ptr<const std::vector<Token>> prompt_ =
      std::make_shared<std::vector<Token>>(kPrompt, Token{5});
  StepPlan plan_;
  Events events_;
};

TEST_F(LongPrompts, AdmissionTakesTheFirstChunksBlocks) {
  // Fill the pool with cached prefixes.
  add(1, 1);
  run_all();
  add(2, 1);
  run_all();
  EXPECT_EQ(count(BlockUse::cached), 2 * (kPrompt / kBlock));
  int cached = count(BlockUse::cached), idle = cached + count(BlockUse::free);

  add(3, 100);
  plan();
  EXPECT_EQ(plan_.edits.size(), static_cast<size_t>(kChunk / kBlock));
  EXPECT_EQ(count(BlockUse::owned), kChunk / kBlock);
  EXPECT_EQ(count(BlockUse::cached) + count(BlockUse::free), idle - kChunk / kBlock)
      << "nothing is evicted before it is needed";
  // But it is promised: nobody else can have it.
  EXPECT_EQ(scheduler_.stats().available_blocks, idle - kPrompt / kBlock);
  complete();
  plan();
  EXPECT_EQ(plan_.edits.size(), static_cast<size_t>(kChunk / kBlock));
  EXPECT_TRUE(scheduler_.count_blocks().conserved());
  complete();

  // What was promised comes back with the sequence.
  scheduler_.cancel(3, Time{0}, events_);
  plan();
  EXPECT_EQ(scheduler_.stats().available_blocks, scheduler_.config().num_blocks);
  EXPECT_TRUE(scheduler_.count_blocks().conserved());
}

TEST_F(LongPrompts, APromiseIsKeptWhileOthersStart) {
  add(1, 100);
  add(2, 100);
  add(3, 100);  // two fill 15,000 of 16,384 blocks
  plan();
  while (scheduler_.stats().num_running < 2) {
    complete();
    plan();
  }
  EXPECT_EQ(scheduler_.stats().num_waiting, 1);
  EXPECT_GE(scheduler_.stats().available_blocks, 0);
  complete();
  run_all();
  EXPECT_EQ(scheduler_.stats().num_preemptions, 0u);
  EXPECT_EQ(scheduler_.stats().available_blocks, scheduler_.config().num_blocks);
}

}  // namespace
}  // namespace sluice
