// Pooled hidden states, through scheduler and executor: against transformers (tests/golden/models),
// and what the prefix cache and the limits make of such requests.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "base/json.h"
#include "engine/loop.h"
#include "exec/model_executor.h"
#include "model/model.h"
#include "tensor/gguf.h"

namespace sluice {
namespace {

std::string golden_dir() { return SLUICE_SOURCE_DIR "/tests/golden/models/"; }

json::value read_golden(const std::string& name) {
  std::ifstream in(golden_dir() + name + ".json");
  std::stringstream text;
  text << in.rdbuf();
  return parse_json(text.str()).value();
}

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& e : std::filesystem::directory_iterator(golden_dir())) {
    if (e.path().extension() == ".gguf") names.push_back(e.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// A golden model behind a scheduler.
class Rig {
 public:
  explicit Rig(const std::string& name, int budget = 16, int max_len = 64, int blocks = 64) {
    file_ = open_gguf(golden_dir() + name + ".gguf").value();
    backend_ = make_cpu_backend({.threads = 2, .pin = false});
    model_ = load_model(*file_, *backend_, {}).value();
    SchedulerConfig c;
    c.budget = budget;
    c.max_seqs = std::min(budget, 8);
    c.max_len = max_len;
    c.num_blocks = blocks;
    c.order = Order::priority;
    c.block_size = 8;
    CacheGroups groups = cache_groups(model_->shape());
    c.group_windows = groups.windows;
    scheduler_.emplace(c, nullptr);
    ExecutorConfig e;
    e.num_blocks = c.num_blocks;
    e.block_size = c.block_size;
    e.max_seqs = scheduler_->config().max_seqs;
    e.max_len = c.max_len;
    e.max_step_tokens = scheduler_->max_step_tokens();
    e.logits_rows = 5;  // several turns per step
    e.kv_type = DType::f32;
    e.groups = groups;
    executor_.emplace(*backend_, *model_, e, clock_);
  }

  Request request(std::vector<Token> prompt, Pooling pooling) {
    Request r;
    r.id = ++id_;
    r.prompt = std::make_shared<const std::vector<Token>>(std::move(prompt));
    r.sampling = std::make_shared<const SamplingSpec>();
    r.pooling = pooling;
    r.max_new = pooling == Pooling::none ? 4 : 0;
    return r;
  }

  // The request's last event; all others are dropped. `urgent` comes after a few steps.
  Event run(Request r, std::optional<Request> urgent = {}) {
    Loop loop(*scheduler_, *executor_, clock_, Pipeline::overlap);
    RequestId id = r.id;
    EXPECT_TRUE(scheduler_->add(std::move(r), clock_.now()));
    Event last;
    Events events;
    for (int iteration = 0; loop.busy(); ++iteration) {
      if (iteration == 5 && urgent) {
        EXPECT_TRUE(scheduler_->add(std::move(*urgent), clock_.now()));
      }
      loop.iterate(events);
      for (Event& e : events.list) {
        if (e.req == id && e.last) last = std::move(e);
      }
      events.clear();
    }
    EXPECT_TRUE(last.last);
    return last;
  }

  Scheduler& scheduler() { return *scheduler_; }
  const ModelShape& shape() const { return model_->shape(); }
  Time now() const { return clock_.now(); }

 private:
  RealClock clock_;
  std::unique_ptr<Checkpoint> file_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::optional<Scheduler> scheduler_;
  std::optional<ModelExecutor> executor_;
  RequestId id_ = 0;
};

std::vector<Token> tokens_of(const json::value& golden) {
  std::vector<Token> tokens;
  for (const json::value& t : golden.at("tokens").as_array())
    tokens.push_back(static_cast<Token>(t.as_int64()));
  return tokens;
}

class Pooled : public testing::TestWithParam<std::string> {};

TEST_P(Pooled, EqualsTransformers) {
  json::value golden = read_golden(GetParam());
  for (int budget : {64, 16, 1}) {
    Rig rig(GetParam(), budget);
    for (Pooling pooling : {Pooling::last, Pooling::mean}) {
      Event e = rig.run(rig.request(tokens_of(golden), pooling));
      EXPECT_EQ(e.finish, Finish::stop);
      EXPECT_EQ(e.token, kNoToken);
      ASSERT_TRUE(e.pooled);
      const json::array& want =
          golden.at("pooled").at(pooling == Pooling::last ? "last" : "mean").as_array();
      ASSERT_EQ(e.pooled->size(), want.size());
      ASSERT_EQ(want.size(), static_cast<size_t>(rig.shape().hidden));
      double diff = 0, scale = 0;
      for (size_t d = 0; d < want.size(); ++d) {
        double w = want[d].to_number<double>();
        diff = std::max(diff, std::abs((*e.pooled)[d] - w));
        scale = std::max(scale, std::abs(w));
      }
      EXPECT_LT(diff / scale, 1e-4) << "budget " << budget;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Pooled, testing::ValuesIn(golden_names()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(Pooling, LastTakesPrefixHitsAndMeanDoesNot) {
  Rig rig("llama");
  std::vector<Token> prompt(40, 7);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<Token>(i * 5 % 200);
  Event first = rig.run(rig.request(prompt, Pooling::last));
  EXPECT_EQ(first.timing.num_cached, 0);
  Event again = rig.run(rig.request(prompt, Pooling::last));
  EXPECT_EQ(again.timing.num_cached, 32);  // the last block is computed, for its last position
  EXPECT_EQ(*again.pooled, *first.pooled);
  Event mean = rig.run(rig.request(prompt, Pooling::mean));
  EXPECT_EQ(mean.timing.num_cached, 0);
  EXPECT_NE(*mean.pooled, *first.pooled);
  // What it computed serves others.
  Event tokens = rig.run(rig.request(prompt, Pooling::none));
  EXPECT_EQ(tokens.timing.num_cached, 32);
  EXPECT_FALSE(tokens.pooled);
}

TEST(Pooling, StartsAgainWhenPreempted) {
  std::vector<Token> prompt;
  for (int i = 0; i < 60; ++i) prompt.push_back(i * 7 % 250);
  for (Pooling pooling : {Pooling::last, Pooling::mean}) {
    Rig calm("llama", 64), crowded("llama", 4, 64, 10);
    Request r = crowded.request(prompt, pooling), urgent = crowded.request(prompt, Pooling::none);
    r.priority = 1;
    r.tenant = 1;  // no prefix of its neighbour's
    Event e = crowded.run(r, urgent);
    EXPECT_GT(e.timing.num_preemptions, 0);
    ASSERT_TRUE(e.pooled);
    EXPECT_EQ(*e.pooled, *calm.run(calm.request(prompt, pooling)).pooled);
  }
}

TEST(Pooling, APromptMayFillTheContext) {
  Rig rig("gpt2", 16, 64);
  std::vector<Token> prompt(64, 3);
  EXPECT_TRUE(rig.run(rig.request(prompt, Pooling::mean)).pooled);
  EXPECT_FALSE(rig.scheduler().add(rig.request(prompt, Pooling::none), rig.now()));
  prompt.push_back(3);
  Result<void> refused = rig.scheduler().add(rig.request(prompt, Pooling::last), rig.now());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, 400);
}

TEST(Pooling, CancelledAndLateOnesLeaveNothingBehind) {
  Rig rig("llama", 4);
  Request r = rig.request(std::vector<Token>(60, 9), Pooling::mean);
  r.deadline = rig.now();  // past when the first step is planned
  Event e = rig.run(r);
  EXPECT_EQ(e.finish, Finish::deadline);
  EXPECT_FALSE(e.pooled);
  BlockCounts blocks = rig.scheduler().count_blocks();
  EXPECT_EQ(blocks.free + blocks.cached, blocks.total);
}

}  // namespace
}  // namespace sluice
