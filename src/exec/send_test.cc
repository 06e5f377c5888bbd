// Blocks that a step sends while it computes: which bytes are in their places when the exporter is
// told of them, and at the step's end.
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "backend/ref/ref_backend.h"
#include "exec/device_executor.h"
#include "exec/device_fake.h"
#include "exec/model_executor.h"

namespace sluice {
namespace {

constexpr int kLayerBlock = 4;

// Writes the number of a layer, from 1, to all of its blocks.
class LayerModel final : public Model {
 public:
  explicit LayerModel(int num_layers) {
    shape_ = {.arch = "llama", .num_layers = num_layers, .hidden = 8, .vocab = 6, .windows = {}};
    shape_.num_heads = shape_.num_kv_heads = 1;
    shape_.head_dim = 8;
  }
  const ModelShape& shape() const override { return shape_; }
  size_t weight_bytes() const override { return 0; }
  size_t step_bytes() const override { return 0; }
  size_t scratch_bytes(int, int) const override { return 0; }
  void reserve(Backend&, int, int, int) override {}
  void use_lane(int) override {}
  void reserve_in(std::span<std::byte>, int, int) override {}
  std::span<std::byte> scratch() const override { return {}; }
  Tensor states() const override { return {}; }
  void embed(Backend&, const BatchView&) override {}
  void forward(Backend&, const BatchView&, std::span<const KvLayer> kv) override {
    watched = watch_ != nullptr;
    for (size_t l = 0; l < kv.size(); ++l) {
      if (static_cast<int>(l) == fails_at) throw std::runtime_error("a layer failed");
      for (void* side : {kv[l].k, kv[l].v})
        std::memset(side, static_cast<int>(l) + 1, kv[l].block_bytes() * 4);
      if (watch_ && tells) watch_->wrote(static_cast<int>(l));
    }
  }
  void logits(Backend&, std::span<const int32_t>, Tensor) override {}
  void best(Backend&, std::span<const int32_t>, Tensor, std::span<Best>) override {}
  void hidden(Backend&, std::span<const int32_t>, Tensor) override {}

  bool watched = false, tells = true;
  int fails_at = -1;

 private:
  ModelShape shape_;
};

// By a CPU's executor, and by a device's.
class SendTest : public testing::TestWithParam<bool>, public KvExporter {
 protected:
  void open(int num_layers) {
    model_ = std::make_unique<LayerModel>(num_layers);
    ExecutorConfig c;
    c.num_blocks = 8;
    c.block_size = kLayerBlock;
    c.max_seqs = 1;
    c.max_len = 16;
    c.max_step_tokens = 8;
    c.kv_type = DType::f32;
    c.pipeline = Pipeline::sync;
    c.num_places = 4;
    c.sender = this;
    if (GetParam()) {
      auto executor = std::make_unique<DeviceExecutor>(device_, *model_, c, clock_, true);
      tier_ = &executor->host_tier();
      executor_ = std::move(executor);
    } else {
      auto executor = std::make_unique<ModelExecutor>(*backend_, *model_, c, clock_);
      tier_ = &executor->host_tier();
      executor_ = std::move(executor);
    }
  }
  // A prompt's chunk of two blocks, both to places.
  const StepResult& run(std::vector<Transfer> transfers = {{Transfer::send, 1, 4, 1},
                                                           {Transfer::send, 3, 2, 2}}) {
    StepPlan plan;
    plan.step = ++step_;
    RowOp op;
    op.num_prompt = 12;
    plan.sampling.emplace_back();
    plan.rows.push_back(op);
    plan.edits = {{0, 0, 1, 0}, {0, 1, 3, 0}};
    plan.slices = {{.count = 8}};
    plan.tokens.assign(8, 1);
    plan.num_tokens = 8;
    plan.transfers = std::move(transfers);
    executor_->launch(plan);
    return executor_->wait();
  }
  // The first `planes` of a place hold their layers.
  bool holds(BlockId place, size_t planes) const {
    const std::byte* at = tier_->at(place);
    for (size_t k = 0; k < planes * kPlaneBytes; ++k)
      if (at[k] != static_cast<std::byte>(k / kPlaneBytes + 1)) return false;
    return true;
  }

  void offered(LeaseId) noexcept override {}
  bool exported(LeaseId, const PlacedBlock&) noexcept override { return true; }
  void lost(LeaseId, const PlacedBlock&) noexcept override {}
  void leaving(LeaseId, const PlacedBlock&, uint64_t) noexcept override {}
  void written(uint64_t step, size_t bytes) noexcept override {
    EXPECT_EQ(step, step_);
    EXPECT_EQ(bytes % kPlaneBytes, 0u);
    marks_.push_back(bytes / kPlaneBytes);
    EXPECT_TRUE(holds(4, marks_.back()) && holds(2, marks_.back())) << marks_.back();
  }
  void cleared() noexcept override {}

  RealClock clock_;
  std::unique_ptr<Backend> backend_ = make_ref_backend();
  std::unique_ptr<LayerModel> model_;
  NotingDevice device_;
  const HostTier* tier_ = nullptr;
  static constexpr size_t kPlaneBytes = 2 * kLayerBlock * 8 * sizeof(float);
  uint64_t step_ = 0;
  std::vector<size_t> marks_;  // planes; written by the executor's thread, read after wait()
  std::unique_ptr<Executor> executor_;
};
INSTANTIATE_TEST_SUITE_P(Executors, SendTest, testing::Bool());

TEST_P(SendTest, EveryLayerIsTold) {
  open(5);
  const StepResult& r = run();
  EXPECT_EQ(r.failure, "");
  EXPECT_EQ(r.transfers, (std::vector<TransferId>{1, 2}));
  EXPECT_EQ(marks_, (std::vector<size_t>{1, 2, 3, 4}));  // the last one is the step's end
  EXPECT_TRUE(holds(4, 5) && holds(2, 5));
  EXPECT_TRUE(device_.is_joined);
  EXPECT_EQ(run({}).failure, "");
  EXPECT_FALSE(model_->watched);
  EXPECT_EQ(marks_.size(), 4u);
}

TEST_P(SendTest, ManyLayersAreToldInGroups) {
  open(70);
  EXPECT_EQ(run().failure, "");
  ASSERT_EQ(marks_.size(), 23u);
  EXPECT_EQ(marks_[0], 3u);
  EXPECT_EQ(marks_.back(), 69u);
  EXPECT_TRUE(holds(4, 70) && holds(2, 70));
}

TEST_P(SendTest, AModelThatSaysNothingIsSentAtItsEnd) {
  open(5);
  model_->tells = false;
  EXPECT_EQ(run().failure, "");
  EXPECT_TRUE(marks_.empty());
  EXPECT_TRUE(holds(4, 5) && holds(2, 5));
}

TEST_P(SendTest, AFailedStepSendsNoMore) {
  open(5);
  model_->fails_at = 2;
  const StepResult& r = run();
  EXPECT_EQ(r.failure, "a layer failed");
  EXPECT_EQ(marks_, (std::vector<size_t>{1, 2}));
  EXPECT_TRUE(device_.is_joined);  // before the places are others'
  model_->fails_at = -1;
  marks_.clear();
  EXPECT_EQ(run().failure, "");
  EXPECT_EQ(marks_.size(), 4u);
}

TEST_P(SendTest, PlacesThatAreNotThereAreRefused) {
  open(2);
  EXPECT_EQ(run({{Transfer::send, 1, 5, 1}}).failure,
            "this executor has no place 5 in host memory, only 4");
  EXPECT_EQ(run({{Transfer::send, 1, 0, 1}}).failure,
            "this executor has no place 0 in host memory, only 4");
  EXPECT_EQ(run().failure, "");
}

}  // namespace
}  // namespace sluice
