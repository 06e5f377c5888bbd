// Which lane of a device a step runs in, which steps of other lanes it starts after, and how it
// waits for masks. The device computes nothing and notes what it is told.
#include <gtest/gtest.h>

#include <optional>

#include "exec/device_executor.h"
#include "exec/device_fake.h"

namespace sluice {
namespace {

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
    c.trace = track;
    executor_ = std::make_unique<DeviceExecutor>(device, model, c, clock_, true);
    device.notes.clear();
  }
  // A step that decodes the slots; those in `opened` are opened first.
  std::string launch(const std::vector<Slot>& slots,
                     const std::vector<Slot>& opened = {},
                     int num_masks = 0,
                     std::optional<Transfer> transfer = {}) {
    StepPlan plan;
    plan.step = ++step_;
    if (transfer) plan.transfers.push_back(*transfer);
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
  Trace trace;
  TraceTrack* track = nullptr;
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

// --trace: a step's parts as the device's own marks have them, read when the step is over.
TEST_F(DeviceLanes, PartsOfAStepAreTraced) {
  track = trace.track("parts of a step");
  device.ms_per_mark = 1;
  start(Pipeline::overlap);
  EXPECT_EQ(device.num_marks, 4 * (2 + 4));
  launch({0}, {0});
  launch({0, 1}, {1}, 0, Transfer{.kind = Transfer::copy, .from = 1, .to = 3, .id = 1});
  wait(), wait();
  const std::string json = trace.to_json();
  auto count = [&](const std::string& text) {
    size_t num = 0;
    for (size_t at = json.find(text); at != std::string::npos; at = json.find(text, at + 1)) ++num;
    return num;
  };
  // Captured steps sample within the forward pass; only the second one copies.
  for (const char* part : {"prepare", "forward", "results"})
    EXPECT_EQ(count(strf("\"name\":\"%s\"", part)), 2u) << part;
  EXPECT_EQ(count("\"name\":\"copies\""), 1u);
  EXPECT_EQ(count("\"name\":\"sample\""), 0u);
  EXPECT_EQ(count("\"dur\":1000.000"), 7u);  // a millisecond from mark to mark
  EXPECT_EQ(count("\"args\":{\"step\":2}"), 4u);
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

// A fork's copy, whose blocks another sequence may have been given by the next step: nothing else
// says that they have to do with each other.
TEST_F(DeviceLanes, AStepWithCopiesIsInOrderWithAllOthers) {
  start(Pipeline::interleave);
  Transfer copy;
  copy.kind = Transfer::copy;
  copy.from = 1, copy.to = 2;
  EXPECT_EQ(launch({0}, {0}), "lane1 ");
  EXPECT_EQ(launch({1}, {1}, 0, copy), "lane0 after1 ");
  wait();
  EXPECT_EQ(launch({2}, {2}), "lane1 after3 ");
  wait();
  EXPECT_EQ(launch({3}, {3}), "lane0 ");
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
