// The contract of the engine, over random workloads: whatever the preset, chunk size, pool, cache
// groups, prefix cache, preemption, pipeline and number of threads, a request's tokens,
// log-probabilities and pooled vectors are bit for bit those of the request alone; blocks are
// conserved after every step; every request has exactly one terminal event. Blocks that become free
// are overwritten, so that a read of one changes the output. Some requests have a constraint or a
// budget of thinking, and every output obeys it. The plans of a workload give the same results on
// another executor. A model whose first layers run apart from the rest gives the same bits as the
// whole, or on a GPU beside a CPU those of the request alone. SLUICE_TEST_FULL=1 runs ten times as
// many, SLUICE_TEST_DEVICE=cuda runs them on a GPU in deterministic mode.
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "exec/cache_groups.h"
#include "property_run.h"
#include "property_subjects.h"
#include "property_workload.h"

namespace sluice {
namespace {

// Removed at its end.
struct TempDir {
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "sluice-kv-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path = name;
  }
  ~TempDir() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

// `reference`: what runs the requests alone; null: the subject.
void check_workload(Subject& subject,
                    uint64_t seed,
                    Tally* tally,
                    WorkloadChange* change = nullptr,
                    Subject* reference = nullptr) {
  std::mt19937_64 rng(seed);
  Workload w = make_workload(rng, subject);
  if (change) change(rng, w);
  const int vocab = subject.models[0]->shape().vocab;
  bound_thinking(seed, vocab, w);
  SCOPED_TRACE(subject.name + ", seed " + std::to_string(seed));
  const TempDir dir;
  w.setup.disk_dir = &dir.path;
  w.setup.replayed = true;
  auto together = run(subject, w.setup, w.requests, w.cancel_at, w.join_every, tally);
  // Once more, with what is on disk from the first time.
  if (w.setup.scheduler.tiers.disk > 0)
    together = run(subject, w.setup, w.requests, w.cancel_at, w.join_every, tally);
  if (testing::Test::HasFailure()) return;
  for (const Request& r : w.requests) {
    Tally none;
    // Each choice alone: the one thing that tells choices apart is the key of their draws.
    auto solo = run(reference ? *reference : subject, alone(w.setup), {r}, {}, 0, &none);
    expect_same(subject, r, together.at(r.id), solo.at(r.id), w.cancel_at.contains(r.id), tally);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(EngineProperty, OutputDependsOnTheRequestAlone) {
  const char* full = std::getenv("SLUICE_TEST_FULL");
  const char* from = std::getenv("SLUICE_TEST_SEED");  // replay one
  uint64_t num = full && *full == '1' ? 1000 : 100;
  uint64_t first = from ? std::strtoull(from, nullptr, 10) : 1;
  Tally tally;
  if (from) num = 1;
  for (uint64_t seed = first; seed < first + num; ++seed) {
    check_workload(subjects()[seed % subjects().size()], seed, &tally);
    if (HasFailure()) return;
  }
  if (!from) {
    EXPECT_GT(tally.preemptions, num / 10) << "the workloads hardly preempt: they prove too little";
    EXPECT_GT(tally.restored, num / 40) << "few sequences come back from host memory";
    if (!on_gpu()) {
      EXPECT_GT(tally.constrained, num / 2) << "few requests have a constraint";
      EXPECT_GT(tally.complete, tally.constrained / 8) << "few outputs come to their end";
      EXPECT_GT(tally.forced, num) << "few tokens are forced";
      EXPECT_GT(tally.replayed, num / 2) << "few workloads are replayed";
      EXPECT_GT(tally.thinking, num / 2) << "few requests have a budget of thinking";
      EXPECT_GT(tally.closed, tally.thinking / 4) << "few budgets are used up";
    }
    EXPECT_GT(tally.disk_hits, num / 2) << "few prefixes come from disk";
  }
}

TEST(EngineProperty, ASearchDependsOnTheRequestAlone) {
  const char* full = std::getenv("SLUICE_TEST_FULL");
  uint64_t num = full && *full == '1' ? 200 : 10;
  Tally tally;
  for (uint64_t seed = 1; seed <= num; ++seed) {
    check_workload(subjects()[seed % subjects().size()], seed, &tally, search_with_beams);
    if (HasFailure()) return;
  }
}

TEST(EngineProperty, LayersInTwoPartsComputeTheSame) {
  const char* full = std::getenv("SLUICE_TEST_FULL");
  uint64_t num = full && *full == '1' ? 300 : 35;
  Tally tally;
  for (uint64_t seed = 1; seed <= num; ++seed) {
    SplitPair& pair = split_subjects()[seed % split_subjects().size()];
    check_workload(pair.split, seed, &tally, keep_in_the_pool, on_gpu() ? nullptr : &pair.whole);
    if (HasFailure()) return;
  }
  EXPECT_GT(tally.preemptions, num / 20) << "the workloads hardly preempt";
  if (!on_gpu()) {
    EXPECT_GT(tally.constrained, num / 4) << "few requests have a constraint";
  }
}

// A request alone, greedy, with a prompt of its own that is scored.
Output scored(Subject& subject, uint64_t seed, Tally* tally) {
  Request r;
  r.id = 1;
  r.prompt = std::make_shared<std::vector<Token>>(60 + 3 * seed, static_cast<Token>(seed));
  SamplingSpec spec;
  spec.temperature = 0;
  spec.num_logprobs = spec.prompt_logprobs = 0;
  r.sampling = std::make_shared<SamplingSpec>(spec);
  r.max_new = 4;
  Setup other;
  other.scheduler.max_len = 128;
  Setup setup = alone(other);
  setup.groups = cache_groups(subject.models[0]->shape());
  setup.scheduler.group_windows = setup.groups.windows;
  setup.scheduler.num_blocks *= setup.groups.num_groups();
  setup.scheduler.budget = seed % 2 ? 256 : 40;  // in chunks: some begin with a context
  return run(subject, setup, {r}, {}, 0, tally).at(1);
}

void expect_near(const std::vector<TopLogprob>& a,
                 const std::vector<TopLogprob>& b,
                 float tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].token, b[i].token);
    EXPECT_NEAR(a[i].logprob, b[i].logprob, tolerance);
  }
}

// Prompts run through a device in the layers of the CPU: with the reference on both sides the bits
// are the same, on a GPU they are close, whatever the weights are there.
TEST(EngineProperty, PromptsThroughTheGpuComputeTheSame) {
  struct Case {
    const char* name;
    OpenFile open;
    int host_layers;
    CudaOptions gpu;
  };
  CudaOptions f32, f16, stored, f8, i8;
  f32.activations = DType::f32;
  f16.activations = stored.activations = f8.activations = i8.activations = DType::f16;
  stored.stored_weights = f8.fp8_weights = true;
  i8.int8 = {WeightQuant::w8a8, {}};
  std::vector<Case> cases{{"llama", golden_model("llama"), 2, f32},
                          {"gemma3", golden_model("gemma3"), 5, f32},
                          {"gpt2", golden_model("gpt2"), 1, f32}};
  if (on_gpu()) {
    cases.push_back({"q8_0 in f16", tiny_q8(), 1, f16});
    cases.push_back({"q8_0 as stored", tiny_q8(), 1, stored});
    cases.push_back({"q8_0 in fp8", tiny_q8(), 1, f8});
    cases.push_back({"q8_0 in int8", tiny_q8(), 1, i8});
  }
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Subject streamed = make_streamed(c.name, c.open, c.host_layers, c.gpu);
    Subject whole = make_streamed(c.name, c.open, 0, c.gpu);
    Tally tally;
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      if (!on_gpu()) {
        check_workload(streamed, seed, &tally, keep_in_the_pool, &whole);
        if (HasFailure()) return;
      }
      const Output a = scored(streamed, seed, &tally), b = scored(whole, seed, &tally);
      const bool exact = c.gpu.activations == DType::f32;
      expect_near(a.prompt, b.prompt, !on_gpu() ? 0 : exact ? 2e-3f : 3e-2f);
      // The CPU's layers have other arithmetic where weights are not floats.
      if (exact) expect_near(a.top[0], b.top[0], on_gpu() ? 2e-3f : 0);
    }
    EXPECT_GT(tally.streamed, 300u) << "few rows run through the device";
  }
}

// Requests of three families take turns in a pool that holds little more than one of them.
TEST(EngineProperty, NoOutputDependsOnWhereBlocksWere) {
  const char* full = std::getenv("SLUICE_TEST_FULL");
  uint64_t num = full && *full == '1' ? 300 : 30;
  Tally tally;
  for (uint64_t seed = 1; seed <= num; ++seed) {
    check_workload(subjects()[seed % subjects().size()], seed, &tally, move_much);
    if (HasFailure()) return;
  }
  EXPECT_GT(tally.restored, num / 8) << "few sequences come back from host memory";
  EXPECT_GT(tally.tier_hits, 10 * num) << "few prefixes come from host memory";
}

}  // namespace
}  // namespace sluice
