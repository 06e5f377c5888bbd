// The load generator's parts that need no server: arrivals, traces, chunks, summaries, plots.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tools/bench_serve/chunk.h"
#include "tools/bench_serve/plan.h"
#include "tools/bench_serve/result.h"
#include "tools/bench_serve/report_html.h"
#include "tools/plot.h"

namespace sluice {
namespace {

TEST(BenchServePlan, LengthRanges) {
  auto r = parse_length_range("8-12", "--input").value();
  EXPECT_EQ(r.lo, 8);
  EXPECT_EQ(r.hi, 12);
  EXPECT_EQ(parse_length_range("7", "--input").value().hi, 7);
  std::vector<int> seen(13);
  for (uint64_t i = 0; i < 1000; ++i) ++seen[static_cast<size_t>(r.pick(1, i, 0))];
  for (size_t n = 0; n < seen.size(); ++n) EXPECT_EQ(seen[n] > 100, n >= 8) << n;
  for (const char* bad : {"", "0", "-5", "5-", "9-8", "a", "1-2-3", "1.5", "99999999999"})
    EXPECT_FALSE(parse_length_range(bad, "--input")) << bad;
}

TEST(BenchServePlan, LengthsAsInChats) {
  auto r = parse_length_range("lognormal:55:150", "--output").value();
  std::vector<int> all;
  for (uint64_t i = 0; i < 1001; ++i) all.push_back(r.pick(1, i, 0));
  std::ranges::sort(all);
  EXPECT_GE(all.front(), 1);
  EXPECT_EQ(all.back(), 150);
  EXPECT_NEAR(all[500], 55, 6);
  EXPECT_LT(all[100], 25);
  for (const char* bad : {"lognormal:", "lognormal:5", "lognormal:0:5", "lognormal:9:5",
                          "lognormal:5:", "lognormal:5:x", "lognormal:5:99999999999"})
    EXPECT_FALSE(parse_length_range(bad, "--input")) << bad;
}

TEST(BenchServePlan, ObjectivesAndLists) {
  Slo s = parse_slo("ttft=200ms,itl=1.5s,e2e=2m").value();
  EXPECT_DOUBLE_EQ(s.ttft, 0.2);
  EXPECT_DOUBLE_EQ(s.itl, 1.5);
  EXPECT_DOUBLE_EQ(s.e2e, 120);
  EXPECT_EQ(s.tpot, 0);
  EXPECT_FALSE(parse_slo("").value().any());
  for (const char* bad : {"ttft", "ttft=", "ttft=x", "ttft=-1s", "ttft=0", "tfft=1s", "ttft=1h"})
    EXPECT_FALSE(parse_slo(bad)) << bad;
  EXPECT_EQ(parse_list("1,8,64", "--concurrency", true).value(), (std::vector<double>{1, 8, 64}));
  EXPECT_EQ(parse_list("0.5", "--rate", false).value(), (std::vector<double>{0.5}));
  for (const char* bad : {"1,", ",1", "0", "-1", "x", "1;2", "nan", "inf"})
    EXPECT_FALSE(parse_list(bad, "--rate", false)) << bad;
  EXPECT_FALSE(parse_list("1.5", "--concurrency", true));
}

// Gaps of a Poisson process: mean and deviation 1/rate, memoryless, no drift.
TEST(BenchServePlan, PoissonArrivals) {
  constexpr int kNum = 200'000;
  const double rate = 250;
  ArrivalTimes arrivals({0, rate, true}, 7);
  double last = 0, sum = 0, squares = 0, above = 0, product = 0, before = 0;
  for (int i = 0; i < kNum; ++i) {
    double t = arrivals.next(), gap = t - last;
    ASSERT_GE(gap, 0);
    last = t;
    sum += gap;
    squares += gap * gap;
    above += gap > 1 / rate;
    product += (gap - 1 / rate) * (before - 1 / rate);
    before = gap;
  }
  double mean = sum / kNum, deviation = std::sqrt(squares / kNum - mean * mean);
  EXPECT_NEAR(mean * rate, 1, 0.01);
  EXPECT_NEAR(deviation * rate, 1, 0.01);
  EXPECT_NEAR(above / kNum, std::exp(-1), 0.005);
  EXPECT_NEAR(product / kNum / (deviation * deviation), 0, 0.01);
}

TEST(BenchServePlan, FixedArrivals) {
  ArrivalTimes arrivals({0, 10, false}, 1);
  for (int i = 0; i < 1000; ++i) EXPECT_DOUBLE_EQ(arrivals.next(), i / 10.0);
}

TEST(BenchServePlan, TraceLines) {
  auto azure = parse_trace_line("2023-11-16 18:15:46.6805900,374,44").value();
  EXPECT_EQ(azure.input, 374);
  EXPECT_EQ(azure.output, 44);
  auto later = parse_trace_line("2023-11-17 00:00:00.1805900,1,2").value();
  EXPECT_NEAR(later.at - azure.at, 20'653.5, 1e-6);
  auto leap = parse_trace_line("2024-03-01 00:00:00,1,1").value(),
       before = parse_trace_line("2024-02-28 00:00:00,1,1").value();
  EXPECT_DOUBLE_EQ(leap.at - before.at, 2 * 86'400);
  auto mooncake =
      parse_trace_line(
          R"({"timestamp": 1500, "input_length": 600, "output_length": 6, "hash_ids": [3, 9]})")
          .value();
  EXPECT_DOUBLE_EQ(mooncake.at, 1.5);
  EXPECT_EQ(mooncake.blocks, (std::vector<uint64_t>{3, 9}));
  for (const char* bad :
       {"", "x,1,2", "1.5,0,2", "1.5,1", "1.5,1,-2", "1.5,1,99999999999", "{}", "{\"timestamp\":1}",
        R"({"timestamp":1,"input_length":-4,"output_length":1})", "2023-13-16 18:15:46,1,1",
        R"({"timestamp":1,"input_length":1,"output_length":1,"hash_ids":["a"]})"})
    EXPECT_FALSE(parse_trace_line(bad)) << bad;
}

TEST(BenchServePlan, RealTraces) {
  const char* set = std::getenv("SLUICE_TEST_DATA");
  std::string data = set ? set : SLUICE_SOURCE_DIR "/../shared/data";
  std::string azure = data + "/workloads/AzureLLMInferenceTrace_conv.csv";
  if (!std::filesystem::exists(azure)) GTEST_SKIP() << "no " << azure;
  auto all = read_trace(azure).value();
  EXPECT_EQ(all.size(), 19'366u);
  EXPECT_EQ(all[0].at, 0);
  for (size_t i = 1; i < all.size(); ++i) ASSERT_GE(all[i].at, all[i - 1].at);
  EXPECT_EQ(read_trace(azure, 10).value().size(), 10u);
  auto mooncake = read_trace(data + "/workloads/synthetic_trace.jsonl").value();
  EXPECT_EQ(mooncake.size(), 3'993u);
  for (const TraceEntry& e : mooncake)
    ASSERT_EQ(e.blocks.size(),
              static_cast<size_t>((e.input + kTraceBlockTokens - 1) / kTraceBlockTokens));
  EXPECT_FALSE(read_trace(data + "/workloads/none.csv"));
}

TEST(BenchServeChunk, WhatServersSend) {
  ChunkInfo c;
  ASSERT_TRUE(read_chunk(
      R"({"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]})",
      true, c));
  EXPECT_TRUE(c.has_choice);
  EXPECT_FALSE(c.has_text);
  ASSERT_TRUE(read_chunk(
      R"({"model":"\"choices\"","choices":[{"delta":{"content":"a\"\u00e9\ud83d\ude00\n"},"logprobs":{"content":[{"token":"x","top_logprobs":[]}]}}],"usage":null})",
      true, c));
  EXPECT_EQ(c.text, "a\"é😀\n");
  EXPECT_TRUE(c.has_text);
  EXPECT_FALSE(c.has_usage);
  ASSERT_TRUE(read_chunk(
      R"( { "choices" : [ { "text" : "hi" , "finish_reason" : "stop" } ] , "usage" : { "prompt_tokens" : 3, "completion_tokens" : 5 , "prompt_tokens_details" : { "audio": 1, "cached_tokens" : 2 } } } )",
      true, c));
  EXPECT_EQ(c.text, "hi");
  EXPECT_EQ(c.finish, "stop");
  EXPECT_TRUE(c.has_usage);
  EXPECT_EQ(c.prompt_tokens, 3);
  EXPECT_EQ(c.completion_tokens, 5);
  EXPECT_EQ(c.cached_tokens, 2);
  ASSERT_TRUE(read_chunk(R"({"choices":[],"usage":{"completion_tokens":1}})", false, c));
  EXPECT_FALSE(c.has_choice);
  EXPECT_TRUE(c.has_usage);
  ASSERT_TRUE(read_chunk(R"({"error":{"message":"too \"much\"","code":null}})", false, c));
  EXPECT_TRUE(c.is_error);
  EXPECT_EQ(c.message, "too \"much\"");
  ASSERT_TRUE(read_chunk(
      R"({"choices":[{"delta":{"content":null,"tool_calls":[{"index":0}],"reasoning_content":""}}]})",
      true, c));
  EXPECT_TRUE(c.has_text);
  ASSERT_TRUE(read_chunk(
      R"({"choices":[{"message":{"content":"whole"},"finish_reason":"length"}]})", true, c));
  EXPECT_EQ(c.text, "whole");
}

TEST(BenchServeChunk, NotAnswers) {
  ChunkInfo c;
  for (const char* bad : {"", "[]", "x", "{", "{\"choices\":[", "{\"a\":1}}", "{\"a\" 1}", "null",
                          "{\"choices\":[{\"text\":\"a}]}", "{\"a\":}", "{,}"})
    EXPECT_FALSE(read_chunk(bad, true, c)) << bad;
  // Fields of other types are passed over.
  ASSERT_TRUE(read_chunk(R"({"choices":"x","usage":[1],"error":null,"a":[{"b":[]},true,-1.5e3]})",
                         true, c));
  EXPECT_FALSE(c.has_choice || c.has_usage || c.is_error);
  ASSERT_TRUE(read_chunk(
      R"({"choices":[null,{"text":5,"delta":"x","finish_reason":1}],"usage":{"completion_tokens":"7"}})",
      true, c));
  EXPECT_FALSE(c.has_text || c.has_usage);
}

LoadRecord answered(uint64_t index, double begin, double ttft, double per_token, int tokens) {
  LoadRecord r;
  r.index = index;
  r.due = r.begin = r.sent = begin;
  r.first = begin + ttft;
  r.last = r.end = r.first + per_token * (tokens - 1);
  r.max_gap = per_token;
  r.status = 200;
  r.finish = "length";
  r.has_usage = true;
  r.input_tokens = r.input_asked = 10;
  r.output_tokens = r.chunks = tokens;
  return r;
}

RunResult small_run() {
  RunResult run;
  run.point = {0, 10, false};
  for (uint64_t i = 0; i < 99; ++i)
    run.records.push_back(
        answered(i, 0.1 * static_cast<double>(i), 0.001 * static_cast<double>(i + 1), 0.01, 11));
  LoadRecord refused;
  refused.index = 99;
  refused.begin = 9.9;
  refused.end = 9.92;
  refused.fate = Fate::http_status;
  refused.status = 429;
  refused.retry_after = 1;
  refused.message = "<busy>";
  run.records.push_back(refused);
  for (int i = 0; i < 990; ++i) run.gaps.add(0.01);
  run.elapsed = 10;
  run.send_window = 9.9;
  run.tokens_per_bin.assign(100, 11);
  return run;
}

TEST(BenchServeResult, Arithmetic) {
  Slo slo = parse_slo("ttft=50ms,itl=10.1ms").value();
  Summary s = summarise(small_run(), slo, true);
  EXPECT_EQ(s.sent, 100u);
  EXPECT_EQ(s.ok, 99u);
  EXPECT_EQ(s.failed, 1u);
  EXPECT_EQ(s.failures.at("http 429"), 1u);
  EXPECT_EQ(s.refused, 1u);
  EXPECT_EQ(s.with_retry_after, 1u);
  EXPECT_EQ(s.output_tokens, 99u * 11);
  EXPECT_EQ(s.good, 50u);
  EXPECT_NEAR(s.share(s.good), 0.5, 1e-9);
  EXPECT_EQ(s.fastgen[0], 19u);  // first tokens of 10-token prompts within 19.5 ms
  EXPECT_NEAR(s.worst_decile, 0.01, 1e-9);
  EXPECT_NEAR(s.normalised.at(0), 0.101 / 11, 1e-9);
  EXPECT_NEAR(s.send_rate(), 10, 1e-9);
  EXPECT_NEAR(s.ttft.at(0.5), 0.050, 1e-9);
  EXPECT_NEAR(s.ttft.at(1), 0.099, 1e-9);
  EXPECT_NEAR(s.ttft.at(0.99), 0.09802, 1e-6);
  EXPECT_NEAR(s.tpot.mean(), 0.01, 1e-9);
  EXPECT_NEAR(s.refusal.at(1), 0.02, 1e-9);
  json::object j = summary_json(s);
  EXPECT_NEAR(j["output_tokens_per_s"].as_double(), 108.9, 1e-9);
  EXPECT_EQ(j["failures"].as_object()["http 429"].to_number<int>(), 1);
  std::vector<Summary> all = {s, s};
  std::string table = summary_table(all);
  EXPECT_NE(table.find("http 429"), std::string::npos);
  EXPECT_NE(table.find("with Retry-After"), std::string::npos);
}

TEST(BenchServeResult, LateSendsAreToldOf) {
  RunResult run = small_run();
  for (int i = 0; i < 100; ++i) run.lateness.add(0.05);
  run.client_cpu = 0.95;
  Summary s = summarise(run, {}, true);
  EXPECT_EQ(s.warnings.size(), 2u);
  EXPECT_FALSE(s.has_slo);
}

TEST(ReportHtml, SelfContainedAndEscaped) {
  std::vector<RunResult> runs;
  runs.push_back(small_run());
  runs.push_back(small_run());
  std::vector<Summary> summaries;
  for (const RunResult& r : runs) summaries.push_back(summarise(r, {}, true));
  std::string page = html_report({"http://h", "<m>", "chat", "made up", ""}, runs, summaries);
  EXPECT_NE(page.find("&lt;m&gt;"), std::string::npos);
  EXPECT_NE(page.find("&lt;busy&gt;"), std::string::npos);
  EXPECT_EQ(page.find("<m>"), std::string::npos);
  EXPECT_EQ(page.find("nan"), std::string::npos);
  EXPECT_EQ(page.find("src="), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_NE(page.find("prefers-color-scheme:dark"), std::string::npos);
  size_t plots = 0;
  for (size_t at = 0; (at = page.find("<svg", at)) != std::string::npos; ++at) ++plots;
  EXPECT_EQ(plots, 3u + 3u + 2u * 3u);
}

TEST(ReportHtml, Ticks) {
  EXPECT_EQ(nice_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(nice_ticks(0, 0.03, 3), (std::vector<double>{0, 0.01, 0.02, 0.03}));
  EXPECT_EQ(nice_ticks(3, 3, 5), (std::vector<double>{3}));
  // A plot without points is still a plot.
  EXPECT_NE(svg_plot({"t", "x", "y", true, false, {}}).find("</svg>"), std::string::npos);
}

}  // namespace
}  // namespace sluice
