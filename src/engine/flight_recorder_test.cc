#include "engine/flight_recorder.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "core/fake_executor.h"
#include "core/replay.h"
#include "engine/loop.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

// A folder of its own, removed at the end.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "sluice_recorder_XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path); }
  std::vector<fs::path> files(const fs::path& in) const {
    std::vector<fs::path> out;
    for (const auto& f : fs::directory_iterator(in)) {
      if (f.path().extension() == ".slrec") out.push_back(f.path());
    }
    std::ranges::sort(out);
    return out;
  }
  fs::path path;
};

Bytes read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

FlightOptions options(const Folder& folder, uint64_t bytes = FlightOptions::kMinBytes) {
  FlightOptions o;
  o.dir = folder.path.string();
  o.bytes = bytes;
  o.header.vocab = 1000;
  o.header.model = "fake";
  return o;
}

// So many iterations of a busy loop, recorded.
void run(FlightRecorder& recorder, int iterations) {
  SchedulerConfig c;
  c.num_blocks = 256;
  c.block_size = 4;
  c.budget = 64;
  c.max_seqs = 16;
  c.max_len = 64;
  Scheduler scheduler(c, nullptr);
  scheduler.listen(recorder.start(scheduler));
  FakeExecutor executor([](const StepPlan& p, const Slice& s) {
    return static_cast<Token>((p.step * 31 + s.slot * 7) % 1000);
  });
  SimClock clock;
  Loop loop(scheduler, executor, clock, c.pipeline);
  Events events;
  RequestId id = 1;
  for (int k = 0; k < iterations; ++k) {
    clock.advance_to(Time{k * 1000});
    while (scheduler.stats().num_waiting < 4) {
      Request r;
      r.id = id++;
      r.prompt = std::make_shared<const std::vector<Token>>(5 + r.id % 30, Token{7});
      r.sampling = std::make_shared<const SamplingSpec>();
      r.max_new = 20;
      ASSERT_TRUE(scheduler.add(std::move(r), clock.now()));
    }
    events.clear();
    loop.iterate(events);
  }
  loop.abandon();
  scheduler.listen(nullptr);
}

TEST(FlightRecorder, ARingOfSegmentsEachOfWhichReplays) {
  Folder folder;
  uint64_t segments = 0;
  {
    auto recorder = FlightRecorder::open(options(folder)).value();
    run(*recorder, 12000);
    segments = recorder->stats().segments;
  }
  std::vector<fs::path> files = folder.files(folder.path);
  uint64_t size = 0;
  for (const fs::path& f : files) size += fs::file_size(f);
  EXPECT_LE(size, FlightOptions::kMinBytes);
  EXPECT_GT(segments, files.size()) << "the ring has not turned";
  ASSERT_GE(files.size(), 3u);
  for (const fs::path& f : files) {
    Result<ScheduleReport> report = replay_schedule(read(f));
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->difference, "");
    EXPECT_EQ(report->tail, RecordReader::Tail::whole);
    EXPECT_FALSE(report->header.text);
  }
}

// Another run in the same folder: its files are others, and the old ones make room.
TEST(FlightRecorder, RunsAreNotMixed) {
  Folder folder;
  std::set<uint64_t> runs;
  for (int k = 0; k < 2; ++k) {
    auto recorder = FlightRecorder::open(options(folder)).value();
    run(*recorder, 300);
  }
  for (const fs::path& f : folder.files(folder.path)) {
    Result<ScheduleReport> report = replay_schedule(read(f));
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->difference, "");
    runs.insert(report->header.run);
  }
  EXPECT_EQ(runs.size(), 2u);
}

TEST(FlightRecorder, KeepsAsOftenAsItMay) {
  Folder folder;
  auto recorder = FlightRecorder::open(options(folder)).value();
  run(*recorder, 300);
  std::string kept = recorder->keep("test").value();
  for (int k = 1; k < FlightRecorder::kMaxKept; ++k) EXPECT_TRUE(recorder->keep("test"));
  EXPECT_EQ(recorder->keep("test").error().code, 409);
  recorder.reset();  // all is written
  ASSERT_EQ(folder.files(kept).size(), 1u);
  EXPECT_EQ(replay_schedule(read(folder.files(kept)[0])).value().difference, "");
}

TEST(FlightRecorder, AFolderHasOneOwnerAndMustBeAFolder) {
  Folder folder;
  auto recorder = FlightRecorder::open(options(folder)).value();
  EXPECT_NE(FlightRecorder::open(options(folder)).error().message.find("another process"),
            std::string::npos);
  recorder.reset();
  EXPECT_TRUE(FlightRecorder::open(options(folder)));
  FlightOptions o = options(folder);
  o.dir += "/lock";
  EXPECT_EQ(FlightRecorder::open(o).error().code, 400);
  o = options(folder, 1 << 20);
  EXPECT_EQ(FlightRecorder::open(o).error().message, "--record-size: a ring has at least 4 MiB");
}

// More in one go than the buffer holds: nobody waits, the segment is dropped, and it goes on.
TEST(FlightRecorder, WhatDoesNotFitIsDropped) {
  Folder folder;
  FlightOptions o = options(folder);
  o.text = true;
  auto recorder = FlightRecorder::open(o).value();
  SchedulerConfig c;
  c.num_blocks = 64;
  Scheduler scheduler(c, nullptr);
  scheduler.listen(recorder->start(scheduler));
  StepMasks masks{1, {StepMasks::Row(3 << 18)}};  // 3 MiB
  recorder->masks(masks);
  EXPECT_EQ(recorder->stats().dropped, 1u);
  EXPECT_EQ(recorder->stats().segments, 1u);
  StepPlan plan;
  Events events;
  for (int k = 0; k < 20; ++k) scheduler.plan(Time{k}, plan, events);
  EXPECT_EQ(recorder->stats().segments, 2u);
  scheduler.listen(nullptr);
  recorder.reset();
  ASSERT_EQ(folder.files(folder.path).size(), 2u);
  for (const fs::path& f : folder.files(folder.path)) {
    Result<ScheduleReport> report = replay_schedule(read(f));
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_FALSE(report->header.follows);
  }
}

TEST(FlightRecorder, PseudonymsAreAPermutationThatChanges) {
  auto a = token_pseudonyms(5000), b = token_pseudonyms(5000);
  EXPECT_NE(*a, *b);
  TokenMap sorted = *a;
  std::ranges::sort(sorted);
  for (size_t k = 0; k < sorted.size(); ++k) ASSERT_EQ(sorted[k], static_cast<Token>(k));
}

}  // namespace
}  // namespace sluice
