// A model in two parts with prompts through a device, where something fails: the step fails, and
// the next one computes what it would have without. Everything is on the reference backend, so that
// bits can be compared.
#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "backend/ref/ref_backend.h"
#include "exec/model_executor.h"
#include "exec/split_executor.h"
#include "ref_device.h"
#include "tensor/gguf.h"

namespace sluice {
namespace {

constexpr int kHostLayers = 5;  // of seven: slots are used in turns
constexpr size_t kSlotBytes = size_t{1} << 20;

// The host's layers; a forward pass may be told to fail.
class FailingModel final : public Model {
 public:
  explicit FailingModel(std::unique_ptr<Model> model) : model_(std::move(model)) {}
  bool fails = false;

  const ModelShape& shape() const override { return model_->shape(); }
  size_t weight_bytes() const override { return model_->weight_bytes(); }
  size_t step_bytes() const override { return model_->step_bytes(); }
  size_t scratch_bytes(int t, int o) const override { return model_->scratch_bytes(t, o); }
  void reserve(Backend& b, int t, int o, int lanes) override { model_->reserve(b, t, o, lanes); }
  void reserve_in(std::span<std::byte> m, int t, int o) override { model_->reserve_in(m, t, o); }
  std::span<std::byte> scratch() const override { return model_->scratch(); }
  void use_lane(int lane) override { model_->use_lane(lane); }
  Tensor states() const override { return model_->states(); }
  void embed(Backend& b, const BatchView& batch) override { model_->embed(b, batch); }
  void forward(Backend& b, const BatchView& batch, std::span<const KvLayer> kv) override {
    if (std::exchange(fails, false)) throw std::runtime_error("the host failed");
    model_->forward(b, batch, kv);
  }
  void logits(Backend& b, std::span<const int32_t> r, Tensor out) override {
    model_->logits(b, r, out);
  }
  void best(Backend& b, std::span<const int32_t> r, Tensor s, std::span<Best> out) override {
    model_->best(b, r, s, out);
  }
  void hidden(Backend& b, std::span<const int32_t> r, Tensor out) override {
    model_->hidden(b, r, out);
  }

 private:
  std::unique_ptr<Model> model_;
};

// The rest; a step may be told to fail.
class FailingRest final : public Executor {
 public:
  explicit FailingRest(Executor& inner) : inner_(inner) {}
  bool fails = false;
  void launch(const StepPlan& plan) override { inner_.launch(plan); }
  void masks(StepMasks masks) override { inner_.masks(std::move(masks)); }
  const StepResult& wait() override {
    result_ = inner_.wait();
    if (std::exchange(fails, false)) result_.failure = "the rest failed";
    return result_;
  }

 private:
  Executor& inner_;
  StepResult result_;
};

class SplitFailure : public testing::Test {
 protected:
  SplitFailure() {
    file_ = open_gguf(SLUICE_SOURCE_DIR "/tests/golden/models/gemma3.gguf").value();
    LoadOptions load;
    load.layers.first = kHostLayers;
    last_ = load_model(*file_, *backend_, load).value();
    LayerStream::Sizes sizes;
    sizes.num_layers = kHostLayers;
    sizes.slot_bytes = kSlotBytes;
    stream_ = LayerStream::load(device_, *file_, {}, sizes).value();
    load.layers = {0, kHostLayers};
    first_ = std::make_unique<FailingModel>(load_model(*file_, *host_, load).value());
    config_.num_blocks = 32;
    config_.max_seqs = 2;
    config_.max_len = 128;
    config_.max_step_tokens = 64;
    config_.kv_type = DType::f32;
    config_.pipeline = Pipeline::sync;
    const int num_layers = last_->shape().num_layers;
    const CacheGroups groups = one_cache_group(num_layers);
    states_ = host_->allocate(states_bytes(last_->shape(), config_.max_step_tokens));
    ExecutorConfig rest = config_;
    rest.groups = part_of(groups, {kHostLayers, num_layers});
    rest.states = static_cast<const float*>(states_.data());
    config_.groups = part_of(groups, {0, kHostLayers});
    inner_ = std::make_unique<ModelExecutor>(*backend_, *last_, rest, clock_);
    rest_ = std::make_unique<FailingRest>(*inner_);
    stream_->reserve(LayerStream::sizes_for(config_, config_.groups, kHostLayers, kSlotBytes),
                     last_->scratch());
    split_ =
        std::make_unique<SplitExecutor>(*host_, *first_, config_, clock_,
                                        static_cast<float*>(states_.data()), *rest_, stream_.get());
  }

  // A prompt of `count` tokens from `pos` on in slot 0, which runs through the device, beside one
  // token in slot 1, which the host computes.
  StepResult run(int pos, int count) {
    StepPlan plan;
    plan.step = ++step_;
    for (Slot slot : {Slot{0}, Slot{1}}) {
      RowOp op;
      op.slot = slot;
      op.num_prompt = 120;
      op.sampling = static_cast<uint32_t>(plan.sampling.size());
      SamplingSpec spec;
      spec.temperature = 0;
      spec.num_logprobs = 2;
      plan.sampling.push_back(spec);
      plan.rows.push_back(op);
      for (int i = 0; i < 8; ++i)
        plan.edits.push_back(
            {slot, static_cast<uint32_t>(i), static_cast<BlockId>(1 + slot * 8 + i), 0});
    }
    Slice one;
    one.slot = 1, one.count = 1, one.want = Want::last;
    plan.tokens.push_back(5);
    plan.slices.push_back(one);
    Slice many;
    many.pos = pos, many.count = count, many.want = Want::last, many.token_at = 1;
    for (int k = 0; k < count; ++k) plan.tokens.push_back(3 + (pos + k) % 40);
    plan.slices.push_back(many);
    plan.num_tokens = 1 + count;
    plan.num_decode = 1;
    split_->launch(plan);
    return split_->wait();
  }
  // The prompt in two steps; the second has the first one's context.
  std::vector<TopLogprob> both() {
    const StepResult a = run(0, 40), b = run(40, 30);
    EXPECT_EQ(a.failure, "");
    EXPECT_EQ(b.failure, "");
    std::vector<TopLogprob> top = a.top;
    top.insert(top.end(), b.top.begin(), b.top.end());
    return top;
  }
  void expect_as_before(const std::vector<TopLogprob>& before) {
    const std::vector<TopLogprob> after = both();
    ASSERT_EQ(after.size(), before.size());
    EXPECT_EQ(std::memcmp(after.data(), before.data(), before.size() * sizeof before[0]), 0);
  }

  RealClock clock_;
  std::unique_ptr<Checkpoint> file_;
  std::unique_ptr<Backend> backend_ = make_ref_backend(), host_ = make_ref_backend();
  RefDevice device_;
  Buffer states_;
  std::unique_ptr<Model> last_;
  std::unique_ptr<FailingModel> first_;
  std::unique_ptr<LayerStream> stream_;
  ExecutorConfig config_;
  std::unique_ptr<ModelExecutor> inner_;
  std::unique_ptr<FailingRest> rest_;
  std::unique_ptr<SplitExecutor> split_;
  uint64_t step_ = 0;
};

TEST_F(SplitFailure, OfTheDeviceBetweenLayers) {
  split_->set_streams_from(16);
  const std::vector<TopLogprob> before = both();
  EXPECT_EQ(split_->num_streamed_rows(), 70u);
  for (int product : {1, 4, 9, 13, 20}) {  // four to a layer
    device_.fails_in = product;
    EXPECT_EQ(run(0, 40).failure, "the device failed") << product;
    expect_as_before(before);
  }
}

TEST_F(SplitFailure, OfTheHostWhileTheDeviceRuns) {
  split_->set_streams_from(16);
  const std::vector<TopLogprob> before = both();
  first_->fails = true;
  EXPECT_EQ(run(0, 40).failure, "the host failed");
  expect_as_before(before);
}

TEST_F(SplitFailure, OfTheRest) {
  split_->set_streams_from(16);
  const std::vector<TopLogprob> before = both();
  rest_->fails = true;
  EXPECT_EQ(run(0, 40).failure, "the rest failed");
  expect_as_before(before);
}

// The first step measures, whatever it is.
TEST_F(SplitFailure, TheThresholdIsMeasured) {
  EXPECT_EQ(split_->streams_from(), 0);
  both();
  EXPECT_GE(split_->streams_from(), 16);
}

// Where the device fails while it is measured, all rows are the host's.
TEST_F(SplitFailure, AThresholdThatCannotBeMeasured) {
  first_->fails = true;  // measuring runs the host's layers too
  both();
  EXPECT_EQ(split_->streams_from(), 0);
  EXPECT_EQ(split_->num_streamed_rows(), 0u);
}

// Contexts that do not fit beside each other: the host computes what has no room.
TEST_F(SplitFailure, SharedContextIsStagedOnce) {
  const int64_t stride = table_len(config_);
  std::vector<int32_t> tables(static_cast<size_t>(2 * stride));
  for (int64_t i = 0; i < stride; ++i) {
    tables[static_cast<size_t>(i)] = static_cast<int32_t>(1 + i);
    tables[static_cast<size_t>(stride + i)] = static_cast<int32_t>(1 + i);
  }
  // Room for 64 / 16 + 8 + 2 = 14 blocks; each slice has 7 blocks of context and one of its own.
  stream_->begin();
  EXPECT_TRUE(stream_->add({0, 16, 112, 0}, tables));
  EXPECT_TRUE(stream_->add({16, 16, 112, 1}, tables)) << "their context is the same";
  for (int64_t i = 0; i < stride; ++i) tables[static_cast<size_t>(stride + i)] += 8;
  stream_->begin();
  EXPECT_TRUE(stream_->add({0, 16, 112, 0}, tables));
  EXPECT_FALSE(stream_->add({16, 16, 112, 1}, tables));
  EXPECT_EQ(stream_->num_rows(), 16);
  stream_->begin();
}

}  // namespace
}  // namespace sluice
