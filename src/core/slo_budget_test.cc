#include "core/slo_budget.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "core/plan_codec.h"
#include "core/policy.h"
#include "core/step_cost.h"
#include "core/virtual_run.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;

TEST(SloTarget, IsReadAndWritten) {
  SloTarget t = parse_slo_target("itl_p99=50ms,ttft_p95=1s").value();
  EXPECT_EQ(t.itl, milliseconds(50));
  EXPECT_FLOAT_EQ(t.itl_quantile, 0.99f);
  EXPECT_EQ(t.ttft, milliseconds(1000));
  EXPECT_FLOAT_EQ(t.ttft_quantile, 0.95f);
  for (const char* text : {"none", "itl_p99=50ms", "itl_p99.9=1.5s,ttft_p50=800us"})
    EXPECT_EQ(slo_target_name(parse_slo_target(text).value()), text);
  EXPECT_FALSE(parse_slo_target("").value().any());
  for (const char* bad :
       {"itl", "itl=50ms", "itl_p99", "itl_p99=", "itl_p99=50", "itl_p99=fast", "itl_p100=1s",
        "itl_p0=1s", "itl_px=1s", "itl_p=1s", "itl_p99=-1s", "itl_p99=0s", "itl_p99=2h",
        "itl_p99=1s,itl_p99=2s", "tpot_p99=1s", "ttft_p95=1s", "itl_p99=1s;ttft_p95=1s", "=1s"}) {
    EXPECT_FALSE(parse_slo_target(bad)) << bad;
  }
}

// ---- on a virtual clock ----

// A device on which attention to the end of a long prompt costs as much as its other work: 8 ms,
// 0.3 ms a token, 50 ns a position read, 150 ns a pair of a query and a key. Times spread by 10 %,
// and one step in two hundred takes half as long again.
Time device_time(const StepPlan& plan) {
  const StepLoad w = step_load(plan);
  const auto step = static_cast<int64_t>(plan.step);
  double s = 8e-3 + 300e-6 * w.tokens + 50e-9 * static_cast<double>(w.context) +
             150e-9 * static_cast<double>(w.attended);
  s *= 0.95 + 0.1 * draw_double({5, 0, step, 0});
  if (draw_double({5, 0, step, 1}) < 0.005) s *= 1.5;
  return Time(static_cast<int64_t>(s * 1e9));
}

constexpr Time kItl = milliseconds(50), kTtft = milliseconds(2600);

// A server that is told what steps cost needs no steps to find out.
TEST(SloBudget, StartsFromCosts) {
  StepCost cost;
  cost.rows = {{1, 8e-3}, {1001, 308e-3}};
  SloTarget target;
  target.itl = kItl;
  SloBudget::Offer offer;
  offer.decodes = {.tokens = 8, .sampled = 8, .context = 800, .attended = 800};
  offer.rest = 5000, offer.most = 512;
  SloBudget blank(target), told(target);
  told.start(cost);
  EXPECT_EQ(blank.choose(offer), SloBudget::kMinTokens);
  const int tokens = told.choose(offer);
  EXPECT_GT(tokens, 64);   // 50 ms with the first margin: about 100 tokens
  EXPECT_LT(tokens, 140);  // more would take too long
  const StepLoad load{.tokens = 100, .sampled = 9, .context = 900, .attended = 9000};
  EXPECT_NEAR(told.plan(load, 8).predicted, cost.seconds(load), 0.1 * cost.seconds(load));
  EXPECT_EQ(blank.plan(load, 8).predicted, 0);
  // Steps that take twice as long are believed soon.
  Time now{0};
  for (int k = 0; k < 400; ++k) {
    const StepLoad ran{.tokens = 16 + k % 100, .sampled = 9, .context = 900, .attended = 9000};
    const auto took = Time(static_cast<int64_t>(2e9 * cost.seconds(ran)));
    told.complete(told.plan(ran, 8), now, now + took);
    now += took;
  }
  EXPECT_NEAR(told.plan(load, 8).predicted, 2 * cost.seconds(load), 0.2 * cost.seconds(load));
}

struct SloServed {
  double itl_p99 = 0, ttft_p95 = 0;  // ms
  double goodput = 0;                // tokens in time, of prompts and outputs, per second
  int longest_step = 0, shortest_step = 1 << 20;  // prompt tokens of steps with decodes and prompts
};

double percentile(std::vector<double> v, double q) {
  std::ranges::sort(v);
  return v[static_cast<size_t>(q * static_cast<double>(v.size() - 1))];
}

// 32 users decode all the time, and every five seconds a prompt of 2,000 tokens comes.
SloServed serve_prompts(int mixed_budget,
                        SloTarget slo,
                        Time (*of)(const StepPlan&) = device_time,
                        int users = 32,
                        int duration = 60) {
  SchedulerConfig c;
  c.max_seqs = 64;
  c.num_blocks = 1 << 14;
  c.max_len = 1 << 16;
  c.budget = 2048;
  c.prefix_cache = false;
  c.mixed_budget = mixed_budget;
  c.slo = slo;
  VirtualRun run(c, {.of = of});
  for (int user = 0; user < users; ++user) run.add({.prompt = 64, .output = 60'000});
  for (int i = 0; i < 40; ++i) run.step();  // all decode
  const Time start = run.now(), kRun = std::chrono::seconds(duration);
  std::map<RequestId, Time> last, arrived;
  SloServed r;
  std::vector<double> itl, ttft;
  int64_t in_time = 0;
  for (Time next = start; run.now() < start + kRun;) {
    if (run.now() >= next) {
      next += std::chrono::seconds(5);
      arrived[run.add({.prompt = 2000, .output = 20})] = run.now();
    }
    EXPECT_TRUE(run.step());
    const int prompt = run.plan().num_tokens - run.plan().num_decode;
    if (prompt > 0) {
      r.longest_step = std::max(r.longest_step, prompt);
      if (!run.plan().slices.empty() && run.plan().slices.back().want == Want::none)
        r.shortest_step = std::min(r.shortest_step, prompt);
    }
    for (const Event& e : run.events.list) {
      if (e.token == kNoToken) continue;
      const Time now = run.now();
      if (last.contains(e.req)) {
        itl.push_back(seconds(now - last[e.req]) * 1e3);
        in_time += now - last[e.req] <= kItl;
      } else if (arrived.contains(e.req)) {
        ttft.push_back(seconds(now - arrived[e.req]) * 1e3);
        if (now - arrived[e.req] <= kTtft) in_time += 2001;
      }
      last[e.req] = now;
    }
  }
  r.itl_p99 = percentile(itl, 0.99);
  r.ttft_p95 = percentile(ttft, 0.95);
  r.goodput = static_cast<double>(in_time) / seconds(run.now() - start);
  return r;
}

TEST(SloBudget, KeepsTheTargetWithMoreGoodputThanAnyFixedBudget) {
  const double target = seconds(kItl) * 1e3;
  const SloServed slo = serve_prompts(0, parse_slo_target("itl_p99=50ms,ttft_p95=2.6s").value());
  RecordProperty("slo", std::to_string(slo.itl_p99) + " ms, " + std::to_string(slo.goodput));
  EXPECT_LE(slo.itl_p99, target);
  EXPECT_LE(slo.ttft_p95, seconds(kTtft) * 1e3);
  EXPECT_LT(slo.shortest_step, slo.longest_step);  // the further a prompt gets, the less of it
  double best = 0;
  int kept = 0, broken = 0;
  for (int budget : {40, 48, 56, 60, 64, 68, 72, 80, 96, 128, 256, 512}) {
    const SloServed fixed = serve_prompts(budget, {});
    RecordProperty("fixed_" + std::to_string(budget),
                   std::to_string(fixed.itl_p99) + " ms, ttft " + std::to_string(fixed.ttft_p95) +
                       " ms, goodput " + std::to_string(fixed.goodput));
    const bool keeps = fixed.itl_p99 <= target;
    keeps ? ++kept : ++broken;
    if (keeps) best = std::max(best, fixed.goodput);
  }
  EXPECT_GT(kept, 0);  // the sweep has budgets on both sides
  EXPECT_GT(broken, 0);
  EXPECT_GE(slo.goodput, best);
}

// ---- two cores that others use too ----

// As measured on two cores of a Xeon 6 with SmolLM2's shape: 24 tokens take 20 to 38 ms. For 40
// steps at a time others slow it down by up to a third.
Time shared_cores_time(const StepPlan& plan) {
  const StepLoad w = step_load(plan);
  const auto step = static_cast<int64_t>(plan.step);
  double s = 5e-3 + 750e-6 * w.tokens + 100e-9 * static_cast<double>(w.context) +
             100e-9 * static_cast<double>(w.attended);
  s *= 0.95 + 0.1 * draw_double({7, 0, step, 0});
  s *= 0.7 + 0.6 * draw_double({7, 0, step / 40, 1});
  return Time(static_cast<int64_t>(s * 1e9));
}

// When the machine turns slow, steps come too late before the model knows: that must not use up all
// that may be late, as the margin's own quantile does.
TEST(SloBudget, KeepsItsDistanceWhereTheMachineTurnsSlow) {
  for (const char* target : {"itl_p99=40ms,ttft_p95=5s", "itl_p99=40ms"}) {
    const SloTarget slo = parse_slo_target(target).value();
    const SloServed served = serve_prompts(0, slo, shared_cores_time, 8, 20);
    RecordProperty("p99", std::to_string(served.itl_p99) + " ms");
    EXPECT_LE(served.itl_p99, 0.95 * seconds(slo.itl) * 1e3) << target;
    EXPECT_LE(served.ttft_p95, 5000) << target;
  }
}

// ---- an H200 ----

// Qwen2.5-7B in bf16 as `sluice plan calibrate` found it: up to some 128 tokens a step waits for
// the weights, so that prompt tokens beside 64 decodes cost 9 us each in small steps and 18 us in
// large ones. Times spread by 4 %, and one step in five hundred takes half as long again.
Time h200_time(const StepPlan& plan) {
  static const StepCost kCost{.rows = {{53.7, 4.656e-3},
                                       {66.7, 4.875e-3},
                                       {115, 5.288e-3},
                                       {157, 6.295e-3},
                                       {211, 7.307e-3},
                                       {258, 7.374e-3},
                                       {410, 11.17e-3},
                                       {576, 12.61e-3},
                                       {868, 19.51e-3},
                                       {1101, 22.06e-3},
                                       {1609, 32.68e-3},
                                       {2068, 42.34e-3}},
                              .sampled = 0.776e-6,
                              .context = 13.6e-9,
                              .attended = 1.41e-9};
  const auto step = static_cast<int64_t>(plan.step);
  double s = kCost.seconds(step_load(plan));
  s *= 0.98 + 0.04 * draw_double({6, 0, step, 0});
  if (draw_double({6, 0, step, 1}) < 0.002) s *= 1.5;
  return Time(static_cast<int64_t>(s * 1e9));
}

// `sluice bench slo`: 64 users in a closed loop, a prompt of 2,048 tokens every half second.
SloServed serve_h200(int mixed_budget, SloTarget slo) {
  SchedulerConfig c;
  c.max_seqs = 256;
  c.num_blocks = 1 << 14;
  c.budget = 2048;
  c.prefix_cache = false;
  c.mixed_budget = mixed_budget;
  c.slo = slo;
  VirtualRun run(c, {.of = h200_time});
  const Time itl = milliseconds(20), ttft = milliseconds(1000), every = milliseconds(500);
  std::map<RequestId, Time> last, arrived;  // arrived: long prompts
  for (int user = 0; user < 64; ++user) run.add({.prompt = 64, .output = 8 * (user + 1)});
  const Time start = milliseconds(3000), end = start + milliseconds(6000);
  Time next = milliseconds(700);
  SloServed r;
  std::vector<double> gaps, firsts;
  int64_t in_time = 0;
  while (run.now() < end) {
    for (; run.now() >= next; next += every)
      arrived[run.add({.prompt = 2048, .output = 16})] = run.now();
    EXPECT_TRUE(run.step());
    if (run.plan().num_decode > 0)
      r.longest_step = std::max(r.longest_step, run.plan().num_tokens - run.plan().num_decode);
    const Time now = run.now();
    const bool counts = now >= start;
    for (const Event& e : run.events.list) {
      if (e.token == kNoToken) continue;
      const bool first = !last.contains(e.req);
      if (counts && !first) {
        gaps.push_back(seconds(now - last[e.req]) * 1e3);
        in_time += now - last[e.req] <= itl;
      } else if (counts && arrived.contains(e.req)) {
        firsts.push_back(seconds(now - arrived[e.req]) * 1e3);
        in_time += now - arrived[e.req] <= ttft ? 2049 : 0;
      }
      last[e.req] = now;
      if (e.finish != Finish::none && !arrived.contains(e.req))
        run.add({.prompt = 64, .output = 512});
    }
  }
  r.itl_p99 = percentile(gaps, 0.99);
  r.ttft_p95 = percentile(firsts, 0.95);
  r.goodput = static_cast<double>(in_time) / seconds(end - start);
  return r;
}

TEST(SloBudget, TakesTheCheapestStepsWherePromptsHaveTime) {
  double best = 0;
  for (int budget : {64, 128, 256, 512, 1024}) {
    const SloServed fixed = serve_h200(budget, {});
    RecordProperty("fixed_" + std::to_string(budget),
                   std::to_string(fixed.itl_p99) + " ms, ttft " + std::to_string(fixed.ttft_p95) +
                       " ms, goodput " + std::to_string(fixed.goodput));
    if (fixed.itl_p99 <= 20 && fixed.ttft_p95 <= 1000) best = std::max(best, fixed.goodput);
  }
  for (const char* target : {"itl_p99=20ms,ttft_p95=1s", "itl_p99=20ms"}) {
    const SloServed slo = serve_h200(0, parse_slo_target(target).value());
    RecordProperty(std::string(target) == "itl_p99=20ms" ? "slo_without_ttft" : "slo",
                   std::to_string(slo.itl_p99) + " ms, ttft " + std::to_string(slo.ttft_p95) +
                       " ms, goodput " + std::to_string(slo.goodput));
    EXPECT_LE(slo.itl_p99, 20) << target;
    EXPECT_LE(slo.ttft_p95, 1000) << target;
    EXPECT_GE(slo.goodput, 0.995 * best) << target;
  }
}

// Small steps are the cheaper ones, but no prompt may wait for that.
TEST(SloBudget, PromptsThatQueueUpGetTheLargestSteps) {
  for (const char* target : {"itl_p99=20ms,ttft_p95=1s", "itl_p99=20ms"}) {
    SloBudget slo(parse_slo_target(target).value());
    StepLoad decodes{.tokens = 64, .sampled = 64, .context = 6400, .attended = 6400};
    Time at{0};
    for (int i = 0; i < 400; ++i) {  // 5 ms to 128 tokens, then 20 us for each
      const int tokens = std::array{16, 32, 64, 128, 192, 256, 448, 512}[i % 8];
      StepLoad load = decodes;
      load += chunk_load(0, tokens);
      const Time took = std::chrono::microseconds(5000 + 20 * std::max(0, load.tokens - 128));
      slo.complete(slo.plan(load, 64), at, at + took);
      at += took;
    }
    SloBudget::Offer offer{.decodes = decodes, .pos = 0, .rest = 1000, .waited = {}, .most = 2000};
    const int alone = slo.choose(offer);
    offer.behind = 20'000;
    const int crowded = slo.choose(offer);
    EXPECT_LE(alone, 192) << target;
    EXPECT_GT(crowded, 600) << target;
  }
}

// Whoever is told the same, chooses the same: results carry the times that the choice depends on.
TEST(SloBudget, ARecordedRunChoosesTheSame) {
  SchedulerConfig c;
  c.max_seqs = 16;
  c.num_blocks = 4096;
  c.pipeline = Pipeline::sync;
  c.slo = parse_slo_target("itl_p99=20ms").value();
  Scheduler live(c, nullptr), again(c, nullptr);
  Time now{0};
  std::map<int, int> sizes;
  for (int step = 0; step < 200; ++step) {
    if (step % 25 == 0) {
      Request r;
      r.id = static_cast<RequestId>(step + 1);
      r.prompt = std::make_shared<const std::vector<Token>>(step == 0 ? 10u : 700u, Token{5});
      r.sampling = std::make_shared<const SamplingSpec>();
      r.max_new = 300;
      ASSERT_TRUE(live.add(r, now));
      ASSERT_TRUE(again.add(r, now));
    }
    Events events;
    StepPlan plan, copy;
    live.plan(now, plan, events);
    again.plan(now, copy, events);
    ASSERT_EQ(plan, copy);
    ++sizes[plan.num_tokens - plan.num_decode];
    StepResult result;
    FakeExecutor::answer(
        plan, [](const StepPlan&, const Slice&) { return Token{2}; }, result);
    result.begin = now;
    now += device_time(plan);
    result.end = now;
    Bytes recorded;
    encode(result, recorded);
    live.complete(result, now, events);
    again.complete(decode_result(recorded).value(), now, events);
    ASSERT_TRUE(live.stats().slo == again.stats().slo) << "step " << step;
  }
  EXPECT_GT(sizes.size(), 4u);  // budgets were chosen, not fixed
}

TEST(SloBudget, PromptsProgressWhateverDecodesTake) {
  SloBudget slo(parse_slo_target("itl_p99=1ms").value());
  StepLoad decodes{.tokens = 32, .sampled = 32, .context = 3200, .attended = 3200};
  Time at{0};
  for (int i = 0; i < 50; ++i) {  // 10 ms for decodes alone
    slo.complete(slo.plan(decodes, 32), at, at + milliseconds(10));
    at += milliseconds(10);
  }
  EXPECT_EQ(slo.choose({.decodes = decodes, .pos = 0, .rest = 100, .most = 400}),
            SloBudget::kMinTokens);
  EXPECT_EQ(slo.choose({.decodes = decodes, .pos = 0, .rest = 100, .most = 3}), 3);
}

// Steps of `tokens` beside four decodes, 1 ms and 0.1 ms a token.
void teach(SloBudget& slo, int tokens, int num, Time& at) {
  StepLoad load{.tokens = 4 + tokens, .sampled = 4, .context = 400 + tokens, .attended = 400};
  for (int i = 0; i < num; ++i) {
    const Time took = std::chrono::microseconds(1000 + 100 * (4 + tokens));
    slo.complete(slo.plan(load, 4), at, at + took);
    at += took;
  }
}

TEST(SloBudget, WhatWasNeverTimedIsTriedInSmallSteps) {
  SloBudget slo(parse_slo_target("itl_p99=1s").value());
  StepLoad decodes{.tokens = 4, .sampled = 4, .context = 400, .attended = 400};
  auto choice = [&] {
    return slo.choose({.decodes = decodes, .pos = 0, .rest = 5000, .most = 5000});
  };
  Time at{0};
  EXPECT_EQ(choice(), SloBudget::kMinTokens);
  teach(slo, 0, 10, at);
  EXPECT_EQ(choice(), SloBudget::kMinTokens);
  teach(slo, 16, 4, at);
  EXPECT_EQ(choice(), 32);
  teach(slo, 32, 4, at);
  EXPECT_EQ(choice(), 64);
}

TEST(SloBudget, APromptInDangerTakesTheMarginWhileTokensAreInTime) {
  SloBudget slo(parse_slo_target("itl_p99=20ms,ttft_p95=1s").value());
  StepLoad decodes{.tokens = 4, .sampled = 4, .context = 400, .attended = 400};
  Time at{0};
  for (int i = 0; i < 100; ++i) {  // every tenth step takes a quarter longer
    const int tokens = 20 + i % 100;
    StepLoad load = decodes;
    load += {.tokens = tokens, .sampled = 0, .context = tokens, .attended = tokens};
    Time took = std::chrono::microseconds(1000 + 100 * (4 + tokens));
    if (i % 10 == 0) took += took / 4;
    slo.complete(slo.plan(load, 4), at, at + took);
    at += took;
  }
  // Behind half of the target: no time for steps that are smaller and cheaper.
  SloBudget::Offer offer{
      .decodes = decodes, .pos = 0, .rest = 300, .waited = milliseconds(600), .most = 500};
  const int calm = slo.choose(offer);
  offer.waited = milliseconds(980);
  const int urgent = slo.choose(offer);
  EXPECT_GT(urgent, calm);
  EXPECT_LE(slo.stats().late, 0.005);
  // Once tokens are late, prompts wait.
  for (int i = 0; i < 20; ++i) {
    slo.complete(slo.plan(decodes, 4), at, at + milliseconds(30));
    at += milliseconds(30);
  }
  EXPECT_GT(slo.stats().late, 0.01);
  EXPECT_LE(slo.choose(offer), calm);
}

// A thousand steps without a prompt do not blur what prompts cost.
TEST(SloBudget, DecodesDoNotMakeItForgetPrompts) {
  SloBudget slo(parse_slo_target("itl_p99=10ms").value());
  StepLoad decodes{.tokens = 4, .sampled = 4, .context = 400, .attended = 400};
  Time at{0};
  for (int tokens : {16, 32, 48, 64}) teach(slo, tokens, 10, at);
  const SloBudget::Offer offer{.decodes = decodes, .pos = 0, .rest = 500, .most = 500};
  const int before = slo.choose(offer);
  teach(slo, 0, 5000, at);
  EXPECT_NEAR(slo.choose(offer), before, 3);
}

TEST(SloBudget, PoliciesThatItCannotBoundAreRefused) {
  SchedulerConfig c;
  c.slo = parse_slo_target("itl_p99=50ms").value();
  EXPECT_TRUE(check_policies(c, false));
  c.pipeline = Pipeline::interleave;
  EXPECT_NE(check_policies(c, false).error().message.find("--pipeline interleave"),
            std::string::npos);
  c.pipeline = Pipeline::sync;
  EXPECT_TRUE(check_policies(c, false));
  apply_preset("vllm", c).value();
  EXPECT_NE(check_policies(c, false).error().message.find("--prefill"), std::string::npos);
}

}  // namespace
}  // namespace sluice
