// Parts of a model one after the other: what the second begins with, masks that come early, a host
// part that fails. Results are compared with the whole model's in tests/engine_property_test.cc.
#include "exec/split_executor.h"

#include <gtest/gtest.h>

#include "backend/ref/ref_backend.h"
#include "exec/device_executor.h"
#include "exec/device_fake.h"

namespace sluice {
namespace {

TEST(CacheGroups, APartHasTheSameGroupsAndFewerPlanes) {
  const CacheGroups all = split_layers(std::vector<int>{8, 0, 8, 0, 8}, 3);
  ASSERT_EQ(all.windows, (std::vector<int>{0, 8}));
  const CacheGroups first = part_of(all, {0, 2}), last = part_of(all, {2, 5});
  EXPECT_EQ(first.windows, all.windows);
  EXPECT_EQ(last.windows, all.windows);
  EXPECT_EQ(first.num_planes, 1);
  EXPECT_EQ(last.num_planes, 2);
  ASSERT_EQ(last.layers.size(), 3u);
  const int groups[] = {1, 0, 1}, planes[] = {0, 0, 1};
  for (size_t l = 0; l < 3; ++l) {
    EXPECT_EQ(last.layers[l].group, groups[l]);
    EXPECT_EQ(last.layers[l].plane, planes[l]);
  }
  const CacheGroups whole = part_of(all, {});
  EXPECT_EQ(whole.num_planes, 3);
  EXPECT_EQ(whole.layers.size(), 5u);
}

// The host's part is a model that computes nothing but its states.
class SplitExecutorTest : public testing::Test {
 protected:
  SplitExecutorTest() {
    config_.num_blocks = 8;
    config_.max_seqs = 4;
    config_.max_len = 64;
    config_.max_step_tokens = 8;
    config_.kv_type = DType::f32;
    config_.pipeline = Pipeline::sync;
    config_.groups = one_cache_group(1);
    first_.residual.assign(8 * 8, 0);
    last_.residual.assign(8 * 8, 0);
    states_.resize(8 * 8);
    ExecutorConfig device = config_;
    device.states = states_.data();
    rest_ = std::make_unique<DeviceExecutor>(device_, last_, device, clock_, true);
    split_ =
        std::make_unique<SplitExecutor>(*host_, first_, config_, clock_, states_.data(), *rest_);
  }
  void launch(int num_masks = 0) {
    StepPlan plan;
    plan.step = ++step_;
    RowOp op;
    op.num_prompt = 1;
    plan.sampling.emplace_back();
    plan.rows.push_back(op);
    plan.edits.push_back({0, 0, 1, 0});
    Slice s;
    s.count = 1;
    s.want = Want::last;
    if (num_masks > 0) s.mask = 0;
    plan.tokens.push_back(1);
    plan.slices.push_back(s);
    plan.num_tokens = plan.num_decode = 1;
    split_->launch(plan);
  }

  RealClock clock_;
  ExecutorConfig config_;
  NotingDevice device_;
  NotingModel first_, last_;
  std::unique_ptr<Backend> host_ = make_ref_backend();
  std::vector<float> states_;
  std::unique_ptr<DeviceExecutor> rest_;
  std::unique_ptr<SplitExecutor> split_;
  uint64_t step_ = 0;
};

TEST_F(SplitExecutorTest, TheRestBeginsWithTheStatesOfTheFirstLayers) {
  for (size_t i = 0; i < first_.residual.size(); ++i) first_.residual[i] = static_cast<float>(i);
  launch();
  const StepResult& r = split_->wait();
  EXPECT_EQ(r.failure, "");
  EXPECT_EQ(r.step, 1u);
  EXPECT_EQ(r.tokens.size(), 1u);
  EXPECT_EQ(first_.lanes.size(), 1u);  // forward passes
  EXPECT_EQ(last_.lanes.size(), 1u);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(last_.residual[i], static_cast<float>(i));
  EXPECT_EQ(last_.residual[8], 0) << "only the step's rows";
}

// The device's part is launched when the host's is done: masks must not be lost before.
TEST_F(SplitExecutorTest, MasksMayComeBeforeTheRestIsLaunched) {
  launch(1);
  StepMasks masks;
  masks.step = 1;
  split_->masks(std::move(masks));
  EXPECT_EQ(split_->wait().failure, "");
  ASSERT_EQ(device_.flags.size(), 1u);
  EXPECT_EQ(*device_.flags[0].first, device_.flags[0].second) << "the step would wait for ever";
}

TEST_F(SplitExecutorTest, AFailureOfTheFirstLayersIsTheSteps) {
  first_.fail_next = true;
  launch();
  const StepResult& r = split_->wait();
  EXPECT_EQ(r.step, 1u);
  EXPECT_EQ(r.failure, "the first layers failed");
  EXPECT_TRUE(last_.lanes.empty());
  launch();
  EXPECT_EQ(split_->wait().failure, "");
  EXPECT_EQ(last_.lanes.size(), 1u);
}

}  // namespace
}  // namespace sluice
