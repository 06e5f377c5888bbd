// A device that computes nothing, for tests: it notes what it is told, and its memory is the
// host's, so that copies are real. A model to run on it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backend/device.h"
#include "base/str.h"
#include "model/model.h"

namespace sluice {

class NotingDevice final : public Device {
 public:
  std::string notes;
  int num_lanes = 0, num_marks = 0;
  size_t num_bytes = 0;  // allocated as the device's own

  std::string describe() const override { return "notes"; }
  void attach() override {}
  Buffer allocate(size_t bytes) override {
    num_bytes += bytes;
    return host_memory(bytes);
  }
  Buffer host_memory(size_t bytes) {
    void* memory = std::calloc(std::max<size_t>(bytes, 1), 1);
    allocated.push_back(memory);
    return {memory, bytes, [](void* p, size_t) { std::free(p); }};
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

  Buffer pinned(size_t bytes) override { return host_memory(bytes); }
  void upload(void* to, const void* from, size_t bytes) override {
    if (fail_next == Fail::upload) fail();
    packets.push_back(to);
    std::memcpy(to, from, bytes);
    if (note_uploads)
      uploads.push_back({static_cast<const uint32_t*>(from), bytes / sizeof(uint32_t)});
  }
  void download(void* to, const void* from, size_t bytes) override {
    if (fail_next == Fail::download) fail();
    std::memcpy(to, from, bytes);
  }
  void prefetch(void* to, const void* from, size_t bytes, int after, int done) override {
    EXPECT_LT(after, num_marks);
    std::memcpy(to, from, bytes);
    mark(done);
  }
  void download_beside(std::span<const HostCopy> copies,
                       void (*then)(void*),
                       void* context) override {
    for (const HostCopy& c : copies) std::memcpy(c.to, c.from, c.bytes);
    if (then) then(context);
    is_joined = false;
  }
  void join_downloads() override { is_joined = true; }
  void place_weights(std::span<std::byte>) override {}
  void reserve_lanes(int lanes, int marks) override { num_lanes = lanes, num_marks = marks; }
  size_t lane_bytes() const override { return 0; }
  void use_lane(int lane) override { notes += strf("lane%d ", lane); }
  void mark(int index) override {
    EXPECT_LT(index, num_marks);
    if (fail_next == Fail::end && index % 2 == 1) fail();
    if (static_cast<size_t>(index) >= marked_ms.size())
      marked_ms.resize(static_cast<size_t>(index) + 1);
    marked_ms[static_cast<size_t>(index)] = now_ms += ms_per_mark;
  }
  void wait(int index) override { EXPECT_LT(index, num_marks); }
  void start_after(int mark) override { notes += strf("after%d ", mark); }
  void start_after(const uint64_t* flag, uint64_t value) override {
    flags.push_back({flag, value});
  }
  float elapsed(int from, int to) override {
    auto at = [&](int i) {
      return static_cast<size_t>(i) < marked_ms.size() ? marked_ms[static_cast<size_t>(i)] : 0;
    };
    return at(to) - at(from);
  }
  void begin_capture() override {}
  int end_capture() override { return ++num_captured; }
  void abort_capture() noexcept override {}
  void launch(int) override {}
  void reserve_sampling(int, int) override {}
  size_t sampling_bytes(int, int, int) const override { return 0; }
  void prepare(const Packet&, const StepArrays& arrays, int, int) override {
    tables.push_back(arrays.tables);
    if (fail_next == Fail::prepare) fail();
  }
  void sample(const SampleStep&) override {
    ++num_sampled;
    if (fail_next == Fail::sample) fail();
  }
  void reserve_attention(const AttentionSpec&, int, int) override {}
  size_t attention_bytes(const AttentionSpec&, int, int) const override { return 0; }
  PrefixSharing prefix_sharing(const AttentionSpec&, KvType) const override { return {}; }
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

  void fail() {
    fail_next = Fail::nowhere;
    throw std::runtime_error("the launch failed");
  }

  float ms_per_mark = 0, now_ms = 0;  // device time passes at marks alone
  std::vector<float> marked_ms;
  int num_captured = 0, num_sampled = 0;
  std::vector<void*> allocated;
  std::vector<const void*> packets, tables;  // of the steps
  std::vector<std::span<const uint32_t>> uploads;
  bool note_uploads = false;
  bool is_joined = true;  // nothing is downloaded beside the lanes
  // Where the launch of the next step throws, once; end: when all of it is queued.
  enum class Fail : uint8_t { nowhere, upload, prepare, download, sample, end };
  Fail fail_next = Fail::nowhere;
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
  void reserve_in(std::span<std::byte>, int, int) override {}
  std::span<std::byte> scratch() const override { return {}; }
  Tensor states() const override {
    return {const_cast<float*>(residual.data()), DType::f32,
            static_cast<int64_t>(residual.size() / 8), 8, 8};
  }
  void embed(Backend&, const BatchView&) override {}
  void forward(Backend&, const BatchView&, std::span<const KvLayer>) override {
    if (std::exchange(fail_next, false)) throw std::runtime_error("the first layers failed");
    lanes.push_back(lane);
  }
  void logits(Backend&, std::span<const int32_t>, Tensor) override {}
  void best(Backend&, std::span<const int32_t>, Tensor, std::span<Best>) override {}
  void hidden(Backend&, std::span<const int32_t>, Tensor) override {}

  int num_lanes = 0, lane = 0;
  std::vector<int> lanes;       // of the forward passes
  std::vector<float> residual;  // [rows, 8] states()
  bool fail_next = false;

 private:
  ModelShape shape_;
};

}  // namespace sluice
