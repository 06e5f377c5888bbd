#include "server/observe.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/fake_executor.h"
#include "server/block_map.h"
#include "server/dashboard.h"
#include "server/observe_explain.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;

struct Rig {
  explicit Rig(SchedulerConfig config, Pipeline pipeline = Pipeline::sync)
      : scheduler(config, nullptr), loop(scheduler, device, clock, pipeline) {
    // Steps of 10 ms, in simulated time.
    device.on_launch = [this](const StepPlan&, StepResult& r) {
      r.begin = clock.now();
      clock.advance_to(clock.now() + milliseconds(10));
      r.end = clock.now();
    };
    recorder.begin(scheduler.config());
    recorder.watch(true);
  }
  void add(RequestId id, size_t prompt, int max_new, int n = 1) {
    Request r;
    r.id = id;
    std::vector<Token> tokens(prompt);
    std::iota(tokens.begin(), tokens.end(), static_cast<Token>(id * 1000));
    r.prompt = std::make_shared<const std::vector<Token>>(std::move(tokens));
    r.sampling = std::make_shared<const SamplingSpec>();
    r.max_new = max_new;
    r.n = n;
    r.arrival = clock.now();
    recorder.on_submit({id, 0, n, static_cast<int>(prompt), max_new, false,
                        clock.now() - milliseconds(2), clock.now()});
    ASSERT_TRUE(scheduler.add(std::move(r), clock.now()));
  }
  void step() {
    events.clear();
    StepReport report = loop.iterate(events);
    recorder.observe(report, loop.last_plan(), events, scheduler);
  }
  void run() {
    while (loop.busy()) step();
  }

  SimClock clock;
  Scheduler scheduler;
  FakeExecutor device;
  Loop loop;
  Events events;
  Recorder recorder;
};

SchedulerConfig small(int blocks) {
  SchedulerConfig c;
  c.budget = 32;
  c.max_seqs = 8;
  c.max_len = 256;
  c.num_blocks = blocks;
  c.block_size = 4;
  return c;
}

double part(const json::object& story, std::string_view kind) {
  for (const json::value& p : story.at("parts").as_array()) {
    if (p.at("kind").as_string() == kind) return p.at("seconds").to_number<double>();
  }
  return -1;
}

double sum(const json::object& story) {
  double all = 0;
  for (const json::value& p : story.at("parts").as_array())
    all += p.at("seconds").to_number<double>();
  return all;
}

TEST(Buckets, PercentilesAreWithinSixPercent) {
  Buckets b;
  for (int i = 1; i <= 1000; ++i) b.add(milliseconds(i));
  for (double p : {0.01, 0.5, 0.9, 0.99}) EXPECT_NEAR(b.percentile(p), p, 0.065 * p);
  Buckets extremes;
  extremes.add(Time{-5});
  extremes.add(std::chrono::hours(10));
  EXPECT_LT(extremes.percentile(0), 1e-5);
  EXPECT_GT(extremes.percentile(1), 100);
  EXPECT_EQ(Buckets{}.percentile(0.5), 0);
}

TEST(Dashboard, BlockMapOfASmallPool) {
  using enum BlockUse;
  size_t scale = 0;
  EXPECT_EQ(block_map(std::vector{free, free, cached, owned, owned, shared, pending}, 100, scale),
            "f2co2sp");
  EXPECT_EQ(scale, 1u);
  EXPECT_EQ(block_map({}, 2, scale), "");
}

TEST(Dashboard, BlockMapOfALargePoolCountsPerCell) {
  using enum BlockUse;
  size_t scale = 0;
  EXPECT_EQ(block_map(std::vector{free, free, cached, owned, free}, 2, scale), "f2c fo");
  EXPECT_EQ(scale, 3u);
  std::vector<BlockUse> pool(100'000, free);
  for (size_t i = 50'000; i < 60'000; ++i) pool[i] = i % 2 == 0 ? owned : cached;
  std::string map = block_map(pool, Dashboard::kMaxCells, scale);
  EXPECT_EQ(scale, 25u);
  EXPECT_EQ(map.substr(0, map.find(' ')), "f25*2000");
  EXPECT_NE(map.find(" c12o13 c13o12 "), map.npos);
  EXPECT_EQ(map.substr(map.rfind(' ')), " f25*1600");
}

TEST(Recorder, ExplainsWhatARequestsTimeWentTo) {
  Rig e(small(200));
  e.clock.advance_to(std::chrono::seconds(3));
  e.add(1, 8, 6);
  e.step();  // prompt of 1
  e.add(2, 40, 2);
  e.run();  // 31 of its prompt beside a decode of 1, then 9
  auto one = explain_request(e.recorder, 1, e.clock.now());
  ASSERT_TRUE(one);
  EXPECT_EQ(one->at("state"), "length");
  EXPECT_EQ(one->at("output_tokens"), 6);
  EXPECT_NEAR(part(*one, "prepare"), 0.002, 1e-9);
  EXPECT_NEAR(part(*one, "prefill"), 0.010, 1e-9);
  EXPECT_NEAR(part(*one, "crowded"), 0.020, 1e-9);
  EXPECT_NEAR(part(*one, "decode"), 0.030, 1e-9);
  EXPECT_NEAR(part(*one, "gaps"), 0, 1e-9);
  EXPECT_NEAR(sum(*one), one->at("seconds").to_number<double>(), 1e-9);
  ASSERT_EQ(one->at("with").as_array().size(), 1u);
  EXPECT_EQ(one->at("with").at(0).at("prefill_tokens"), 40);
  EXPECT_FALSE(explain_request(e.recorder, 3, e.clock.now()));
  EXPECT_FALSE(explain_request(e.recorder, 0, e.clock.now()));
  EXPECT_FALSE(explain_step(e.recorder, 0));
  auto second = explain_step(e.recorder, 2);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->at("prefill_tokens"), 31);
  EXPECT_EQ(second->at("decode_tokens"), 1);
}

TEST(Recorder, TellsOfEveryStepOfAPromptAndWhatOthersCost) {
  Rig e(small(200));
  e.clock.advance_to(std::chrono::seconds(3));
  // Steps with prompts take 30 ms, others 10.
  e.device.on_launch = [&e](const StepPlan& plan, StepResult& r) {
    bool prompt = std::ranges::any_of(plan.slices, [](const Slice& s) { return s.count > 1; });
    r.begin = e.clock.now();
    e.clock.advance_to(e.clock.now() + milliseconds(prompt ? 30 : 10));
    r.end = e.clock.now();
  };
  e.add(1, 8, 6);
  e.step();
  e.add(2, 40, 2);
  e.run();
  auto two = explain_request(e.recorder, 2, e.clock.now());
  ASSERT_TRUE(two);
  const json::array& steps = two->at("prompt_steps").as_array();
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].at("tokens"), 31);
  EXPECT_EQ(steps[0].at("other_decode_tokens"), 1);
  EXPECT_EQ(steps[0].at("other_prefill_tokens"), 0);
  EXPECT_EQ(steps[1].at("tokens"), 9);
  double in_prompt = 0;
  for (const json::value& s : steps) in_prompt += s.at("seconds").to_number<double>();
  EXPECT_NEAR(in_prompt, part(*two, "prefill"), 1e-9);
  auto one = explain_request(e.recorder, 1, e.clock.now());
  EXPECT_NEAR(one->at("waited_for_prompts").to_number<double>(), 0.040, 1e-9);
  EXPECT_NEAR(two->at("waited_for_prompts").to_number<double>(), 0, 1e-9);
}

TEST(Recorder, AKeyReadsItsOwnRequestsAlone) {
  Rig e(small(200));
  e.clock.advance_to(std::chrono::seconds(3));
  e.add(1, 8, 6);  // key 0
  e.recorder.on_submit({2, 1, 1, 8, 6, false, e.clock.now(), e.clock.now()});
  e.add(2, 8, 6);
  e.recorder.on_submit({2, 1, 1, 8, 6, false, e.clock.now(), e.clock.now()});
  e.run();
  Time now = e.clock.now();
  EXPECT_FALSE(explain_request(e.recorder, 1, now, 1));
  EXPECT_FALSE(explain_request(e.recorder, 1, now, -1));
  auto own = explain_request(e.recorder, 1, now, 0);
  ASSERT_TRUE(own);
  ASSERT_EQ(own->at("with").as_array().size(), 1u);
  EXPECT_TRUE(own->at("with").at(0).at("request").is_null()) << "another key's";
  auto any = explain_request(e.recorder, 1, now);
  EXPECT_EQ(any->at("with").at(0).at("request"), 2);
  std::vector<Recorder::Brief> mine = e.recorder.made_by(1, now);
  ASSERT_EQ(mine.size(), 1u);
  EXPECT_EQ(mine[0].id, 2u);
  EXPECT_NEAR(seconds(mine[0].time),
              explain_request(e.recorder, 2, now)->at("seconds").to_number<double>(), 1e-9);
  EXPECT_TRUE(e.recorder.made_by(2, now).empty());
}

TEST(Recorder, SeesPreemptionAndRecomputation) {
  Rig e(small(12));
  e.clock.advance_to(std::chrono::seconds(1));  // 0 means: never
  e.add(1, 16, 24);
  e.add(2, 16, 24);
  e.run();
  auto two = explain_request(e.recorder, 2, e.clock.now());
  ASSERT_TRUE(two);
  EXPECT_EQ(two->at("state"), "length");
  EXPECT_GE(two->at("preemptions").to_number<int>(), 1);
  EXPECT_GT(two->at("recomputed_tokens").to_number<int>(), 0);
  EXPECT_GT(part(*two, "preempted"), 0.05);
  EXPECT_NEAR(sum(*two), two->at("seconds").to_number<double>(), 1e-9);
  EXPECT_EQ(explain_request(e.recorder, 1, e.clock.now())->at("preemptions"), 0);
}

TEST(Recorder, FramesHoldEachStepOnceAndEveryBlock) {
  Rig e(small(64));
  Recorder::Cursor cursor;
  Recorder::Snapshot s;
  uint64_t seen = 0;
  int64_t tokens = 0;
  for (RequestId id = 1; id <= 30; ++id) {
    e.add(id, 5 + id, 4, 1 + static_cast<int>(id % 3));
    for (int k = 0; k < 3; ++k) e.step();
    e.recorder.read(cursor, {}, e.clock.now(), s);
    for (const StepRecord& st : s.steps) {
      EXPECT_GT(st.step, seen);
      seen = st.step;
      tokens += st.num_prefill + st.num_decode;
    }
    EXPECT_EQ(s.num_skipped, 0u);
    if (s.map_changed) {
      BlockCounts c = e.scheduler.count_blocks();
      EXPECT_EQ(static_cast<int>(s.blocks.size()), c.total);
    }
  }
  e.run();
  e.clock.advance_to(e.clock.now() + std::chrono::seconds(1));
  e.step();  // nothing to do: what a poke leads to
  e.recorder.read(cursor, {}, e.clock.now(), s);
  for (const StepRecord& st : s.steps) tokens += st.num_prefill + st.num_decode;
  EXPECT_EQ(s.totals.finished, 30u);
  EXPECT_EQ(s.num_live, 0u);
  EXPECT_EQ(s.totals.output_tokens, 4u * 60);
  EXPECT_EQ(tokens, static_cast<int64_t>(s.totals.prefill_tokens) + 3 * 60);
  ASSERT_TRUE(s.map_changed);
  BlockCounts c = e.scheduler.count_blocks();
  auto of = [&](BlockUse use) { return std::count(s.blocks.begin(), s.blocks.end(), use); };
  EXPECT_EQ(of(BlockUse::free), c.free);
  EXPECT_EQ(of(BlockUse::cached), c.cached);
  EXPECT_EQ(of(BlockUse::owned) + of(BlockUse::shared) + of(BlockUse::pending), 0);
  // Only the newest where the reader was away.
  Recorder::Cursor late;
  e.recorder.read(late, {.steps = 5, .requests = 3}, e.clock.now(), s);
  EXPECT_LE(s.steps.size(), 5u);
  std::string text;
  append_frame(text, s, e.clock.now(), true);
  EXPECT_TRUE(parse_json(text));
}

TEST(Recorder, StepsInFlightAreTold) {
  Rig e(small(64), Pipeline::overlap);
  e.add(1, 10, 3);
  e.step();  // launched; the next iteration waits for it
  Recorder::Cursor cursor;
  Recorder::Snapshot s;
  e.recorder.read(cursor, {}, e.clock.now(), s);
  EXPECT_TRUE(s.steps.empty());
  ASSERT_EQ(s.in_flight.size(), 1u);
  EXPECT_EQ(s.in_flight[0].num_prefill, 10);
  std::string text;
  append_frame(text, s, e.clock.now(), true);
  EXPECT_NE(text.find("\"in_flight\":[[1,0,0,10,0,1]]"), text.npos) << text;
  e.run();
  e.recorder.read(cursor, {}, e.clock.now(), s);
  EXPECT_TRUE(s.in_flight.empty());
  EXPECT_FALSE(s.steps.empty());
}

TEST(Recorder, TellsOfAConstraint) {
  Rig e(small(64));
  auto story = [&](RequestId id, Time compile) {
    Recorder::Submission told{id, 0, 1, 10, 10, false, Time{1}, Time{1}};
    told.constraint = constrain::ConstraintKind::regex;
    told.compile = compile;
    e.recorder.on_submit(told);
    return *explain_request(e.recorder, id, Time{2});
  };
  json::object compiled = story(2, milliseconds(3)), known = story(3, Time{0});
  EXPECT_EQ(compiled["constraint"].as_string(), "regex");
  EXPECT_DOUBLE_EQ(compiled["compile_seconds"].as_double(), 0.003);
  EXPECT_DOUBLE_EQ(known["compile_seconds"].as_double(), 0);
  Recorder::Submission late{5, 0, 1, 10, 10, false, milliseconds(10), milliseconds(15)};
  late.constraint = constrain::ConstraintKind::regex;
  late.compile = milliseconds(3);
  e.recorder.on_submit(late);
  json::object parts = *explain_request(e.recorder, 5, milliseconds(20));
  EXPECT_NEAR(part(parts, "compile"), 0.003, 1e-9);
  EXPECT_NEAR(part(parts, "prepare"), 0.002, 1e-9);
  EXPECT_NEAR(sum(parts), 0.010, 1e-9);
  e.add(4, 10, 4);
  EXPECT_FALSE(explain_request(e.recorder, 4, Time{2})->contains("constraint"));
}

TEST(Recorder, TellsWhereATurnPartsFromTheOneBefore) {
  Rig e(small(64));
  e.add(1, 10, 4);
  e.run();
  auto story = [&](RequestId id, TurnDifference turn) {
    Recorder::Submission told{id, 0, 1, 10, 10, false, Time{1}, Time{1}};
    told.turn = turn;
    e.add(id, 10, 4);
    e.recorder.on_submit(told);
    e.run();
    return *explain_request(e.recorder, id, e.clock.now());
  };
  json::object parted = story(2, {1, 40, 7, TurnPart::thinking});
  const json::object& turn = parted["turn"].as_object();
  EXPECT_EQ(turn.at("after_request").to_number<int>(), 1);
  EXPECT_EQ(turn.at("its_tokens").to_number<int>(), 40);
  EXPECT_EQ(turn.at("same_tokens").to_number<int>(), 7);
  EXPECT_EQ(turn.at("differs_in"), "thinking");
  EXPECT_EQ(turn.at("reused_tokens"), parted["cached_tokens"]);
  EXPECT_EQ(turn.at("computed_tokens").to_number<int>(), 10);
  auto tells = [](const json::object& o, const char* words) {
    return std::ranges::any_of(o.at("sentences").as_array(), [&](const json::value& s) {
      return std::string_view(s.as_string()).find(words) != std::string_view::npos;
    });
  };
  EXPECT_TRUE(tells(parted, "goes on from request 1, whose prompt and answer had 40 tokens"));
  EXPECT_TRUE(tells(parted, "the first 7 are the same; position 7 is the first that differs"));
  EXPECT_TRUE(tells(parted, "0 tokens were reused and 10 computed"));
  json::object alike = story(3, {2, 9, 9, TurnPart::none});
  EXPECT_TRUE(alike["turn"].as_object().at("differs_in").is_null());
  EXPECT_TRUE(tells(alike, "nothing of that turn was written differently"));
  EXPECT_FALSE(story(4, {}).contains("turn"));
}

TEST(Recorder, FindsTheRequestOfAnAnswer) {
  Rig e(small(64));
  Recorder::Submission two{2, 0, 1, 10, 10, false, Time{1}, Time{1}, answer_key("chatcmpl-a")};
  Recorder::Submission three{3, 0, 1, 10, 10, false, Time{1}, Time{1}, answer_key("chatcmpl-a")};
  e.recorder.on_submit(three);
  e.recorder.on_submit(two);
  EXPECT_EQ(e.recorder.find_answer(answer_key("chatcmpl-a")), 2u);
  EXPECT_EQ(e.recorder.find_answer(answer_key("chatcmpl-b")), 0u);
  EXPECT_EQ(e.recorder.find_answer(0), 0u) << "requests without an answer are not found by it";
}

TEST(Recorder, OldRequestsAreForgottenNotConfused) {
  Rig e(small(64));
  e.recorder.on_submit({5, 0, 1, 10, 10, false, Time{1}, Time{1}});
  e.recorder.on_submit({5 + Recorder::kRequests, 0, 1, 11, 10, false, Time{2}, Time{2}});
  RequestRecord r;
  EXPECT_FALSE(e.recorder.request(5, r));
  ASSERT_TRUE(e.recorder.request(5 + Recorder::kRequests, r));
  EXPECT_EQ(r.num_prompt, 11);
  e.recorder.on_submit({5, 0, 1, 10, 10, false, Time{1}, Time{1}});  // late, and too old
  ASSERT_TRUE(e.recorder.request(5 + Recorder::kRequests, r));
  e.recorder.on_refused(5 + Recorder::kRequests, Time{9});
  Recorder::Cursor cursor;
  Recorder::Snapshot s;
  e.recorder.read(cursor, {}, Time{10}, s);
  EXPECT_EQ(s.num_live, 0u);
}

}  // namespace
}  // namespace sluice
