// Which lane of a device a step runs in, which steps of other lanes it starts after, and how it
// waits for masks. The device computes nothing and notes what it is told.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/str.h"
#include "exec/device_executor.h"

namespace sluice {
namespace {

class NotingDevice final : public Device {
 public:
  std::string notes;
  int num_lanes = 0, num_marks = 0;

  std::string describe() const override { return "notes"; }
  void attach() override {}
  Buffer allocate(size_t bytes) override {
    return {std::calloc(std::max<size_t>(bytes, 1), 1), bytes,
            [](void* p, size_t) { std::free(p); }};
  }
  Weight load(std::span<const WeightSegment>, std::vector<float>) override { return {}; }
  bool keeps_source(const Weight&, size_t) const override { return false; }
  void embed(Tensor, const Weight&, std::span<const int32_t>) override {}
  void rope_table(float*, const RopeSpec&, std::span<const int32_t>) override {}
  void rms_norm(const Act&, Tensor, const float*, float, const int32_t*) override {}
  void add_rms_norm(const Act&, Tensor, Tensor, const float*, float) override {}
  void layer_norm(const Act&, Tensor, const LayerNormSpec&, const int32_t*) override {}
  void add_layer_norm(const Act&, Tensor, Tensor, const LayerNormSpec&) override {}
  void add(Tensor, Tensor) override {}
  void scale(Tensor, float) override {}
  void softcap(Tensor, float) override {}
  void matmul(Tensor, const Act&, const Weight&) override {}
  void finish_qkv(Tensor, const QkvSpec&, const BatchView&, KvLayer) override {}
  void attention(const Act&, Tensor, const AttentionSpec&, const BatchView&, KvLayer) override {}
  void activate(const Act&, Tensor, Activation) override {}
  void activate_gated(const Act&, Tensor, Activation) override {}
  void copy_blocks(std::span<const KvLayer>, std::span<const BlockCopy>) override {}
  void parallel(int, void (*)(void*, int), void*) override {}

  Buffer pinned(size_t bytes) override { return allocate(bytes); }
  void upload(void* to, const void* from, size_t bytes) override {
    packets.push_back(to);
    if (note_uploads)
      uploads.push_back({static_cast<const uint32_t*>(from), bytes / sizeof(uint32_t)});
  }
  void download(void*, const void*, size_t) override {}
  void reserve_lanes(int lanes, int marks) override { num_lanes = lanes, num_marks = marks; }
  size_t lane_bytes() const override { return 0; }
  void use_lane(int lane) override { notes += strf("lane%d ", lane); }
  void mark(int index) override { EXPECT_LT(index, num_marks); }
  void wait(int index) override { EXPECT_LT(index, num_marks); }
  void start_after(int mark) override { notes += strf("after%d ", mark); }
  void start_after(const uint64_t* flag, uint64_t value) override {
    flags.push_back({flag, value});
  }
  float elapsed(int, int) override { return 0; }
  void begin_capture() override {}
  int end_capture() override { return ++num_captured; }
  void abort_capture() noexcept override {}
  void launch(int) override {}
  void reserve_sampling(int, int) override {}
  size_t sampling_bytes(int, int) const override { return 0; }
  void prepare(const Packet&, const StepArrays& arrays, int, int) override {
    tables.push_back(arrays.tables);
  }
  void sample(const SampleStep&) override { ++num_sampled; }
  void reserve_attention(const AttentionSpec&, int, int) override {}
  size_t attention_bytes(const AttentionSpec&, int, int) const override { return 0; }
  void tune(int, int) override {}
  size_t free_memory() const override { return 0; }
  DeviceLimits measure_limits() override { return {}; }
  void begin_profile() override {}
  std::vector<OpTime> end_profile() override { return {}; }
  void abort_profile() noexcept override {}
  void replace_op(const OpTime&, OpMode) override {}
  double time_captured(const std::function<void()>&, std::vector<std::string>*) override {
    return 0;
  }

  int num_captured = 0, num_sampled = 0;
  std::vector<const void*> packets, tables;  // of the steps
  std::vector<std::span<const uint32_t>> uploads;
  bool note_uploads = false;
  std::vector<std::pair<const uint64_t*, uint64_t>> flags;  // that a lane waits for
};

class NotingModel final : public Model {
 public:
  NotingModel() {
    shape_.num_layers = shape_.num_heads = shape_.num_kv_heads = 1;
    shape_.hidden = shape_.head_dim = 8;
    shape_.vocab = 70;
    shape_.max_len = 64;
    shape_.windows = {0};
  }
  const ModelShape& shape() const override { return shape_; }
  size_t weight_bytes() const override { return 0; }
  size_t step_bytes() const override { return 0; }
  size_t scratch_bytes(int, int) const override { return 0; }
  void reserve(Backend&, int, int, int num) override { num_lanes = num; }
  void use_lane(int which) override { lane = which; }
  void forward(Backend&, const BatchView&, std::span<const KvLayer>) override {
    lanes.push_back(lane);
  }
  void logits(Backend&, std::span<const int32_t>, Tensor) override {}
  void best(Backend&, std::span<const int32_t>, Tensor, std::span<Best>) override {}
  void hidden(Backend&, std::span<const int32_t>, Tensor) override {}

  int num_lanes = 0, lane = 0;
  std::vector<int> lanes;  // of the forward passes

 private:
  ModelShape shape_;
};

class DeviceLanes : public testing::Test {
 protected:
  void start(Pipeline pipeline) {
    ExecutorConfig c;
    c.num_blocks = 8;
    c.max_seqs = 4;
    c.max_len = 64;
    c.max_step_tokens = 8;
    c.kv_type = DType::f32;
    c.pipeline = pipeline;
    executor_ = std::make_unique<DeviceExecutor>(device, model, c, clock_, true);
    device.notes.clear();
  }
  // A step that decodes the slots; those in `opened` are opened first.
  std::string launch(const std::vector<Slot>& slots,
                     const std::vector<Slot>& opened = {},
                     int num_masks = 0) {
    StepPlan plan;
    plan.step = ++step_;
    for (Slot slot : opened) {
      RowOp op;
      op.slot = slot;
      op.num_prompt = 1;
      op.sampling = static_cast<uint32_t>(plan.sampling.size());
      plan.sampling.emplace_back();
      plan.rows.push_back(op);
      plan.edits.push_back({slot, 0, static_cast<BlockId>(slot + 1), 0});
    }
    for (Slot slot : slots) {
      Slice s;
      s.slot = slot;
      s.count = 1;
      s.want = Want::last;
      s.token_at = static_cast<uint32_t>(plan.tokens.size());
      plan.tokens.push_back(1);
      if (static_cast<int>(plan.slices.size()) < num_masks)
        s.mask = static_cast<int32_t>(plan.slices.size());
      plan.slices.push_back(s);
    }
    plan.num_tokens = plan.num_decode = static_cast<int32_t>(slots.size());
    executor_->launch(plan);
    return std::exchange(device.notes, "");
  }
  void wait() { EXPECT_EQ(executor_->wait().failure, ""); }

  NotingDevice device;
  NotingModel model;
  std::unique_ptr<DeviceExecutor> executor_;

 private:
  RealClock clock_;
  uint64_t step_ = 0;
};

TEST_F(DeviceLanes, OneLaneIsNeverChanged) {
  start(Pipeline::overlap);
  EXPECT_EQ(device.num_lanes, 1);
  EXPECT_EQ(launch({0}, {0}), "");
  EXPECT_EQ(launch({0}), "");
  wait();
  EXPECT_EQ(launch({1}, {1}), "");
  wait(), wait();
}

TEST_F(DeviceLanes, StepsTakeTurnsWithMemoryOfTheirOwn) {
  start(Pipeline::double_buffer);
  EXPECT_EQ(device.num_lanes, 2);
  EXPECT_EQ(model.num_lanes, 2);
  // Three in flight, the result that is read, and the marks of the one before, two marks each.
  EXPECT_EQ(device.num_marks, 10);
  EXPECT_EQ(launch({0}, {0}), "lane1 ");
  EXPECT_EQ(launch({1}, {1}), "lane0 ");
  EXPECT_EQ(launch({2}, {2}), "lane1 ");
  wait();
  EXPECT_EQ(launch({0}), "lane0 ");  // its last step is done: any lane will do
  wait(), wait(), wait();
  // A graph per lane, captured when it first comes up.
  EXPECT_EQ(model.lanes, (std::vector{1, 0}));
  EXPECT_EQ(device.num_captured, 2);
  EXPECT_NE(device.packets[0], device.packets[1]);
  EXPECT_EQ(device.packets[0], device.packets[2]);
  for (const void* t : device.tables) EXPECT_EQ(t, device.tables[0]);  // tables are shared
}

// A sequence was cancelled while its step runs, and another one gets its slot.
TEST_F(DeviceLanes, AStepStartsAfterThoseThatStillUseItsSlots) {
  start(Pipeline::interleave);
  EXPECT_EQ(launch({0, 1}, {0, 1}), "lane1 ");
  EXPECT_EQ(launch({1, 2}, {1, 2}), "lane0 after1 ");
  wait();
  EXPECT_EQ(launch({3}, {3}), "lane1 ");
  wait();
  EXPECT_EQ(launch({2}), "lane0 ");
  wait();
  EXPECT_EQ(launch({2, 3}, {2}), "lane1 after7 ");
  wait(), wait();
}

TEST_F(DeviceLanes, AStepUnderMasksWaitsForThem) {
  start(Pipeline::overlap);
  launch({0}, {0});
  EXPECT_TRUE(device.flags.empty());
  launch({0, 1, 2}, {1, 2}, 2);
  // Its masks wait for the step before, and this thread for nothing.
  EXPECT_TRUE(device.flags.empty());
  wait();
  EXPECT_TRUE(device.flags.empty());
  device.note_uploads = true;
  launch({3}, {3});
  ASSERT_EQ(device.flags.size(), 1u);
  auto [flag, value] = device.flags[0];
  std::span<const uint32_t> masks = device.uploads.at(0);  // the packet is the next
  ASSERT_EQ(masks.size(), 2u * 3);
  EXPECT_LT(*flag, value);
  executor_->masks({1, {{7}}});  // of the step before, which has none
  executor_->masks({4, {{7}}});  // of a step that is not launched
  EXPECT_LT(*flag, value);
  executor_->masks({2, {{5, 6}}});  // what is not there is forbidden
  EXPECT_EQ(*flag, value);
  EXPECT_EQ(std::vector(masks.begin(), masks.end()), (std::vector<uint32_t>{5, 6, 0, 0, 0, 0}));
  executor_->masks({2, {{1, 1, 1}, {1, 1, 1}}});  // the first counts
  EXPECT_EQ(masks[0], 5u);
  wait(), wait();
  // The place is used again, for another step.
  for (int i = 0; i < 6; ++i) launch({0}, {}, 1), wait();
  ASSERT_EQ(device.flags.size(), 7u);
  EXPECT_LT(*device.flags[6].first, device.flags[6].second);
  auto [last, wanted] = device.flags[6];
  executor_->masks({9, {{9, 9, 9}}});
  EXPECT_EQ(*last, wanted);
}

// A step captured for one kind of sampling does not serve another.
TEST_F(DeviceLanes, AStepUnderMasksIsCapturedUpToItsLogits) {
  start(Pipeline::overlap);
  launch({0}, {0}), wait();
  EXPECT_EQ(device.num_sampled, 1);  // within the capture
  launch({0}, {}, 1), wait();
  launch({0}, {}, 1), wait();
  EXPECT_EQ(device.num_captured, 2);
  EXPECT_EQ(device.num_sampled, 3);  // outside of it, each time
  launch({0}), wait();
  EXPECT_EQ(device.num_sampled, 3);
  EXPECT_EQ(device.num_captured, 2);
}

TEST_F(DeviceLanes, WorkspaceCountsEveryLane) {
  ExecutorConfig c;
  c.max_seqs = 4, c.max_len = 64, c.max_step_tokens = 8;
  c.pipeline = Pipeline::overlap;
  size_t one = DeviceExecutor::workspace_bytes(model, c);
  c.pipeline = Pipeline::interleave;
  size_t two = DeviceExecutor::workspace_bytes(model, c), tables = 5 * 4 * sizeof(int32_t);
  EXPECT_EQ(two - one, one - (tables + 255) / 256 * 256);
}

}  // namespace
}  // namespace sluice
