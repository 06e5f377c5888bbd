#include "base/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

namespace sluice {
namespace {

TEST(Metrics, ExposesEveryKind) {
  Metrics m;
  Counter& requests =
      m.counter("sluice_requests_total", "Requests, by outcome.", {{"code", "200"}});
  requests.add();
  requests.add(2);
  requests.add(-5);
  requests.add(std::nan(""));
  Gauge& free_blocks = m.gauge("sluice_blocks_free", "Free KV blocks.");
  free_blocks.set(7);
  free_blocks.add(-0.5);
  m.counter("sluice_requests_total", "Requests, by outcome.", {{"code", "400"}}).add(0.1);
  Histogram& ttft = m.histogram("sluice_ttft_seconds", "Time to first token.", {0.1, 1, 2.5});
  for (double v : {0.05, 0.1, 0.2, 1.0, 2.0, 99.0}) ttft.observe(v);
  ttft.observe(std::nan(""));
  EXPECT_EQ(m.expose(),
            "# HELP sluice_requests_total Requests, by outcome.\n"
            "# TYPE sluice_requests_total counter\n"
            "sluice_requests_total{code=\"200\"} 3\n"
            "sluice_requests_total{code=\"400\"} 0.1\n"
            "# HELP sluice_blocks_free Free KV blocks.\n"
            "# TYPE sluice_blocks_free gauge\n"
            "sluice_blocks_free 6.5\n"
            "# HELP sluice_ttft_seconds Time to first token.\n"
            "# TYPE sluice_ttft_seconds histogram\n"
            "sluice_ttft_seconds_bucket{le=\"0.1\"} 2\n"
            "sluice_ttft_seconds_bucket{le=\"1\"} 4\n"
            "sluice_ttft_seconds_bucket{le=\"2.5\"} 5\n"
            "sluice_ttft_seconds_bucket{le=\"+Inf\"} 6\n"
            "sluice_ttft_seconds_sum 102.35\n"
            "sluice_ttft_seconds_count 6\n");
}

TEST(Metrics, Escapes) {
  Metrics m;
  m.gauge("g", "a \\ b\n\"c\"", {{"model", "x\"y\\z\nw"}, {"b", ""}}).set(-1);
  m.histogram("h", "", {1}, {{"k", "v"}}).observe(0);
  EXPECT_EQ(m.expose(),
            "# HELP g a \\\\ b\\n\"c\"\n"
            "# TYPE g gauge\n"
            "g{model=\"x\\\"y\\\\z\\nw\",b=\"\"} -1\n"
            "# HELP h \n"
            "# TYPE h histogram\n"
            "h_bucket{k=\"v\",le=\"1\"} 1\n"
            "h_bucket{k=\"v\",le=\"+Inf\"} 1\n"
            "h_sum{k=\"v\"} 0\n"
            "h_count{k=\"v\"} 1\n");
}

TEST(Metrics, OddNumbers) {
  Metrics m;
  Gauge& g = m.gauge("g", "h");
  auto value = [&](double v) {
    g.set(v);
    std::string text = m.expose();
    return text.substr(text.rfind(' ') + 1);
  };
  EXPECT_EQ(value(std::numeric_limits<double>::infinity()), "+Inf\n");
  EXPECT_EQ(value(-std::numeric_limits<double>::infinity()), "-Inf\n");
  EXPECT_EQ(value(std::nan("")), "NaN\n");
  EXPECT_EQ(value(1.0 / 3), "0.3333333333333333\n");
  EXPECT_EQ(value(1e300), "1e+300\n");
}

TEST(Metrics, SameNameAndLabelsAreOneMetric) {
  Metrics m;
  Counter& a = m.counter("c", "h", {{"k", "1"}});
  for (int i = 0; i < 100; ++i) m.counter("c", "h", {{"k", std::to_string(i)}});
  EXPECT_EQ(&a, &m.counter("c", "h", {{"k", "1"}}));
  EXPECT_NE(&a, &m.counter("c", "h", {{"k", "2"}}));
}

TEST(MetricsDeathTest, NamesAreChecked) {
  Metrics m;
  m.counter("ok_name:x1", "h");
  EXPECT_DEATH(m.counter("1x", "h"), "CHECK");
  EXPECT_DEATH(m.counter("a-b", "h"), "CHECK");
  EXPECT_DEATH(m.counter("a", "h", {{"le", "1"}}), "CHECK");
  EXPECT_DEATH(m.gauge("ok_name:x1", "h"), "CHECK");
  EXPECT_DEATH(m.histogram("h", "h", {1, 1}), "CHECK");
}

TEST(Metrics, ManyThreads) {
  Metrics m;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&m] {
      Counter& c = m.counter("c", "h");
      Histogram& h = m.histogram("s", "h", {10, 20});
      for (int i = 0; i < 1000; ++i) c.add(), h.observe(i % 30);
    });
  }
  for (int i = 0; i < 20; ++i) m.expose();
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(m.counter("c", "h").value(), 4000);
  Histogram& h = m.histogram("s", "h", {});
  EXPECT_EQ(h.bucket(0) + h.bucket(1) + h.bucket(2), 4000u);
  EXPECT_EQ(h.bucket(0), 4u * (33 * 11 + 10));
}

TEST(Metrics, ExponentialBounds) {
  EXPECT_EQ(exponential_bounds(1, 2, 4), (std::vector<double>{1, 2, 4, 8}));
}

TEST(Percentiles, InterpolatesBetweenSamples) {
  Percentiles p;
  EXPECT_EQ(p.at(0.5), 0);
  EXPECT_EQ(p.mean(), 0);
  p.add(4);
  EXPECT_EQ(p.at(0.99), 4);
  for (double v : {1.0, 3.0, 2.0}) p.add(v);
  EXPECT_EQ(p.count(), 4u);
  EXPECT_EQ(p.mean(), 2.5);
  EXPECT_EQ(p.at(0), 1);
  EXPECT_EQ(p.at(0.5), 2.5);
  EXPECT_EQ(p.at(1), 4);
  EXPECT_EQ(p.at(7), 4);
  EXPECT_NEAR(p.at(0.9), 3.7, 1e-12);
  p.add(0);
  EXPECT_EQ(p.at(0), 0);
}

}  // namespace
}  // namespace sluice
