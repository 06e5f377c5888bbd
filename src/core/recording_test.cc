#include "core/recording.h"

#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

#include "core/executor_content.h"
#include "core/fake_executor.h"
#include "core/plan_codec.h"
#include "core/recording_fake.h"
#include "core/replay.h"
#include "core/scheduler_state.h"

namespace sluice {
namespace {

std::span<const std::byte> bytes_of(const char* text, size_t size) {
  return std::as_bytes(std::span(text, size));
}

// A scheduler with an executor that computes nothing, recorded.
class Recorded {
 public:
  static constexpr int kVocab = 50;
  static SchedulerConfig small() {
    SchedulerConfig c;
    c.budget = 16;
    c.max_seqs = 4;
    c.max_len = 64;
    c.num_blocks = 24;
    c.block_size = 4;
    c.pipeline = Pipeline::overlap;
    return c;
  }
  explicit Recorded(SchedulerConfig config = small(),
                    size_t segment = 1 << 20,
                    std::shared_ptr<const TokenMap> map = nullptr,
                    std::shared_ptr<const TokenText> text = nullptr)
      : scheduler(config, std::move(text)), encoder(header(), segment / 4, map, sink) {
    if (map) scheduler.hash_as(map);
    encoder.start(scheduler);
    scheduler.listen(&encoder);
  }
  static RecordingHeader header() {
    RecordingHeader h;
    h.run = 7, h.began = 1'700'000'000'000'000'000, h.vocab = kVocab;
    h.model = "tiny", h.model_hash = "abc", h.build = "0.1";
    return h;
  }
  Request request(int prompt, int max_new) {
    Request r;
    r.id = next_id_++;
    auto tokens = std::make_shared<std::vector<Token>>();
    for (int p = 0; p < prompt; ++p) tokens->push_back((p * 7 + 3) % kVocab);
    r.prompt = tokens;
    r.sampling = std::make_shared<const SamplingSpec>();
    r.max_new = max_new;
    r.arrival = now;
    return r;
  }
  void add(Request r) { ASSERT_TRUE(scheduler.add(std::move(r), now)); }
  // Plans, and completes the oldest step when two are in flight.
  void step() {
    now += std::chrono::milliseconds(1);
    scheduler.plan(now, plan, events);
    if (!plan.empty()) {
      FakeExecutor::answer(plan, draw, results.emplace_back());
      results.back().step = plan.step;
      results.back().begin = now, results.back().end = now + Time{5};
    }
    if (results.size() > 1 || (plan.empty() && !results.empty())) {
      scheduler.complete(results.front(), now, events);
      results.erase(results.begin());
    }
  }
  void finish() {
    for (int k = 0; k < 1000 && (scheduler.has_work() || !results.empty()); ++k) step();
    EXPECT_TRUE(scheduler.idle());
  }

  MemorySink sink;
  Scheduler scheduler;
  SegmentEncoder encoder;
  Time now{0};
  StepPlan plan;
  Events events;
  std::vector<StepResult> results;
  std::function<Token(const StepPlan&, const Slice&)> draw = [](const StepPlan& p, const Slice& s) {
    return static_cast<Token>((p.step * 3 + s.slot * 5) % kVocab);
  };

 private:
  RequestId next_id_ = 1;
};

void expect_replays(const std::vector<Bytes>& segments) {
  for (const Bytes& s : segments) {
    Result<ScheduleReport> report = replay_schedule(s);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->difference, "") << "segment " << report->header.segment;
    EXPECT_EQ(report->tail, RecordReader::Tail::whole);
  }
}

Recorded& recorded_run() {
  static const std::unique_ptr<Recorded> run = [] {
    auto r = std::make_unique<Recorded>();
    for (int i = 0; i < 5; ++i) r->add(r->request(5 + 6 * i, 6)), r->step();
    r->scheduler.cancel(3, r->now, r->events);
    r->finish();
    return r;
  }();
  return *run;
}

TEST(Recording, ChecksumIsCrc32c) {
  EXPECT_EQ(crc32c(bytes_of("123456789", 9)), 0xE3069283u);
  EXPECT_EQ(crc32c(bytes_of("56789", 5), crc32c(bytes_of("1234", 4))), 0xE3069283u);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(Recording, HeaderComesBack) {
  SchedulerConfig c = Recorded::small();
  c.order = Order::fair, c.aging = Time{5}, c.slo.itl = Time{7}, c.group_windows = {0, 12};
  c.tiers = {1, 2, 3, 4}, c.predictor = {Predict::survival, 9, 0.5f}, c.short_share = 0.25f;
  c.preempt = Preempt::swap, c.swap_cost = {1e-3, 2e-3, 3e-3}, c.sampling.bad_length = 17;
  RecordingHeader h = Recorded::header();
  h.segment = 12, h.follows = h.text = true, h.config = c;
  Bytes file;
  begin_segment(h, file);
  RecordReader reader(file);
  Result<RecordingHeader> back = reader.header();
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(*back, h);
  EXPECT_FALSE(reader.next());
  EXPECT_EQ(reader.tail(), RecordReader::Tail::whole);
  // A setting that is new must be written too: this fails when the struct grows.
  EXPECT_EQ(sizeof(SchedulerConfig), 288u) << "write the new field, and raise the version";
}

TEST(Recording, AnotherVersionIsRefused) {
  Bytes file;
  begin_segment(Recorded::header(), file);
  file[7] = std::byte{kRecordingVersion + 1};
  EXPECT_EQ(RecordReader(file).header().error().message,
            "the recording has version 2 and this build reads version 1: use the build that wrote "
            "it");
  file[0] = std::byte{'X'};
  EXPECT_EQ(RecordReader(file).header().error().message,
            "this is no recording: it begins with other letters");
}

// Up to the last whole record, wherever the file ends; and then every record replays.
TEST(Recording, CutAtAnyByteItIsReadUpToItsLastWholeRecord) {
  ASSERT_EQ(recorded_run().sink.segments.size(), 1u);
  const Bytes& file = recorded_run().sink.segments[0];
  std::vector<size_t> ends;  // of records
  RecordReader all(file);
  ASSERT_TRUE(all.header());
  do ends.push_back(all.at());
  while (all.next());
  ASSERT_EQ(all.tail(), RecordReader::Tail::whole);
  ASSERT_GT(ends.size(), 30u);
  for (size_t size = 0; size < file.size(); ++size) {
    std::span<const std::byte> part(file.data(), size);
    RecordReader reader(part);
    size_t whole =
        static_cast<size_t>(std::ranges::count_if(ends, [&](size_t end) { return end <= size; }));
    Result<RecordingHeader> header = reader.header();
    ASSERT_EQ(header.has_value(), whole > 0) << size;
    if (!header) continue;
    size_t num = 1;
    while (reader.next()) ++num;
    ASSERT_EQ(num, whole) << size;
    ASSERT_EQ(reader.at(), ends[whole - 1]);
    ASSERT_EQ(reader.tail(),
              size == ends[whole - 1] ? RecordReader::Tail::whole : RecordReader::Tail::cut);
    Result<ScheduleReport> report = replay_schedule(part);
    ASSERT_EQ(report.has_value(), whole > 1) << size;  // the state is the second
    if (report) {
      ASSERT_EQ(report->difference, "") << size;
      ASSERT_EQ(report->num_records, whole - 2);
    }
  }
}

// No bit can change unnoticed: what is behind it is not read, and nothing before it is lost.
TEST(Recording, AFlippedBitIsNoticed) {
  Bytes file = recorded_run().sink.segments[0];
  RecordReader all(file);
  ASSERT_TRUE(all.header());
  size_t num_all = 0;
  while (all.next()) ++num_all;
  for (size_t bit = 0; bit < file.size() * 8; bit += 3) {
    std::byte& at = file[bit / 8];
    at ^= std::byte{1} << (bit % 8);
    RecordReader reader(file);
    if (reader.header()) {
      size_t num = 0;
      while (reader.next()) ++num;
      EXPECT_LT(num, num_all) << bit;
      EXPECT_NE(reader.tail(), RecordReader::Tail::whole) << bit;
      EXPECT_LE(reader.at(), bit / 8) << bit;
    }
    at ^= std::byte{1} << (bit % 8);
  }
}

// A plan that differs is told in words.
TEST(Recording, TheFirstDifferenceIsTold) {
  const Bytes& file = recorded_run().sink.segments[0];
  Bytes changed(file.begin(), file.begin());
  RecordReader reader(file);
  ASSERT_TRUE(reader.header());
  changed.assign(file.begin(), file.begin() + static_cast<ptrdiff_t>(reader.at()));
  int plans = 0;
  while (std::optional<Record> r = reader.next()) {
    size_t at = begin_record(r->kind, changed);
    if (r->kind == RecordKind::plan && ++plans == 4) {
      RecordedPlan p = read_plan(r->payload).value();
      p.plan.edits.push_back({1, 2, 3, 0});
      Writer(changed).time(p.now);
      encode(p.plan, changed);
    } else {
      changed.insert(changed.end(), r->payload.begin(), r->payload.end());
    }
    end_record(at, changed);
  }
  Result<ScheduleReport> report = replay_schedule(changed);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_NE(report->difference.find("step 4 at 0.004000 s: table edit"), std::string::npos)
      << report->difference;
  EXPECT_EQ(report->num_plans, 4u);
}

// The stop string itself is not in the recording, nor what a constraint was.
TEST(Recording, StopStringsAndForcedTokensReplay) {
  auto text = std::make_shared<TokenText>();
  for (int t = 0; t < Recorded::kVocab; ++t) text->add(std::string(1, static_cast<char>('A' + t)));
  for (auto map : {std::shared_ptr<const TokenMap>(), shuffled_tokens(Recorded::kVocab, 3)}) {
    Recorded run(Recorded::small(), 300, map, text);
    run.draw = [](const StepPlan&, const Slice& s) { return (s.pos + s.count) % Recorded::kVocab; };
    for (int i = 0; i < 6; ++i) {
      Request r = run.request(5 + i, 20);
      r.stop.strings = {"secret", std::string{"MNO"}.substr(0, 1 + i % 3)};
      run.add(std::move(r));
      run.step();
    }
    Request r = run.request(4, 30);
    r.constraint = std::shared_ptr<const constrain::Constraint>(
        std::make_shared<int>(), reinterpret_cast<const constrain::Constraint*>(&run));
    r.stop.strings = {"QR"};
    RequestId id = r.id;
    run.add(std::move(r));
    for (int k = 0; k < 60 && run.scheduler.find(id); ++k) {
      run.events.clear();
      run.step();
      for (size_t e = 0; e < run.events.list.size(); ++e) {
        Event event = run.events.list[e];
        if (event.req != id || event.finish != Finish::none) continue;
        std::vector<Token> forced = {2, 3, 16, 17, 18};
        run.scheduler.append(event, std::span(forced).first(k < 8 ? 2 : 5), run.now, run.events);
        break;
      }
    }
    run.finish();
    EXPECT_GT(run.sink.segments.size(), 5u);
    expect_replays(run.sink.segments);
    for (const Bytes& s : run.sink.segments) {
      std::string all(reinterpret_cast<const char*>(s.data()), s.size());
      EXPECT_EQ(all.find("secret"), std::string::npos);
    }
  }
}

// Without text no run of a prompt's ids is in the file; with it, it is.
TEST(Recording, PseudonymsHideTokens) {
  Bytes needle;
  Recorded plain;
  Request r = plain.request(12, 2);
  Writer w(needle);
  for (Token t : *r.prompt) w.token(t);
  plain.add(r);
  plain.finish();
  Recorded hidden(Recorded::small(), 1 << 20, shuffled_tokens(Recorded::kVocab, 5));
  hidden.add(r);
  hidden.finish();
  auto holds = [&](const Bytes& file) {
    return std::search(file.begin(), file.end(), needle.begin(), needle.end()) != file.end();
  };
  EXPECT_TRUE(holds(plain.sink.segments[0]));
  EXPECT_FALSE(holds(hidden.sink.segments[0]));
  expect_replays(hidden.sink.segments);
}

// After every step the scheduler's state is written, read, and written again: the same bytes.
TEST(Recording, StateComesBack) {
  Recorded run(Recorded::small(), 1 << 20);
  for (int i = 0; i < 9; ++i) {
    Request r = run.request(3 + 5 * i, 9);
    if (i == 4) r.n = 2;
    run.add(std::move(r));
    run.step();
    Bytes bytes, again;
    encode_state(run.scheduler, bytes);
    Result<Scheduler> back = decode_state(bytes, run.scheduler.config(), nullptr);
    ASSERT_TRUE(back) << back.error().message;
    encode_state(*back, again);
    EXPECT_EQ(bytes, again);
    // Cut anywhere, it is refused.
    for (size_t size = 0; size < bytes.size(); size += 7)
      EXPECT_FALSE(decode_state(std::span(bytes).first(size), run.scheduler.config(), nullptr));
  }
}

// One byte of the state changed is refused, or is a scheduler that still plans, and whose blocks
// hold tokens that it has.
TEST(Recording, AChangedStateIsRefusedOrPlans) {
  Recorded run(Recorded::small(), 1 << 20);
  for (int i = 0; i < 6; ++i) run.add(run.request(3 + 5 * i, 9)), run.step();
  Bytes bytes;
  encode_state(run.scheduler, bytes);
  int refused = 0;
  for (size_t k = 0; k < bytes.size(); ++k) {
    for (int by : {1, 2, 64}) {
      Bytes changed = bytes;
      changed[k] = static_cast<std::byte>(static_cast<int>(changed[k]) ^ by);
      Result<Scheduler> back = decode_state(changed, run.scheduler.config(), nullptr);
      refused += !back;
      if (!back) continue;
      NeededBlocks all;
      all.blocks.assign(static_cast<size_t>(run.scheduler.config().num_blocks) + 1, true);
      if (Result<ExecutorContent> content = content_of(*back, all); content) {
        for (const HeldTokens& h : content->held) EXPECT_LE(h.tokens.size(), 64u);
      }
      StepPlan plan;
      Events events;
      back->plan(run.now, plan, events);
    }
  }
  EXPECT_GT(refused, static_cast<int>(bytes.size()) / 2);
}

// A sink without room: segments are dropped whole, and the next one begins with the state of then.
TEST(Recording, DroppedSegmentsLeaveTheRestReplayable) {
  int writes = 0;
  MemorySink sink([&] { return ++writes > 20 && writes < 60; });
  Recorded run;
  SegmentEncoder encoder(Recorded::header(), 100, nullptr, sink);
  encoder.start(run.scheduler);
  run.scheduler.listen(&encoder);
  for (int i = 0; i < 8; ++i) run.add(run.request(5 + i, 12)), run.step();
  run.finish();
  run.scheduler.listen(nullptr);
  EXPECT_GT(encoder.num_unwritten(), 10u);
  EXPECT_GT(sink.segments.size(), 3u);
  expect_replays(sink.segments);
}

// The scheduler forgets all after an exception: records before it say nothing of what follows.
TEST(Recording, AResetBeginsASegment) {
  Recorded run;
  for (int i = 0; i < 4; ++i) run.add(run.request(9, 9)), run.step();
  run.scheduler.reset();
  run.results.clear();
  for (int i = 0; i < 4; ++i) run.add(run.request(9, 9)), run.step();
  run.finish();
  EXPECT_EQ(run.sink.segments.size(), 2u);
  expect_replays(run.sink.segments);
}

// Searches, in the middle of which segments begin.
TEST(Recording, BeamSearchReplays) {
  for (auto map : {std::shared_ptr<const TokenMap>(), shuffled_tokens(Recorded::kVocab, 11)}) {
    SchedulerConfig config = Recorded::small();
    config.num_blocks = 60;
    Recorded run(config, 400, map);
    for (int i = 0; i < 4; ++i) {
      Request r = run.request(5 + 4 * i, 8);
      r.n = 2 + i % 2;
      r.beams.emplace();
      r.stop.tokens = {7};
      run.add(std::move(r));
    }
    for (int k = 0; k < 400 && (run.scheduler.has_work() || !run.results.empty()); ++k) {
      run.now += Time{1000};
      run.scheduler.plan(run.now, run.plan, run.events);
      if (!run.plan.empty()) {
        StepResult& result = run.results.emplace_back();
        result.step = run.plan.step;
        for (const Slice& s : run.plan.slices) {
          if (!samples(s.want)) continue;
          Sampled& row = result.add_row(s);
          row.num_tokens = 1;
          row.top_at = static_cast<uint32_t>(result.top.size());
          row.num_top = 6;
          for (int t = 0; t < 6; ++t) {
            auto x =
                static_cast<Token>((run.plan.step * 7 + s.slot * 3 + t * 11) % Recorded::kVocab);
            result.top.push_back({s.pos + s.count, x, -0.3f * static_cast<float>(t + s.slot), t});
          }
          result.tokens.push_back(result.top[row.top_at].token);
        }
        for (const Transfer& t : run.plan.transfers) result.transfers.push_back(t.id);
      }
      if (run.results.size() > 1 || (run.plan.empty() && !run.results.empty())) {
        run.scheduler.complete(run.results.front(), run.now, run.events);
        run.results.erase(run.results.begin());
      }
    }
    EXPECT_TRUE(run.scheduler.idle());
    EXPECT_GT(run.sink.segments.size(), 3u);
    expect_replays(run.sink.segments);
  }
}

}  // namespace
}  // namespace sluice
