// What the presets are for, counted on a virtual clock.
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "base/str.h"
#include "core/virtual_run.h"

namespace sluice {
namespace {

SchedulerConfig config(const std::string& preset, int max_seqs) {
  SchedulerConfig c;
  apply_preset(preset, c).value();
  c.max_seqs = max_seqs;
  c.num_blocks = 1 << 14;
  c.prefix_cache = false;
  return c;
}

// 32 requests in a batch of 8, of which one in eight has 100 tokens and the others 10.
int demo_steps(const SchedulerConfig& c) {
  VirtualRun run(c);
  for (int i = 0; i < 32; ++i) run.add({.prompt = 8, .output = i % 8 == 0 ? 100 : 10});
  run.run();
  return run.num_steps;
}

TEST(Preset, ContinuousBatchingTakesAThirdOfTheSteps) {
  EXPECT_EQ(demo_steps(config("static", 8)), 400);  // four batches that run to their longest
  EXPECT_EQ(demo_steps(config("vllm", 8)), 132);    // prompts have steps of their own
  EXPECT_EQ(demo_steps(config("prefill-first", 8)), 132);
  EXPECT_EQ(demo_steps(config("decode-first", 8)), 400);  // nobody joins while others decode
  EXPECT_EQ(demo_steps(config("orca", 8)), 130);
  EXPECT_EQ(demo_steps(config("sarathi", 8)), 130);
  SchedulerConfig single = config("sarathi", 8);
  single.prefill_batch = 1;
  EXPECT_EQ(demo_steps(single), 136);
  SchedulerConfig delayed = config("vllm", 8);
  delayed.prefill_delay = 8;
  EXPECT_EQ(demo_steps(delayed), 400);
  // With a bound on prompt tokens beside decodes, some of the seven that join at once wait a step.
  SchedulerConfig chunked = config("sarathi", 8);
  chunked.chunk = 32;
  EXPECT_EQ(demo_steps(chunked), 131);
}

struct Latency {
  double ttft = 0, worst_itl = 0;  // seconds: mean; the longest anybody waits between two tokens
};

// Two requests a second, each with a quarter of a second of prompt and 0.6 s or more of decoding.
Latency serve(const std::string& preset) {
  SchedulerConfig c = config(preset, 16);
  c.budget = 4096;
  c.chunk = 64;
  VirtualRun run(c, {.step = std::chrono::milliseconds(10), .token = std::chrono::milliseconds(1)});
  Latency l;
  std::map<RequestId, Time> last;
  int num_added = 0, num_first = 0;
  while (num_added < 200 || run.scheduler().has_work()) {
    while (num_added < 200 && run.now() >= num_added * std::chrono::milliseconds(500)) {
      run.add({.prompt = 256, .output = 60});
      ++num_added;
    }
    if (!run.step()) run.wait(std::chrono::milliseconds(1));
    for (const Event& e : run.events.list) {
      if (e.token == kNoToken) continue;
      auto [at, first] = last.emplace(e.req, run.now());
      if (first) {
        l.ttft += seconds(run.now() - e.timing.arrival);
        ++num_first;
      } else {
        l.worst_itl = std::max(l.worst_itl, seconds(run.now() - at->second));
      }
      at->second = run.now();
    }
  }
  l.ttft /= num_first;
  return l;
}

// What waiting for a fuller batch costs and brings: requests at a rate, on a virtual clock.
struct Served {
  double ttft = 0;  // seconds, mean
  int num_steps = 0;
  Time end{0};
};
Served serve_filled(Time fill_wait, Time between) {
  SchedulerConfig c = config("sarathi", 16);
  c.budget = 512;
  c.fill_wait = fill_wait;
  VirtualRun run(c);
  Served served;
  int num_added = 0;
  while (num_added < 200 || run.scheduler().has_work()) {
    for (; num_added < 200 && run.now() >= num_added * between; ++num_added)
      run.add({.prompt = 16, .output = 4});
    if (!run.step()) run.wait(std::chrono::milliseconds(1));
    for (const Event& e : run.events.list) {
      if (e.finish != Finish::none)
        served.ttft += seconds(e.timing.first_token - e.timing.arrival) / 200;
    }
  }
  served.num_steps = run.num_steps;
  served.end = run.now();
  return served;
}

// At light load the wait is added to the time to the first token, and saves steps; where there is
// always something running, nobody waits.
TEST(Preset, FillWaitHasNothingToGainAtSaturation) {
  using std::chrono::milliseconds;
  Served none = serve_filled(Time{0}, milliseconds(60)),
         filled = serve_filled(milliseconds(100), milliseconds(60));
  EXPECT_GT(filled.ttft, none.ttft + 0.03);
  EXPECT_LT(filled.ttft, none.ttft + 0.11);
  EXPECT_LT(filled.num_steps, 0.7 * none.num_steps);
  Served busy = serve_filled(Time{0}, milliseconds(1)),
         busy_filled = serve_filled(milliseconds(100), milliseconds(1));
  EXPECT_LE(busy_filled.num_steps, busy.num_steps + 4);
  EXPECT_LE(busy_filled.end, busy.end + milliseconds(101));
  std::map<std::string, Served> all = {
      {"none", none}, {"filled", filled}, {"busy", busy}, {"busy_filled", busy_filled}};
  for (const auto& [name, s] : all)
    RecordProperty(name,
                   strf("ttft %.3f s, %d steps, %.2f s", s.ttft, s.num_steps, seconds(s.end)));
}

// Decodes first: prompts wait. Prompts first: everybody's next token waits for whole prompts.
// Mixed steps with a chunk: prompts wait no longer than that, and tokens hardly.
TEST(Preset, WhatComesFirstDecidesWhoWaits) {
  Latency decode = serve("decode-first"), prefill = serve("prefill-first"),
          mixed = serve("sarathi");
  EXPECT_LT(decode.worst_itl, 0.05);
  EXPECT_GT(prefill.worst_itl, 5 * decode.worst_itl);
  EXPECT_GT(decode.ttft, 1.2 * prefill.ttft);
  EXPECT_LT(mixed.worst_itl, 0.4 * prefill.worst_itl);
  EXPECT_LT(mixed.ttft, 1.5 * prefill.ttft);
}

}  // namespace
}  // namespace sluice
