#include "tools/bench_kernels/report.h"

#include <gtest/gtest.h>

#include "tools/bench_kernels/plan.h"

namespace sluice {
namespace {

KernelTiming timing(const std::string& kernel, int m, double of_limit, double noise = 0) {
  KernelTiming t;
  t.kernel = kernel;
  t.shape = "qwen2.5-0.5b";
  t.product = "gate_up";
  t.m = m;
  t.best = 0.25;
  t.median = 0.3;
  t.bytes = 9e6;
  t.ops = 1.7e7;
  t.of_limit = t.of_best = of_limit;
  t.noise = noise;
  t.passes = {{t.best, of_limit * t.best, of_limit * t.best}};
  t.by_memory = m < 16;
  return t;
}

KernelReport report_of(std::vector<KernelTiming> rows) {
  return {{"A CPU", 2, "avx2"}, 2, "2026-01-31T12:00:00Z", std::move(rows)};
}

TEST(KernelReport, WhatWasWrittenIsReadBack) {
  KernelReport r = report_of({timing("a-q8_0", 1, 0.9, 0.02), timing("b-q4_0", 512, 0.4)});
  Result<KernelReport> back = parse_report(report_to_json(r));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(report_to_json(*back), report_to_json(r));
  EXPECT_EQ(back->id, r.id);
  ASSERT_NE(back->find("b-q4_0 qwen2.5-0.5b gate_up 512"), nullptr);
  EXPECT_EQ(back->find("b-q4_0 qwen2.5-0.5b gate_up 512")->by_memory, false);
  EXPECT_EQ(back->find("b-q4_0 qwen2.5-0.5b gate_up 1"), nullptr);
}

TEST(KernelReport, BadFilesAreRefused) {
  std::string good = report_to_json(report_of({timing("a-q8_0", 1, 0.9)}));
  auto with = [&](const std::string& what, const std::string& to) {
    size_t at = good.find(what);
    EXPECT_NE(at, std::string::npos) << what;
    return good.substr(0, at) + to + good.substr(at + what.size());
  };
  for (const std::string& text :
       {std::string(), std::string("{}"), good.substr(0, good.size() - 4),
        with("sluice kernels 1", "sluice kernels 2"), with("\"m\":1", "\"m\":0"),
        with("\"m\":1", "\"m\":1.5"), with("\"of_limit\":0.9", "\"of_limit\":\"much\""),
        with("\"noise\":0.0", "\"noise\":-1"), with("\"passes\":[[", "\"passes\":[[0,"),
        with("\"passes\":[[", "\"passes\":[3,["), with("\"passes\"", "\"passed\""),
        with("\"rows\":[", "\"rows\":[3,"), with("\"kernel\"", "\"colonel\""),
        with("\"threads\":2", "\"threads\":null")}) {
    EXPECT_FALSE(parse_report(text)) << text;
  }
}

// Three runs: an ordinary one, one with a slow machine for a while, one where only the limit was.
TEST(KernelReport, PassesMakeOneRow) {
  KernelReport r = report_of({timing("a", 1, 0.80, 0.01), timing("b", 1, 0.5)});
  r.rows[0].passes = {{1.0, 0.80, 0.40}};
  KernelReport second = report_of({timing("c", 1, 0.3), timing("a", 1, 0.85)});
  second.rows[1].passes = {{2.0, 1.70, 0.90}};
  add_pass(r, second);
  ASSERT_EQ(r.rows.size(), 3u);
  EXPECT_EQ(r.rows[2].kernel, "c");
  EXPECT_DOUBLE_EQ(r.rows[0].of_limit, 0.80);
  EXPECT_NEAR(r.rows[0].noise, 0.05 / 0.80, 1e-9);
  KernelReport third = report_of({timing("a", 1, 1.5)});
  third.rows[0].passes = {{1.0, 1.50, 0.75}};
  add_pass(r, third);
  const KernelTiming& a = r.rows[0];
  EXPECT_EQ(a.passes.size(), 3u);
  EXPECT_DOUBLE_EQ(a.best, 1.0);
  EXPECT_DOUBLE_EQ(a.of_limit, 0.80);
  EXPECT_DOUBLE_EQ(a.of_best, 0.40);
  EXPECT_NEAR(a.noise, (1.5 - 0.8) / 0.8, 1e-9);  // without the first
  EXPECT_DOUBLE_EQ(r.rows[1].of_limit, 0.5);
}

TEST(KernelReport, ASlowerRowIsFound) {
  KernelReport before = report_of(
      {timing("a", 1, 0.80), timing("a", 2, 0.80), timing("a", 4, 0.80), timing("gone", 1, 0.5)});
  KernelReport after = report_of(
      {timing("a", 1, 0.75), timing("a", 2, 0.77), timing("a", 4, 0.90), timing("new", 1, 0.1)});
  std::vector<KernelChange> changes = compare_reports(before, after, 0.05);
  ASSERT_EQ(changes.size(), 3u);
  EXPECT_TRUE(changes[0].slower());
  EXPECT_FALSE(changes[0].faster());
  EXPECT_FALSE(changes[1].slower() || changes[1].faster());
  EXPECT_TRUE(changes[2].faster());
  EXPECT_FALSE(changes[2].slower());
}

// A row is as loud in the run as in the baseline: both add up.
TEST(KernelReport, NoiseWidensTheTolerance) {
  auto slower = [](double noise_before, double noise_after, double least) {
    KernelReport before = report_of({timing("a", 1, 1.0, noise_before)});
    KernelReport after = report_of({timing("a", 1, 0.85, noise_after)});
    return compare_reports(before, after, least).at(0).slower();
  };
  EXPECT_TRUE(slower(0, 0, 0.05));
  EXPECT_TRUE(slower(0.03, 0.03, 0.05));
  EXPECT_FALSE(slower(0.05, 0.03, 0.05));
  EXPECT_FALSE(slower(0, 0.08, 0.05));
  EXPECT_FALSE(slower(0, 0, 0.2));
  // No noise excuses half the speed.
  KernelReport before = report_of({timing("a", 1, 1.0, 3.0)});
  KernelReport after = report_of({timing("a", 1, 0.49, 5.0)});
  EXPECT_TRUE(compare_reports(before, after, 0.05).at(0).slower());
}

TEST(KernelPlan, RowsOfActivations) {
  EXPECT_EQ(*parse_ms("8,1,2-4,3"), (std::vector<int>{1, 2, 3, 4, 8}));
  EXPECT_EQ(*parse_ms("512"), (std::vector<int>{512}));
  for (const char* bad : {"", "0", "-1", "4-2", "1,", ",1", "1-", "a", "1x", "1-2-3", "1 2",
                          "9999999", "99999999999999999999"})
    EXPECT_FALSE(parse_ms(bad)) << bad;
}

TEST(KernelPlan, OptionsSelect) {
  BenchKernelsOptions o;
  o.shapes = {"qwen2.5-0.5b"};
  auto all = kernel_cases(o, {1, 64, 512});
  ASSERT_TRUE(all) << all.error().message;
  for (const KernelCaseId& c : *all) {
    EXPECT_FALSE(c.ms.empty());
    if (c.product == "lm_head") {
      EXPECT_EQ(c.ms, (std::vector<int>{1, 64}));
      EXPECT_EQ(c.rows, 151936);
      EXPECT_EQ(c.cols, 896);
    }
  }
  o.formats = {"q8_0"};
  o.products = {"down"};
  auto one = kernel_cases(o, {1});
  ASSERT_TRUE(one);
  ASSERT_EQ(one->size(), 1u);
  EXPECT_EQ((*one)[0].row, &choose_matmul(Format::q8_0, 896, 4864));
  o.rows = KernelRows::all;
  EXPECT_GT(kernel_cases(o, {1})->size(), one->size() - 1);
  o.names = {"scalar-q8_0"};
  EXPECT_EQ(kernel_cases(o, {1})->at(0).kernel, "scalar-q8_0");
  o.names = {"no-such"};
  EXPECT_FALSE(kernel_cases(o, {1}));
  o.names = {};
  o.shapes = {"no-such"};
  EXPECT_FALSE(kernel_cases(o, {1}));
}

TEST(KernelPlan, MatmulsOfAStep) {
  std::vector<KernelCaseId> cases;
  std::vector<KernelTiming> rows;
  for (const char* product : {"qkv", "o", "gate_up", "down", "lm_head"}) {
    KernelCaseId c;
    c.kernel = "a";
    c.shape_name = "qwen2.5-0.5b";
    c.product = product;
    c.times = c.product == "lm_head" ? 1 : 24;
    c.ms = {1, 16, 512};
    cases.push_back(c);
    for (int m : c.ms) {
      if (m == 512 && c.product == "lm_head") continue;
      rows.push_back(timing("a", m, c.product == "lm_head" ? 0.25 : 0.5));
      rows.back().product = product;
      rows.back().best = m * (c.product == "lm_head" ? 10.0 : 1.0);
    }
  }
  std::vector<StepTime> steps = step_times(cases, rows);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_DOUBLE_EQ(steps[1].seconds, 16 * (24 * 4 + 10));
  EXPECT_DOUBLE_EQ(steps[1].limit, 16 * (24 * 4 * 0.5 + 10 * 0.25));
  EXPECT_DOUBLE_EQ(steps[2].seconds, 512 * 24 * 4 + 10);  // one row of logits
  rows.erase(rows.begin());                               // no qkv at 1
  EXPECT_EQ(step_times(cases, rows).size(), 2u);
  cases.pop_back();
  EXPECT_TRUE(step_times(cases, rows).empty());
}

}  // namespace
}  // namespace sluice
