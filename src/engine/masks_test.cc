// Masks of constrained requests on an executor that computes nothing: each is the one that a
// matcher of the tokens before gives, whatever the pipeline, and every step that waits for masks
// gets them, also when requests end, are cancelled, preempted, or the engine starts again.
#include "engine/masks.h"

#include <bit>
#include <future>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "constrain/test_vocab.h"
#include "core/fake_executor.h"
#include "engine/engine.h"

namespace sluice {
namespace {

using constrain::compile_test;
using constrain::ConstraintKind;
using constrain::kTestEnd;
using constrain::Matcher;
using ConstraintRef = std::shared_ptr<const constrain::Constraint>;

constexpr Token byte_token(char c) { return 2 + static_cast<unsigned char>(c); }

ConstraintRef regex(const char* text, constrain::ConstraintLimits limits = {}) {
  return compile_test(ConstraintKind::regex, text, constrain::JsonSpace::flexible, limits).value();
}

SchedulerConfig mask_config(Pipeline pipeline) {
  SchedulerConfig c;
  c.num_blocks = 64;
  c.block_size = 4;
  c.budget = 16;
  c.max_seqs = 4;
  c.max_len = 64;
  c.pipeline = pipeline;
  return c;
}

Request constrained(RequestId id, ConstraintRef constraint, int prompt = 3, int max_new = 20) {
  Request r;
  r.id = id;
  r.prompt = std::make_shared<const std::vector<Token>>(static_cast<size_t>(prompt), 7);
  r.sampling = std::make_shared<const SamplingSpec>();
  r.max_new = max_new;
  r.constraint = std::move(constraint);
  add_end_tokens(r);
  return r;
}

bool is_empty(std::span<const uint32_t> mask) {
  return std::ranges::all_of(mask, [](uint32_t w) { return w == 0; });
}

// Samples each request's text byte by byte, then its end token; keeps what the plans ask for.
struct Script {
  struct Asked {
    uint64_t step;
    int32_t mask;
    SeqId id;
    int num_before;
    bool operator==(const Asked&) const = default;
  };
  std::map<RequestId, std::string> texts;
  std::map<Slot, RowOp> rows;
  std::vector<Asked> asked;

  void open_rows(const StepPlan& plan) {
    for (const RowOp& op : plan.rows) {
      if (op.kind == RowOp::open) rows[op.slot] = op;
    }
  }
  Token operator()(const StepPlan& plan, const Slice& s) {
    open_rows(plan);
    const RowOp& row = rows.at(s.slot);
    int before = s.pos + s.count - static_cast<int>(row.num_prompt);
    if (s.mask != kNoMask) asked.push_back({plan.step, s.mask, row.id, before});
    const std::string& text = texts[row.id.req];
    return before < static_cast<int>(text.size()) ? byte_token(text[static_cast<size_t>(before)])
                                                  : kTestEnd;
  }
};

class MasksOn : public testing::TestWithParam<Pipeline> {
 public:
  void run(const std::vector<Request>& requests, std::function<void(int)> each = {}) {
    if (!executor.on_launch)  // plans that sample nothing, too
      executor.on_launch = [this](const StepPlan& plan, StepResult&) { script.open_rows(plan); };
    for (const Request& r : requests) scheduler.add(r, clock.now()).value();
    for (int i = 0; i < 300 && loop.busy(); ++i) {
      if (each) each(i);
      loop.iterate(events);
    }
    EXPECT_FALSE(loop.busy());
    EXPECT_EQ(scheduler.num_constrained(), 0);
  }
  std::map<SeqId, Finish> finishes() const {
    std::map<SeqId, Finish> out;
    for (const Event& e : events.list) {
      if (e.finish != Finish::none) out[{e.req, e.choice}] = e.finish;
    }
    return out;
  }
  std::map<SeqId, std::vector<Token>> tokens() const {
    std::map<SeqId, std::vector<Token>> out;
    for (const Event& e : events.list) {
      if (e.token != kNoToken) out[{e.req, e.choice}].push_back(e.token);
    }
    return out;
  }
  // Every mask is that of a matcher with the tokens before it, or empty where nobody takes the
  // sample. Returns the number of output tokens whose mask came.
  size_t check_masks(const std::map<RequestId, ConstraintRef>& constraints) {
    std::set<std::pair<SeqId, int>> covered;
    auto known = tokens();
    for (const Script::Asked& a : script.asked) {
      StepMasks masks = executor.masks_of(a.step);
      const std::vector<Token>& output = known[a.id];
      if (a.num_before >= static_cast<int>(output.size())) continue;  // wasted work
      Matcher matcher(constraints.at(a.id.req));
      for (int k = 0; k < a.num_before; ++k)
        EXPECT_TRUE(matcher.accept(output[static_cast<size_t>(k)]));
      std::vector<uint32_t> bits(constrain::test_trie()->mask_words());
      EXPECT_TRUE(matcher.fill_mask(bits));
      std::span<const uint32_t> row = masks.row(a.mask);
      if (std::ranges::equal(row, bits)) {
        covered.insert({a.id, a.num_before});
      } else {
        EXPECT_TRUE(is_empty(row)) << "step " << a.step << " row " << a.mask;
      }
    }
    return covered.size();
  }

  Script script;
  FakeExecutor executor{[this](const StepPlan& p, const Slice& s) { return script(p, s); },
                        GetParam()};
  Scheduler scheduler{mask_config(GetParam()), nullptr};
  RealClock clock;
  Events events;
  Loop loop{scheduler, executor, clock, GetParam(), {.forced = false}};
};

TEST_P(MasksOn, EachIsThatOfTheTokensBefore) {
  ConstraintRef a = regex("[abc]{5}x?"), b = regex("(yes|no)!+");
  script.texts = {{1, "abcab"}, {2, "yes!!!"}, {3, "whatever"}};
  Request free = constrained(3, nullptr, 3, 8);
  Request two = constrained(2, b, 9);
  two.n = 2;
  run({constrained(1, a), two, free});
  EXPECT_EQ(check_masks({{1, a}, {2, b}}), 6u + 2 * 7);
  auto ends = finishes();
  EXPECT_EQ(ends[(SeqId{1, 0})], Finish::stop);
  EXPECT_EQ(ends[(SeqId{2, 1})], Finish::stop);
  EXPECT_EQ(ends[(SeqId{3, 0})], Finish::length);
}

// Three constrained sequences in a pool for little more than one.
TEST_P(MasksOn, PreemptionChangesNone) {
  SchedulerConfig c = mask_config(GetParam());
  c.num_blocks = 8;
  c.prefix_cache = false;
  scheduler = Scheduler(c, nullptr);
  ConstraintRef a = regex("[abc]{5,18}");
  std::vector<Request> requests;
  for (RequestId id = 1; id <= 3; ++id) {
    script.texts[id] = std::string(10 + id, static_cast<char>('a' + id % 3));
    requests.push_back(constrained(id, a, 6));
  }
  run(requests);
  EXPECT_GT(scheduler.stats().num_preemptions, 0u);
  EXPECT_EQ(check_masks({{1, a}, {2, a}, {3, a}}), 11u + 12 + 13 + 3);
}

// What must follow comes in one chunk, as the same tokens; in fewer steps.
TEST_P(MasksOn, ForcedTokensAreNotSampled) {
  ConstraintRef a = regex("[ab]zzzzzzzzzzzzzzzzzz[ab]!");
  script.texts = {{1, "azzzzzzzzzzzzzzzzzzb!"}, {2, "bzzzzzzzzzzzzzzzzzza!"}};
  std::map<SeqId, std::vector<Token>> outputs[2];
  size_t steps[2], chunks[2];
  for (bool forced : {false, true}) {
    script.asked.clear(), script.rows.clear(), events.clear();
    FakeExecutor device([this](const StepPlan& p, const Slice& s) { return script(p, s); },
                        GetParam());
    steps[forced] = chunks[forced] = 0;
    device.on_launch = [&](const StepPlan& plan, StepResult&) {
      script.open_rows(plan);
      ++steps[forced];
      for (const Slice& s : plan.slices) chunks[forced] += s.pos >= 3 && s.count > 1;
    };
    Scheduler own(mask_config(GetParam()), nullptr);
    Loop both(own, device, clock, GetParam(), {.forced = forced});
    Request two = constrained(2, a, 3, 12);  // ends among the forced ones
    for (const Request& r : {constrained(1, a, 3, 40), two}) own.add(r, clock.now()).value();
    for (int i = 0; i < 300 && both.busy(); ++i) both.iterate(events);
    EXPECT_TRUE(own.idle());
    outputs[forced] = tokens();
    EXPECT_EQ(finishes()[(SeqId{1, 0})], Finish::stop);
    EXPECT_EQ(finishes()[(SeqId{2, 0})], Finish::length);
  }
  EXPECT_EQ(outputs[0], outputs[1]);
  EXPECT_EQ((outputs[1][{1, 0}].size()), 22u);
  EXPECT_EQ((outputs[1][{2, 0}].size()), 12u);
  EXPECT_EQ(chunks[0], 0u);
  EXPECT_GT(chunks[1], 0u);
  EXPECT_LT(steps[1], steps[0] - 8);
}

// Two choices use up their budget: the end mark is appended, or sampled where nothing else is
// allowed, then the output is free, or an answer under its constraint.
TEST_P(MasksOn, AThinkingBudgetClosesTheThinking) {
  std::vector<std::string> texts{"", ""};
  for (int b = 0; b < 256; ++b) texts.emplace_back(1, static_cast<char>(b));
  texts.resize(constrain::test_trie()->vocab_size());
  std::vector<std::string_view> views(texts.begin(), texts.end());
  const Token ends[] = {kTestEnd};
  auto marks = std::make_shared<const constrain::ThinkMarks>("<t>", "</t>", views, ends);
  script.texts = {{1, "abc</t>yes!"}, {2, "abcde</t>yes!"}};
  std::map<SeqId, std::vector<Token>> outputs[2];
  for (bool forced : {false, true}) {
    script.asked.clear(), script.rows.clear(), events.clear();
    FakeExecutor device([this](const StepPlan& p, const Slice& s) { return script(p, s); },
                        GetParam());
    device.on_launch = [&](const StepPlan& plan, StepResult&) { script.open_rows(plan); };
    Scheduler own(mask_config(GetParam()), nullptr);
    Loop both(own, device, clock, GetParam(), {.forced = forced});
    Request free = constrained(1, nullptr, 3, 40), held = constrained(2, regex("(yes|no)!"));
    free.stop.tokens = {kTestEnd};
    free.n = 2;
    free.thinking =
        std::make_shared<const constrain::Thinking>(constrain::Thinking{marks, true, 3});
    held.thinking =
        std::make_shared<const constrain::Thinking>(constrain::Thinking{marks, true, 5});
    for (const Request& r : {free, held}) own.add(r, clock.now()).value();
    for (int i = 0; i < 300 && both.busy(); ++i) both.iterate(events);
    EXPECT_TRUE(own.idle());
    EXPECT_EQ(own.num_constrained(), 0);
    outputs[forced] = tokens();
    for (SeqId id : {SeqId{1, 0}, SeqId{1, 1}, SeqId{2, 0}}) {
      EXPECT_EQ(finishes()[id], Finish::stop);
      EXPECT_EQ(outputs[forced][id].size(), script.texts[id.req].size() + 1);
    }
    for (const Script::Asked& a : script.asked) {
      StepMasks masks = device.masks_of(a.step);
      const bool closing = a.id.req == 1 ? a.num_before >= 3 && a.num_before < 7
                                         : a.num_before >= 5 && a.num_before < 9;
      int num = 0;
      for (uint32_t w : masks.row(a.mask)) num += std::popcount(w);
      if (num == 0) continue;  // nobody takes the sample
      EXPECT_EQ(num == 1, closing || a.num_before == 12 || (a.id.req == 2 && a.num_before > 9))
          << a.id.req << " at " << a.num_before << ": " << num;
    }
  }
  EXPECT_EQ(outputs[0], outputs[1]);
}

TEST_P(MasksOn, CancelledRequestsLeaveNoStepWaiting) {
  ConstraintRef a = regex("[abc]{5,18}");
  script.texts = {{1, std::string(15, 'a')}, {2, std::string(12, 'b')}};
  run({constrained(1, a), constrained(2, a)},
      [&](int i) { i == 4 ? scheduler.cancel(1, clock.now(), events) : void(); });
  auto ends = finishes();
  EXPECT_EQ(ends[(SeqId{1, 0})], Finish::cancelled);
  EXPECT_EQ(ends[(SeqId{2, 0})], Finish::stop);
}

// A matcher that exceeds a limit, or a token outside the constraint: the masks from there on allow
// nothing, and nobody waits for them.
TEST_P(MasksOn, AFailedMatcherGivesEmptyMasks) {
  constrain::ConstraintLimits limits;
  limits.max_step_work = 1;
  script.texts = {{1, "abcab"}, {2, "abz"}};
  run({constrained(1, regex("[abc]{5}", limits)), constrained(2, regex("[abc]{5}"))});
  for (const Script::Asked& a : script.asked) {
    StepMasks masks = executor.masks_of(a.step);
    std::span<const uint32_t> row = masks.row(a.mask);
    EXPECT_EQ(is_empty(row), a.id.req == 1 || a.num_before > 2) << "step " << a.step;
  }
}

TEST_P(MasksOn, NothingToSampleEndsTheChoiceAlone) {
  ConstraintRef a = regex("[abc]{5}");
  script.texts = {{1, "ab"}, {2, "abcab"}};
  executor.on_launch = [&](const StepPlan& plan, StepResult& r) {
    size_t k = 0;
    for (const Slice& s : plan.slices) {
      if (s.want == Want::none) continue;
      Token& token = r.tokens[r.rows[k++].token_at];
      if (token == kTestEnd && script.rows.at(s.slot).id.req == 1) token = kNoToken;
    }
  };
  run({constrained(1, a), constrained(2, a)});
  auto ends = finishes();
  EXPECT_EQ(ends[(SeqId{1, 0})], Finish::constraint);
  EXPECT_EQ(tokens()[(SeqId{1, 0})].size(), 2u);
  EXPECT_EQ(ends[(SeqId{2, 0})], Finish::stop);
}

INSTANTIATE_TEST_SUITE_P(Pipelines,
                         MasksOn,
                         testing::Values(Pipeline::sync,
                                         Pipeline::simple_async,
                                         Pipeline::double_buffer,
                                         Pipeline::overlap,
                                         Pipeline{4, true, 1}));

TEST(Masks, AbandonedStepsAreToldThatNoMaskComes) {
  Script script;
  script.texts = {{1, "abcab"}};
  FakeExecutor executor([&](const StepPlan& p, const Slice& s) { return script(p, s); });
  RealClock clock;
  Scheduler scheduler(mask_config(Pipeline::overlap), nullptr);
  Masks masks(executor);
  StepPlan plan;
  Events events;
  scheduler.add(constrained(1, regex("[abc]{5}")), clock.now()).value();
  scheduler.plan(clock.now(), plan, events);
  masks.plan(plan, scheduler);
  executor.launch(plan);
  EXPECT_TRUE(masks.active());
  masks.abandon();  // as if the call after the launch had failed
  EXPECT_FALSE(masks.active());
  EXPECT_TRUE(executor.masks_of(plan.step).rows.empty());
}

struct Ended final : Sink {
  void on_event(const Event& e, std::span<const TopLogprob>) override {
    if (e.last) done.set_value(finish_name(e.finish));
  }
  void on_refused(const Error& error) override { done.set_value(error.message); }
  std::promise<std::string> done;
};

TEST(Masks, AnEngineThatStartsAgainGoesOnWithConstraints) {
  Script script;
  for (RequestId id = 1; id < 9; ++id) script.texts[id] = "abcab";
  FakeExecutor executor([&](const StepPlan& p, const Slice& s) { return script(p, s); });
  executor.throw_in_launch = 4;
  RealClock clock;
  Engine engine(Scheduler(mask_config(Pipeline::overlap), nullptr), executor, clock, {});
  for (const char* expected : {"internal error", "stop", "stop"}) {
    auto sink = std::make_shared<Ended>();
    engine.submit(constrained(0, regex("[abc]{5}")), sink);
    EXPECT_EQ(sink->done.get_future().get(), expected);
  }
}

TEST(Masks, AnEndTokenOfTheConstraintEndsTheOutput) {
  Request r = constrained(1, regex("a"));
  EXPECT_EQ(r.stop.tokens, std::vector<Token>{kTestEnd});
  EXPECT_TRUE(r.sampling->banned_until_min.empty());
  r.stop.tokens = {kTestEnd, 9};
  SamplingSpec spec;
  spec.min_tokens = 3;
  r.sampling = std::make_shared<const SamplingSpec>(spec);
  add_end_tokens(r);
  EXPECT_EQ(r.stop.tokens, (std::vector<Token>{kTestEnd, 9}));
  EXPECT_EQ(r.sampling->banned_until_min, std::vector<Token>{kTestEnd});
}

}  // namespace
}  // namespace sluice
