#include "base/trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/json.h"

namespace sluice {
namespace {

using std::chrono::microseconds;

json::array events(const Trace& trace) {
  auto parsed = parse_json(trace.to_json());
  EXPECT_TRUE(parsed) << parsed.error().message;
  return parsed->as_object().at("traceEvents").as_array();
}

TEST(Trace, SpansAndCounters) {
  Trace trace;
  TraceTrack* engine = trace.track("engine \"0\"\n\xff");
  record_span(engine, "step", microseconds(5), Time(7250), {{"tokens", 12}, {"share", 0.5}});
  record_span(engine, "plan", Time(1), Time(1));
  TraceTrack* device = trace.track("device");
  record_counter(device, "free blocks", microseconds(9), 41);
  record_span(device, "back to front", microseconds(9), microseconds(3));
  json::array e = events(trace);
  ASSERT_EQ(e.size(), 6u);
  EXPECT_EQ(e[0].at("ph"), "M");
  EXPECT_EQ(e[0].at("name"), "thread_name");
  EXPECT_EQ(e[0].at("args").at("name"), "'engine \"0\"\\x0a\\xff'");
  EXPECT_EQ(e[1].at("ph"), "X");
  EXPECT_EQ(e[1].at("name"), "step");
  EXPECT_DOUBLE_EQ(e[1].at("ts").as_double(), 5);
  EXPECT_DOUBLE_EQ(e[1].at("dur").as_double(), 2.25);
  EXPECT_EQ(e[1].at("args").at("tokens").to_number<int>(), 12);
  EXPECT_EQ(e[1].at("args").at("share").to_number<double>(), 0.5);
  EXPECT_DOUBLE_EQ(e[2].at("ts").as_double(), 0.001);
  EXPECT_DOUBLE_EQ(e[2].at("dur").as_double(), 0);
  EXPECT_FALSE(e[2].as_object().contains("args"));
  EXPECT_EQ(e[3].at("args").at("name"), "device");
  EXPECT_NE(e[3].at("tid"), e[0].at("tid"));
  EXPECT_EQ(e[4].at("ph"), "C");
  EXPECT_EQ(e[4].at("args").at("value").to_number<int>(), 41);
  EXPECT_DOUBLE_EQ(e[5].at("dur").as_double(), 0);
}

TEST(Trace, NullTrackRecordsNothing) {
  record_span(nullptr, "x", Time(0), Time(1));
  record_counter(nullptr, "x", Time(0), 1);
  EXPECT_TRUE(events(Trace()).empty());
}

TEST(Trace, DropsAndSaysSo) {
  Trace trace(10);
  TraceTrack* track = trace.track("t");
  for (int i = 0; i < 25; ++i) record_span(track, "e", Time(i), Time(i + 1));
  EXPECT_EQ(events(trace).size(), 11u);
  EXPECT_EQ(trace.num_dropped(), 15u);
  auto parsed = parse_json(trace.to_json());
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->at("otherData").at("dropped_events"), "15");
}

TEST(Trace, TooManyArgsAndOddNumbers) {
  Trace trace;
  double inf = std::numeric_limits<double>::infinity();
  record_span(trace.track("t"), "e", Time(-1500), Time(0),
              {{"a", 1e300}, {"b", inf}, {"c", -3}, {"d", 4}, {"e", 5}});
  json::array e = events(trace);
  ASSERT_EQ(e.size(), 2u);
  EXPECT_DOUBLE_EQ(e[1].at("ts").as_double(), -1.5);
  EXPECT_EQ(e[1].at("args").as_object().size(), 4u);
  EXPECT_TRUE(e[1].at("args").at("b").is_null());
}

TEST(Trace, ManyThreadsWhileWriting) {
  Trace trace;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&trace] {
      TraceTrack* track = trace.track("worker");
      for (int i = 0; i < 500; ++i) record_span(track, "work", Time(i), Time(i + 1), {{"i", 1}});
    });
  }
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(parse_json(trace.to_json()));
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(events(trace).size(), 4u * 501);
}

TEST(Trace, WritesAFile) {
  Trace trace;
  record_span(trace.track("t"), "e", Time(0), Time(1));
  std::string path = testing::TempDir() + "trace_test_" + std::to_string(getpid()) + ".json";
  ASSERT_TRUE(trace.write(path));
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(text.str(), trace.to_json());
  std::remove(path.c_str());
  auto bad = trace.write("/nonexistent/dir/x.json");
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().message.find("cannot open trace file"), std::string::npos);
}

}  // namespace
}  // namespace sluice
