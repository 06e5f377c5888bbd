// What a request gets from an engine that runs a real (tiny, random) model: sampling, stops,
// choices, log-probabilities, cancellation, preemption, prefix hits, refusals.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>

#include "base/json.h"
#include "runtime/collect.h"
#include "runtime/session.h"

namespace sluice {
namespace {

constexpr size_t kBlockBytes = 3 * 2 * 16 * 2 * 2 * 16;  // layers, kv heads, d, K and V, f16, 16

EngineOptions tiny() {
  EngineOptions o;
  o.model = SLUICE_SOURCE_DIR "/tests/golden/models/llama.gguf";
  o.threads = 1;
  o.pin = false;
  o.quiet = true;
  o.kv_bytes = 600 * kBlockBytes;
  return o;
}

std::unique_ptr<Session> open_tiny(const EngineOptions& options = tiny()) {
  auto s = Session::open(options);
  EXPECT_TRUE(s) << s.error().message;
  return std::move(*s);
}

// Only tokens of printable ASCII: the text is then the tokens' bytes, end to end.
std::vector<Token> printable(const Tokenizer& t) {
  std::vector<Token> out;
  for (Token id = 0; id < t.size(); ++id) {
    if (!t.is_control(id) &&
        std::ranges::all_of(t.bytes(id), [](char c) { return c >= ' ' && c <= '~'; })) {
      out.push_back(id);
    }
  }
  return out;
}

struct Ask {
  std::string prompt = "Once upon a time the dog";
  float temperature = 1;
  uint64_t seed = 1;
  int max_new = 40;
  int n = 1;
};

std::shared_ptr<SamplingSpec> spec_of(const Session& s, const Ask& ask) {
  auto spec = std::make_shared<SamplingSpec>();
  spec->temperature = ask.temperature;
  spec->seed = ask.seed;
  spec->allowed = printable(*s.tokenizer());
  return spec;
}

Request request_of(const Session& s, const Ask& ask) {
  Request r;
  r.prompt = std::make_shared<std::vector<Token>>(s.tokenizer()->encode(ask.prompt).value());
  r.sampling = spec_of(s, ask);
  r.max_new = ask.max_new;
  r.n = ask.n;
  return r;
}

std::vector<RequestOutput> run_all(Session& s,
                                   std::vector<Request> requests,
                                   TextStream::Options text = {}) {
  Collector c(s.engine(), s.tokenizer());
  for (Request& r : requests) c.submit(std::move(r), text);
  std::vector<std::vector<std::string>> streamed(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) streamed[i].resize(c.outputs()[i].choices.size());
  c.wait([&](size_t i, int choice, const std::string& piece) {
    streamed[i][static_cast<size_t>(choice)] += piece;
  });
  for (size_t i = 0; i < requests.size(); ++i) {
    if (c.outputs()[i].refused) continue;
    EXPECT_EQ(c.outputs()[i].num_terminal, 1);
    // Nothing is ever taken back: what was shown piece by piece is the text.
    for (size_t k = 0; k < streamed[i].size(); ++k) {
      EXPECT_EQ(streamed[i][k], c.outputs()[i].choices[k].text);
    }
  }
  return c.outputs();
}

RequestOutput run_one(Session& s, Request r, TextStream::Options text = {}) {
  return run_all(s, {std::move(r)}, text)[0];
}

// Waits until the engine has nothing left to do and every block is free again.
void expect_all_blocks_back(Session& s) {
  int available = -1, total = 0;
  for (int i = 0; i < 2000 && available != total; ++i) {
    for (const StepReport& r : s.take_reports()) {
      available = r.stats.available_blocks;
      total = r.stats.total_blocks;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(available, total);
}

// ---- Sampling

TEST(EngineBehaviour, GreedyRepeats) {
  auto s = open_tiny();
  RequestOutput a = run_one(*s, request_of(*s, {.temperature = 0}));
  RequestOutput b = run_one(*s, request_of(*s, {.temperature = 0, .seed = 99}));
  EXPECT_EQ(a.choices[0].tokens.size(), 40u);
  EXPECT_EQ(a.choices[0].tokens, b.choices[0].tokens);
  EXPECT_EQ(a.choices[0].finish, Finish::length);
  auto again = open_tiny();
  EXPECT_EQ(run_one(*again, request_of(*again, {.temperature = 0})).choices[0].text,
            a.choices[0].text);
}

TEST(EngineBehaviour, SeededSamplingRepeatsAndDependsOnTheSeed) {
  auto s = open_tiny();
  std::set<std::string> texts;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    std::string first = run_one(*s, request_of(*s, {.seed = seed})).choices[0].text;
    EXPECT_EQ(run_one(*s, request_of(*s, {.seed = seed})).choices[0].text, first);
    texts.insert(first);
  }
  EXPECT_EQ(texts.size(), 8u);
}

TEST(EngineBehaviour, ChoicesDifferAndTheFirstIsThatOfOneChoice) {
  EngineOptions o = tiny();
  o.scheduler.prefix_cache = false;
  auto s = open_tiny(o);
  s->keep_reports();
  Ask ask{.prompt = std::string(160, 'x'), .seed = 7, .max_new = 20};
  RequestOutput one = run_one(*s, request_of(*s, ask));
  s->take_reports();
  ask.n = 4;
  RequestOutput four = run_one(*s, request_of(*s, ask));
  ASSERT_EQ(four.choices.size(), 4u);
  EXPECT_EQ(four.choices[0].tokens, one.choices[0].tokens);
  std::set<std::vector<Token>> distinct;
  for (const ChoiceOutput& c : four.choices) {
    EXPECT_EQ(c.tokens.size(), 20u);
    EXPECT_EQ(c.finish, Finish::length);
    distinct.insert(c.tokens);
  }
  EXPECT_EQ(distinct.size(), 4u);
  // The prompt's ten blocks are there once; each choice adds at most two for its own tokens.
  int used = 0;
  for (const StepReport& r : s->take_reports()) {
    used = std::max(used, r.stats.total_blocks - r.stats.available_blocks);
  }
  EXPECT_GE(used, 10 + 4);
  EXPECT_LE(used, 10 + 4 * 3);
}

TEST(EngineBehaviour, GreedyChoicesAreAllAlike) {
  auto s = open_tiny();
  RequestOutput out = run_one(*s, request_of(*s, {.temperature = 0, .n = 3}));
  EXPECT_EQ(out.choices[0].tokens, out.choices[1].tokens);
  EXPECT_EQ(out.choices[0].tokens, out.choices[2].tokens);
}

// ---- Stops

// Every substring of what a request would say, of one to nine bytes, as its stop string.
TEST(EngineBehaviour, TextEndsRightBeforeAStopStringWhereverTokensEnd) {
  auto s = open_tiny();
  RequestOutput whole = run_one(*s, request_of(*s, {.seed = 3}));
  const std::string text = whole.choices[0].text;
  const std::vector<Token>& tokens = whole.choices[0].tokens;
  ASSERT_GE(text.size(), tokens.size());
  ASSERT_NE(text.size(), tokens.size()) << "no token of more than one byte: proves too little";

  for (bool include : {false, true}) {
    std::vector<Request> requests;
    std::vector<std::string> stops;
    for (size_t at = 0; at + 1 < text.size(); at += 2) {
      std::string stop = text.substr(at, 1 + at % 9);
      Request r = request_of(*s, {.seed = 3});
      r.stop.strings = {"\n\n", stop};
      requests.push_back(std::move(r));
      stops.push_back(stop);
    }
    std::vector<RequestOutput> outs = run_all(*s, std::move(requests), {.include_stop = include});
    for (size_t i = 0; i < outs.size(); ++i) {
      SCOPED_TRACE("stop '" + stops[i] + "' in '" + text + "'");
      const ChoiceOutput& c = outs[i].choices[0];
      size_t begin = text.find(stops[i]), end = begin + stops[i].size();
      EXPECT_EQ(c.text, text.substr(0, include ? end : begin));
      EXPECT_EQ(c.finish, Finish::stop);
      size_t bytes = 0, count = 0;
      while (bytes < end) bytes += s->tokenizer()->bytes(tokens[count++]).size();
      EXPECT_EQ(c.tokens.size(), count);
    }
  }
}

TEST(EngineBehaviour, AStopStringThatNeverCompletesComesOutAtTheEnd) {
  auto s = open_tiny();
  Request r = request_of(*s, {.seed = 3});
  std::string text = run_one(*s, r).choices[0].text;
  r.stop.strings = {text.substr(text.size() - 6) + "never", "never" + text};
  RequestOutput out = run_one(*s, std::move(r));
  EXPECT_EQ(out.choices[0].text, text);
  EXPECT_EQ(out.choices[0].finish, Finish::length);
}

TEST(EngineBehaviour, StopTokensEndASequenceAndAreNotItsText) {
  auto s = open_tiny();
  RequestOutput whole = run_one(*s, request_of(*s, {.seed = 5}));
  Token stop = whole.choices[0].tokens[11];
  auto first = std::ranges::find(whole.choices[0].tokens, stop) - whole.choices[0].tokens.begin();
  Request r = request_of(*s, {.seed = 5});
  r.stop.tokens = {stop};
  RequestOutput out = run_one(*s, std::move(r));
  EXPECT_EQ(out.choices[0].finish, Finish::stop);
  ASSERT_EQ(out.choices[0].tokens.size(), static_cast<size_t>(first) + 1);
  EXPECT_EQ(out.choices[0].tokens.back(), stop);
  std::string expected;
  for (ptrdiff_t i = 0; i < first; ++i) {
    expected += s->tokenizer()->bytes(whole.choices[0].tokens[static_cast<size_t>(i)]);
  }
  EXPECT_EQ(out.choices[0].text, expected);
}

TEST(EngineBehaviour, EndTokenIgnoreEosAndMinTokens) {
  auto s = open_tiny();
  Token eos = s->tokenizer()->eos();
  auto make = [&](bool ignore, int min_tokens) {
    Request r = request_of(*s, {.temperature = 0, .max_new = 12});
    auto spec = std::make_shared<SamplingSpec>(*r.sampling);
    spec->allowed.clear();
    spec->logit_bias = {{eos, 100.0f}};  // it wants to end at once
    spec->min_tokens = min_tokens;
    if (!ignore) r.stop.tokens = {eos};
    spec->banned_until_min = r.stop.tokens;
    r.sampling = spec;
    return r;
  };
  RequestOutput out = run_one(*s, make(false, 0));
  EXPECT_EQ(out.choices[0].tokens, std::vector<Token>{eos});
  EXPECT_EQ(out.choices[0].text, "");
  EXPECT_EQ(out.choices[0].finish, Finish::stop);

  out = run_one(*s, make(true, 0));
  EXPECT_EQ(out.choices[0].tokens, std::vector<Token>(12, eos));
  EXPECT_EQ(out.choices[0].text, "");  // special tokens give no text
  EXPECT_EQ(out.choices[0].finish, Finish::length);

  out = run_one(*s, make(false, 5));
  ASSERT_EQ(out.choices[0].tokens.size(), 6u);
  EXPECT_EQ(std::ranges::count(out.choices[0].tokens, eos), 1);
  EXPECT_EQ(out.choices[0].tokens.back(), eos);
  EXPECT_EQ(out.choices[0].finish, Finish::stop);
}

// A stop string inside the first min_tokens does not stop, then or later.
TEST(EngineBehaviour, MinTokensHoldsForStopStrings) {
  auto s = open_tiny();
  RequestOutput whole = run_one(*s, request_of(*s, {.seed = 3}));
  const std::string& text = whole.choices[0].text;
  Request r = request_of(*s, {.seed = 3});
  auto spec = std::make_shared<SamplingSpec>(*r.sampling);
  spec->min_tokens = 20;
  r.sampling = spec;
  std::string early = text.substr(2, 3);
  size_t safe = 0;  // bytes of the first 19 tokens: matches that end there do not count
  for (size_t i = 0; i < 19; ++i) {
    safe += s->tokenizer()->bytes(whole.choices[0].tokens[i]).size();
  }
  size_t next = text.find(early, safe - early.size() + 1);
  r.stop.strings = {early, early + "a long one that keeps the tail long"};
  RequestOutput out = run_one(*s, std::move(r));
  EXPECT_EQ(out.choices[0].text, text.substr(0, next));
  EXPECT_EQ(out.choices[0].finish, next == std::string::npos ? Finish::length : Finish::stop);
}

// ---- Log-probabilities, against the logits that transformers gave for this model

struct Golden {
  std::vector<Token> tokens;
  size_t vocab = 0;
  std::vector<float> logits;

  std::vector<double> log_softmax(size_t position) const {
    std::vector<double> row(logits.begin() + static_cast<ptrdiff_t>(position * vocab),
                            logits.begin() + static_cast<ptrdiff_t>((position + 1) * vocab));
    double max = *std::ranges::max_element(row), sum = 0;
    for (double x : row) sum += std::exp(x - max);
    for (double& x : row) x -= max + std::log(sum);
    return row;
  }
};

Golden read_golden() {
  std::string stem = SLUICE_SOURCE_DIR "/tests/golden/models/llama";
  std::ifstream in(stem + ".json");
  std::stringstream text;
  text << in.rdbuf();
  json::value v = parse_json(text.str()).value();
  Golden g;
  for (const json::value& t : v.at("tokens").as_array()) {
    g.tokens.push_back(static_cast<Token>(t.as_int64()));
  }
  g.vocab = static_cast<size_t>(v.at("shape").as_array()[1].as_int64());
  g.logits.resize(g.tokens.size() * g.vocab);
  std::ifstream raw(stem + ".f32", std::ios::binary);
  raw.read(reinterpret_cast<char*>(g.logits.data()),
           static_cast<std::streamsize>(g.logits.size() * 4));
  EXPECT_TRUE(raw.good());
  return g;
}

// The token's own score first, then the k best in order.
void expect_scores(const ScoredToken& s, const std::vector<double>& row, Token token, size_t k) {
  EXPECT_EQ(s.token.token, token);
  EXPECT_NEAR(s.token.logprob, row[static_cast<size_t>(token)], 1e-3);
  auto better =
      std::ranges::count_if(row, [&](double x) { return x > row[static_cast<size_t>(token)]; });
  EXPECT_EQ(s.token.rank, better + 1);
  std::vector<size_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](size_t a, size_t b) { return row[a] > row[b]; });
  ASSERT_EQ(s.top.size(), k);
  for (size_t i = 0; i < k; ++i) {
    EXPECT_EQ(static_cast<size_t>(s.top[i].token), order[i]);
    EXPECT_NEAR(s.top[i].logprob, row[order[i]], 1e-3);
    EXPECT_EQ(s.top[i].rank, static_cast<int>(i) + 1);
  }
}

TEST(EngineBehaviour, PromptAndOutputLogprobsAreThoseOfTheModel) {
  Golden g = read_golden();
  for (int budget : {512, 7}) {  // whole, and in chunks
    EngineOptions o = tiny();
    o.kv_type = DType::f32;
    o.scheduler.budget = budget;
    auto s = open_tiny(o);
    for (int pass = 0; pass < 2; ++pass) {  // the second could come from the prefix cache
      Request r;
      r.prompt = std::make_shared<std::vector<Token>>(g.tokens);
      auto spec = std::make_shared<SamplingSpec>();
      spec->temperature = 0;
      spec->num_logprobs = 5;
      spec->prompt_logprobs = 3;
      r.sampling = spec;
      r.max_new = 3;
      RequestOutput out = run_one(*s, std::move(r));
      ASSERT_EQ(out.prompt_logprobs.size(), g.tokens.size() - 1);
      for (size_t i = 0; i + 1 < g.tokens.size(); ++i) {
        SCOPED_TRACE(i);
        EXPECT_EQ(out.prompt_logprobs[i].token.pos, static_cast<int>(i) + 1);
        expect_scores(out.prompt_logprobs[i], g.log_softmax(i), g.tokens[i + 1], 3);
      }
      std::vector<double> last = g.log_softmax(g.tokens.size() - 1);
      auto best = static_cast<Token>(std::ranges::max_element(last) - last.begin());
      ASSERT_EQ(out.choices[0].logprobs.size(), 3u);
      EXPECT_EQ(out.choices[0].tokens[0], best);
      expect_scores(out.choices[0].logprobs[0], last, best, 5);
    }
  }
}

TEST(EngineBehaviour, LogprobsZeroScoresTheChosenTokenOnly) {
  auto s = open_tiny();
  Request r = request_of(*s, {.max_new = 6});
  auto spec = std::make_shared<SamplingSpec>(*r.sampling);
  spec->num_logprobs = 0;
  r.sampling = spec;
  RequestOutput out = run_one(*s, std::move(r));
  ASSERT_EQ(out.choices[0].logprobs.size(), 6u);
  EXPECT_TRUE(out.prompt_logprobs.empty());
  for (size_t i = 0; i < 6; ++i) {
    const ScoredToken& t = out.choices[0].logprobs[i];
    EXPECT_EQ(t.token.token, out.choices[0].tokens[i]);
    EXPECT_LT(t.token.logprob, 0);
    EXPECT_TRUE(t.top.empty());
  }
}

// ---- Lifetimes

TEST(EngineBehaviour, CancelWhileRunningEndsEachRequestOnceAndFreesItsBlocks) {
  EngineOptions o = tiny();
  o.scheduler.max_seqs = 8;  // most wait when the cancellation comes
  auto s = open_tiny(o);
  s->keep_reports();
  Collector c(s->engine(), s->tokenizer());
  for (uint64_t i = 0; i < 200; ++i) {
    c.submit(request_of(*s, {.seed = i, .max_new = 400, .n = i % 5 == 0 ? 2 : 1}));
  }
  bool cancelled = false;
  std::thread other;
  c.wait({}, [&](size_t, uint64_t tokens) {
    if (cancelled || tokens == 0) return;
    cancelled = true;
    other = std::thread([&] {
      for (size_t i = 0; i < 200; ++i) s->engine().cancel(c.id(i));
      for (size_t i = 0; i < 200; ++i) s->engine().cancel(c.id(i));  // a second time: nothing
      s->engine().cancel(1u << 30);                                  // nobody's
    });
  });
  other.join();
  size_t num_cancelled = 0;
  for (const RequestOutput& out : c.outputs()) {
    EXPECT_FALSE(out.refused);
    EXPECT_EQ(out.num_terminal, 1);
    for (const ChoiceOutput& choice : out.choices) {
      if (choice.finish == Finish::cancelled) {
        ++num_cancelled;
      } else {
        EXPECT_EQ(choice.tokens.size(), 400u);
      }
    }
  }
  EXPECT_GT(num_cancelled, 100u);
  expect_all_blocks_back(*s);
  // The engine goes on as before.
  EXPECT_EQ(run_one(*s, request_of(*s, {})).choices[0].finish, Finish::length);
}

TEST(EngineBehaviour, PreemptionGivesTheSameText) {
  EngineOptions small = tiny();
  small.kv_bytes = 14 * kBlockBytes;
  small.scheduler.watermark = 0;
  auto roomy = open_tiny(), cramped = open_tiny(small);
  cramped->keep_reports();
  auto requests = [](Session& s) {
    std::vector<Request> list;
    for (uint64_t i = 0; i < 6; ++i) {
      Request r = request_of(s, {.seed = i, .max_new = 100, .n = i == 2 ? 2 : 1});
      r.stop.strings = {"zq!"};
      list.push_back(std::move(r));
    }
    return list;
  };
  std::vector<RequestOutput> a = run_all(*roomy, requests(*roomy)),
                             b = run_all(*cramped, requests(*cramped));
  int preemptions = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t c = 0; c < a[i].choices.size(); ++c) {
      EXPECT_EQ(a[i].choices[c].text, b[i].choices[c].text);
      EXPECT_EQ(a[i].choices[c].tokens, b[i].choices[c].tokens);
      preemptions += b[i].choices[c].timing.num_preemptions;
    }
  }
  EXPECT_GT(preemptions, 0);
  expect_all_blocks_back(*cramped);
}

TEST(EngineBehaviour, PrefixHitsAreReportedAndChangeNothing) {
  auto s = open_tiny();
  std::string prompt(100, 'q');
  Request r = request_of(*s, {.prompt = prompt});
  ASSERT_EQ(r.prompt->size(), 100u);
  RequestOutput cold = run_one(*s, r), warm = run_one(*s, r);
  EXPECT_EQ(cold.choices[0].timing.num_cached, 0);
  EXPECT_EQ(warm.choices[0].timing.num_cached, 96);
  EXPECT_EQ(warm.choices[0].text, cold.choices[0].text);
  r.tenant = 5;  // another tenant must not learn what was asked before
  RequestOutput other = run_one(*s, r);
  EXPECT_EQ(other.choices[0].timing.num_cached, 0);
  EXPECT_EQ(other.choices[0].text, cold.choices[0].text);
  // A prompt that goes on: the shared blocks only.
  RequestOutput longer = run_one(*s, request_of(*s, {.prompt = std::string(70, 'q') + "rest"}));
  EXPECT_EQ(longer.choices[0].timing.num_cached, 64);
}

TEST(EngineBehaviour, DeadlinesEndWhatWaitsAndWhatRuns) {
  EngineOptions o = tiny();
  o.scheduler.max_seqs = 8;
  auto s = open_tiny(o);
  s->keep_reports();
  std::vector<Request> list;
  for (uint64_t i = 0; i < 200; ++i) {
    Request r = request_of(*s, {.seed = i, .max_new = i % 50 == 0 ? 3 : 400});
    if (i % 50 != 0) r.deadline = s->clock().now() + std::chrono::milliseconds(20);
    list.push_back(std::move(r));
  }
  Request late = request_of(*s, {});
  late.deadline = s->clock().now() - Time{1};
  list.push_back(std::move(late));
  std::vector<RequestOutput> outs = run_all(*s, std::move(list));
  size_t expired = 0;
  for (size_t i = 0; i < 200; ++i) {
    Finish f = outs[i].choices[0].finish;
    EXPECT_TRUE(i % 50 != 0 || f == Finish::length);
    expired += f == Finish::deadline;
  }
  EXPECT_GT(expired, 100u);
  EXPECT_EQ(outs.back().choices[0].finish, Finish::deadline);
  EXPECT_TRUE(outs.back().choices[0].tokens.empty());
  expect_all_blocks_back(*s);
}

TEST(EngineBehaviour, DestructionEndsWhatRunsAndWhatWaits) {
  EngineOptions o = tiny();
  o.scheduler.max_seqs = 4;
  for (bool started : {false, true}) {
    auto s = open_tiny(o);
    std::shared_ptr<Tokenizer> keep;
    Collector c(s->engine(), nullptr);
    for (uint64_t i = 0; i < 50; ++i) c.submit(request_of(*s, {.seed = i, .max_new = 400}));
    if (started) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    s.reset();
    c.wait();
    size_t num_cancelled = 0;
    for (const RequestOutput& out : c.outputs()) {
      if (out.refused) continue;  // it came after the end
      EXPECT_EQ(out.num_terminal, 1);
      num_cancelled += out.choices[0].finish == Finish::cancelled;
    }
    EXPECT_GT(num_cancelled, 0u);
  }
}

// ---- Refusals

TEST(EngineBehaviour, RefusesWhatCannotRun) {
  auto s = open_tiny();
  int ctx = s->ledger().ctx;
  auto tokens = [&](int n) { return std::make_shared<std::vector<Token>>(n, 'a'); };
  Request r = request_of(*s, {});
  r.prompt = tokens(ctx);
  RequestOutput out = run_one(*s, r);
  ASSERT_TRUE(out.refused);
  EXPECT_EQ(out.refused->code, 400);
  EXPECT_NE(out.refused->message.find("the prompt has 512 tokens and the context holds 512"),
            std::string::npos)
      << out.refused->message;

  // One shorter runs, and ends at the edge of the context.
  r.prompt = tokens(ctx - 3);
  out = run_one(*s, r);
  ASSERT_FALSE(out.refused) << out.refused->message;
  EXPECT_EQ(out.choices[0].tokens.size(), 3u);
  EXPECT_EQ(out.choices[0].finish, Finish::length);

  r.prompt = tokens(0);
  out = run_one(*s, r);
  ASSERT_TRUE(out.refused);
  EXPECT_NE(out.refused->message.find("empty"), std::string::npos) << out.refused->message;

  r = request_of(*s, {.max_new = 0});
  EXPECT_TRUE(run_one(*s, r).refused);
  r = request_of(*s, {.n = 0});
  EXPECT_TRUE(run_one(*s, r).refused);
}

TEST(EngineBehaviour, RefusesToOpenWithTheFigures) {
  EngineOptions o = tiny();
  o.kv_bytes = uint64_t{1000} << 40;
  auto s = Session::open(o);
  ASSERT_FALSE(s);
  EXPECT_EQ(s.error().code, 507);
  EXPECT_NE(s.error().message.find("free"), std::string::npos) << s.error().message;

  o = tiny();
  o.ctx = 513;
  s = Session::open(o);
  ASSERT_FALSE(s);
  EXPECT_NE(s.error().message.find("512"), std::string::npos) << s.error().message;

  o = tiny();
  o.kv_bytes = 4 * kBlockBytes;
  o.ctx = 100;
  s = Session::open(o);
  ASSERT_FALSE(s);
  EXPECT_NE(s.error().message.find("--ctx 100"), std::string::npos) << s.error().message;
}

}  // namespace
}  // namespace sluice
