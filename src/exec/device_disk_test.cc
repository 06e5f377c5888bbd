// Blocks between a device and the disk: through staging memory, without a wait. The device's memory
// is the host's here (device_fake.h), so content can be followed.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "exec/device_executor.h"
#include "exec/device_fake.h"

namespace sluice {
namespace {

constexpr int kBlockSize = 4, kPlaces = 6, kHostPlaces = 2;

class DeviceDisk : public testing::Test {
 protected:
  DeviceDisk() {
    std::string name = (std::filesystem::temp_directory_path() / "sluice-dd-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
    start();
  }
  ~DeviceDisk() override {
    stop();
    std::filesystem::remove_all(dir_);
  }
  void start() {
    ExecutorConfig c;
    c.num_blocks = 8;
    c.block_size = kBlockSize;
    c.max_seqs = 4;
    c.max_len = 64;
    c.max_step_tokens = 8;
    c.kv_type = DType::f32;
    c.num_places = kHostPlaces;
    c.num_disk = kPlaces;
    c.groups = cache_groups(model.shape());
    size_t bytes = KvCache::bytes_per_block(model.shape(), c.groups, c.kv_type, kBlockSize);
    Result<BlockFile> file =
        BlockFile::open({dir_, std::string(64, 'a'), kPlaces, kBlockSize, bytes});
    ASSERT_TRUE(file) << file.error().message;
    disk_ =
        std::make_unique<DiskTier>(std::move(*file), device.pinned(DiskTier::staging_bytes(bytes)));
    device.allocated.clear();
    executor_ = std::make_unique<DeviceExecutor>(device, model, c, clock_, true, disk_.get());
  }
  void stop() {
    executor_.reset();
    disk_.reset();
  }
  StepPlan next_plan() {
    StepPlan plan;
    plan.step = ++step_;
    plan.oldest = oldest;
    return plan;
  }
  // Transfers of block or place numbers; places on disk are counted from 1.
  void add(StepPlan& plan, Transfer::Kind kind, int place, BlockId block) {
    Transfer t;
    t.kind = kind;
    int at = kHostPlaces + place;
    t.from = kind == Transfer::out ? block : at;
    t.to = kind == Transfer::out ? at : block;
    t.id = ++id_;
    t.key = static_cast<int32_t>(plan.keys.size());
    auto tokens = static_cast<uint32_t>(plan.tokens.size());
    plan.keys.push_back({{static_cast<uint64_t>(place), 7}, 0, 0, tokens, kBlockSize});
    for (int k = 0; k < kBlockSize; ++k) plan.tokens.push_back(place + k);
    plan.transfers.push_back(t);
  }
  StepResult run(const StepPlan& plan) {
    executor_->launch(plan);
    return executor_->wait();
  }
  // Waits for reads, a step of nothing else at a time, until so many have been named.
  StepResult await(size_t num) {
    StepResult all;
    for (int k = 0; k < 1000 && all.transfers.size() + all.lost.size() < num; ++k) {
      StepPlan plan = next_plan();
      plan.awaits = true;
      StepResult r = run(plan);
      EXPECT_EQ(r.failure, "");
      all.transfers.insert(all.transfers.end(), r.transfers.begin(), r.transfers.end());
      all.lost.insert(all.lost.end(), r.lost.begin(), r.lost.end());
    }
    return all;
  }
  // The first plane's K of a block: the cache is the first memory that the executor allocates.
  std::span<float> block(BlockId b) {
    size_t floats = kBlockSize * 8;
    auto* memory = static_cast<float*>(device.allocated.front());
    return {memory + static_cast<size_t>(b) * floats, floats};
  }
  void fill(BlockId b, float value) { std::ranges::fill(block(b), value); }

  NotingDevice device;
  NotingModel model;
  TransferId oldest = 0, id_ = 0;
  std::unique_ptr<DiskTier> disk_;
  std::unique_ptr<DeviceExecutor> executor_;

 private:
  std::filesystem::path dir_;
  RealClock clock_;
  uint64_t step_ = 0;
};

TEST_F(DeviceDisk, WhatGoesOutComesBackAfterARestart) {
  fill(1, 11), fill(2, 22);
  StepPlan plan = next_plan();
  add(plan, Transfer::out, 1, 1);
  add(plan, Transfer::out, 2, 2);
  EXPECT_EQ(run(plan).transfers, (std::vector<TransferId>{1, 2}));
  stop();
  start();
  plan = next_plan();
  add(plan, Transfer::in, 1, 5);
  add(plan, Transfer::in, 2, 6);
  add(plan, Transfer::in, 3, 7);  // never written
  EXPECT_TRUE(run(plan).transfers.empty()) << "not before it is read";
  StepResult r = await(3);
  std::ranges::sort(r.transfers);
  EXPECT_EQ(r.transfers, (std::vector<TransferId>{3, 4}));
  EXPECT_EQ(r.lost, (std::vector<TransferId>{5}));
  EXPECT_EQ(block(5)[0], 11);
  EXPECT_EQ(block(6)[31], 22);
}

TEST_F(DeviceDisk, ALateReadIsDropped) {
  fill(1, 11);
  StepPlan plan = next_plan();
  add(plan, Transfer::out, 1, 1);
  run(plan);
  plan = next_plan();
  add(plan, Transfer::in, 1, 5);
  run(plan);
  disk_->flush();
  oldest = 3;
  plan = next_plan();
  add(plan, Transfer::in, 1, 6);
  StepResult r = run(plan);
  EXPECT_TRUE(r.transfers.empty());
  r = await(1);
  EXPECT_EQ(r.transfers, (std::vector<TransferId>{3}));
  EXPECT_EQ(block(5)[0], 0);
  EXPECT_EQ(block(6)[0], 11);
}

// Steps that fail before the copies to staging memory, among them and behind them: all of the
// memory comes back.
TEST_F(DeviceDisk, StagingMemoryComesBackFromWrites) {
  using Fail = NotingDevice::Fail;
  constexpr Fail kFails[] = {Fail::prepare, Fail::download, Fail::end, Fail::nowhere};
  fill(1, 11);
  for (size_t round = 0; round < 40; ++round) {
    Fail where = device.fail_next = kFails[round % 4];
    StepPlan plan = next_plan();
    for (int k = 0; k < 50; ++k) add(plan, Transfer::out, 1 + k % kPlaces, 1);
    StepResult r = run(plan);
    EXPECT_EQ(r.failure.empty(), where == Fail::nowhere);
    EXPECT_EQ(r.transfers.size(), where == Fail::nowhere ? 50u : 0u);
    EXPECT_TRUE(r.lost.empty()) << "with the disk idle there is room for all of a step";
    disk_->flush();
  }
}

// The same for memory that blocks were read to: of steps that fail before their copies and behind
// them.
TEST_F(DeviceDisk, StagingMemoryComesBackFromReads) {
  using Fail = NotingDevice::Fail;
  constexpr Fail kFails[] = {Fail::prepare, Fail::end, Fail::nowhere};
  fill(1, 11);
  StepPlan plan = next_plan();
  for (int k = 0; k < kPlaces; ++k) add(plan, Transfer::out, 1 + k, 1);
  run(plan);
  for (size_t round = 0; round < 24; ++round) {
    plan = next_plan();
    for (int k = 0; k < 50; ++k) add(plan, Transfer::in, 1 + k % kPlaces, 2);
    EXPECT_EQ(run(plan).failure, "");
    if (kFails[round % 3] == Fail::nowhere) {
      EXPECT_EQ(await(50).transfers.size(), 50u);
      continue;
    }
    disk_->flush();
    device.fail_next = kFails[round % 3];
    StepResult r = run(next_plan());
    EXPECT_NE(r.failure, "");
    EXPECT_TRUE(r.transfers.empty());
    oldest = id_ + 1;
  }
}

TEST_F(DeviceDisk, WritesBeyondStagingMemoryAreLost) {
  constexpr TransferId kNum = 300;  // there is memory for 256
  fill(1, 11);
  StepPlan plan = next_plan();
  for (TransferId k = 0; k < kNum; ++k)
    add(plan, Transfer::out, 1 + static_cast<int>(k % kPlaces), 1);
  StepResult r = run(plan);
  EXPECT_GT(r.transfers.size(), 0u);
  EXPECT_GT(r.lost.size(), 0u);
  std::vector<TransferId> all = r.transfers, expected;
  all.insert(all.end(), r.lost.begin(), r.lost.end());
  std::ranges::sort(all);
  for (TransferId id = 1; id <= kNum; ++id) expected.push_back(id);
  EXPECT_EQ(all, expected) << "each is named once";
}

}  // namespace
}  // namespace sluice
