// Beam searches beside other requests, over random pools: a model whose next token depends on all
// tokens before it, as it finds them in the blocks that plans name. Outputs must be those of each
// request alone, computed from plain lists of tokens; blocks are conserved.
#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "base/test_slice.h"
#include "core/fake_executor.h"
#include "core/scheduler.h"

namespace sluice {
namespace {

constexpr Token kEndToken = 0;
constexpr int kVocab = 12;

uint64_t stirred(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15u)) * 0xD1B54A32D192ED03u;
  return x ^ (x >> 31);
}

// What may follow a text with this hash, most likely first.
std::vector<TopLogprob> continuations(uint64_t hash, int num) {
  std::vector<TopLogprob> all;
  for (Token t = 0; t < kVocab; ++t) {
    auto points = static_cast<float>(stirred(hash, static_cast<uint64_t>(t)) % 4096);
    all.push_back({0, t, -points / 512 - (t == kEndToken ? 2.0f : 0.0f), 0});
  }
  std::stable_sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.logprob > b.logprob; });
  all.resize(static_cast<size_t>(std::min(num, kVocab)));
  return all;
}

uint64_t hash_of(std::span<const Token> tokens) {
  uint64_t h = 1;
  for (Token t : tokens) h = stirred(h, static_cast<uint64_t>(t) + 100);
  return h;
}

using Outputs = std::vector<std::vector<Token>>;

// What a request alone comes to.
Outputs alone(const Request& r) {
  auto text = [&](std::span<const Token> output) {
    std::vector<Token> all = *r.prompt;
    all.insert(all.end(), output.begin(), output.end());
    return hash_of(all);
  };
  Outputs out;
  if (!r.beams) {
    std::vector<Token> output;
    do {
      output.push_back(continuations(text(output), 1)[0].token);
    } while (output.back() != kEndToken && static_cast<int>(output.size()) < r.max_new);
    return Outputs(static_cast<size_t>(r.n), output);
  }
  BeamSearch search(r.n, *r.beams, r.max_new, r.stop.tokens);
  std::vector<std::vector<Token>> outputs(1);
  for (bool more = true; more;) {
    std::vector<std::vector<BeamSearch::Option>> options;
    std::vector<BeamSearch::Row> rows;
    for (const auto& o : outputs) {
      options.emplace_back();
      for (const TopLogprob& t :
           continuations(text(o), BeamSearch::num_candidates(r.n, r.stop.tokens.size())))
        options.back().push_back({t.token, t.logprob});
    }
    for (size_t k = 0; k < outputs.size(); ++k) rows.push_back({outputs[k], options[k]});
    more = search.step(rows);
    std::vector<std::vector<Token>> next;
    for (const BeamSearch::Beam& b : search.beams()) {
      next.push_back(outputs[static_cast<size_t>(b.parent)]);
      next.back().push_back(b.token);
    }
    outputs = std::move(next);
  }
  for (const BeamSearch::Answer& a : search.answers()) out.push_back(a.tokens);
  return out;
}

// Runs plans: a position's cell holds the hash of all tokens up to it.
class HashCache {
 public:
  explicit HashCache(const SchedulerConfig& c)
      : config_(c),
        cells_(static_cast<size_t>((c.num_blocks + 1) * c.block_size)),
        places_(static_cast<size_t>((c.tiers.total() + 1) * c.block_size)) {}

  StepResult run(const StepPlan& plan) {
    for (const RowOp& op : plan.rows) {
      if (op.kind == RowOp::open) specs_[op.slot] = plan.sampling[op.sampling];
    }
    for (const TableEdit& e : plan.edits) tables_[{e.slot, e.group}][e.index] = e.block;
    for (const Transfer& t : plan.transfers) {
      uint64_t* from = t.kind == Transfer::in ? place(t.from) : block(t.from);
      uint64_t* to = t.kind == Transfer::out ? place(t.to) : block(t.to);
      std::copy_n(from, config_.block_size, to);
    }
    StepResult result;
    result.step = plan.step;
    for (const Transfer& t : plan.transfers) result.transfers.push_back(t.id);
    for (const Slice& s : plan.slices) {
      uint64_t hash = 0;
      for (int k = 0; k < s.count; ++k) {
        // A chained slice has no token in the plan for its first position.
        bool known = !s.chained || k > 0;
        auto at = s.token_at + static_cast<uint32_t>(k - (s.chained ? 1 : 0));
        hash = write(s.slot, s.pos + k, known ? plan.tokens[at] : sampled_.at(s.slot));
      }
      if (s.want == Want::none) continue;
      const SamplingSpec& spec = specs_.at(s.slot);
      std::vector<TopLogprob> top = continuations(hash, std::max(spec.num_logprobs, 1));
      sampled_[s.slot] = top[0].token;
      Sampled& row = result.add_row(s);
      row.num_tokens = 1;
      result.tokens.push_back(top[0].token);
      if (spec.num_logprobs < 0) continue;
      row.top_at = static_cast<uint32_t>(result.top.size());
      top.insert(top.begin(), top[0]);
      row.num_top = static_cast<uint32_t>(top.size());
      for (TopLogprob& t : top) t.pos = s.pos + s.count;
      result.top.insert(result.top.end(), top.begin(), top.end());
    }
    return result;
  }

 private:
  uint64_t* block(BlockId b) {
    EXPECT_TRUE(b > 0 && b <= config_.num_blocks);
    return cells_.data() + static_cast<ptrdiff_t>(b) * config_.block_size;
  }
  uint64_t* place(PlaceId p) {
    return places_.data() + static_cast<ptrdiff_t>(p) * config_.block_size;
  }
  uint64_t& cell(Slot slot, int group, int pos) {
    auto& table = tables_[{slot, static_cast<uint8_t>(group)}];
    BlockId b = table[static_cast<uint32_t>(pos / config_.block_size)];
    return block(b)[pos % config_.block_size];
  }
  // Every group must hold what the layers with its window see.
  uint64_t write(Slot slot, int pos, Token token) {
    uint64_t before = pos == 0 ? 1 : cell(slot, 0, pos - 1);
    uint64_t hash = stirred(before, static_cast<uint64_t>(token) + 100);
    before_[hash] = before;
    for (size_t g = 0; g < config_.group_windows.size(); ++g) {
      int group = static_cast<int>(g), window = config_.group_windows[g];
      cell(slot, group, pos) = hash;
      int first = window == 0 ? 0 : std::max(0, pos - window + 1);
      uint64_t expected = hash;
      for (int p = pos; p >= first; --p, expected = before_[expected])
        EXPECT_EQ(cell(slot, group, p), expected) << "position " << p << " seen from " << pos;
    }
    return hash;
  }

  const SchedulerConfig& config_;
  std::vector<uint64_t> cells_, places_;
  std::map<std::pair<Slot, uint8_t>, std::map<uint32_t, BlockId>> tables_;
  std::map<Slot, SamplingSpec> specs_;
  std::map<Slot, Token> sampled_;
  std::map<uint64_t, uint64_t> before_;
};

Request some_request(RequestId id, std::vector<Token> prompt, int max_new, int n) {
  Request r;
  r.id = id;
  r.prompt = std::make_shared<const std::vector<Token>>(std::move(prompt));
  SamplingSpec greedy;
  greedy.temperature = 0;
  r.sampling = std::make_shared<const SamplingSpec>(greedy);
  r.stop.tokens = {kEndToken};
  r.max_new = max_new;
  r.n = n;
  return r;
}

struct Counts {
  int forks = 0, answers = 0, preemptions = 0;
  int cancelled = 0, late = 0, failed = 0;  // choices of searches
};

// Runs all requests; adds what each came to, of those that came to their end. With `trouble` some
// are cancelled and some steps fail.
void run_all(const SchedulerConfig& given,
             const std::vector<Request>& requests,
             std::mt19937& rng,
             bool trouble,
             std::map<RequestId, Outputs>& out,
             Counts& counts) {
  Scheduler scheduler(given, nullptr);
  const SchedulerConfig& config = scheduler.config();
  HashCache cache(config);
  std::deque<StepResult> flights;
  Events events;
  StepPlan plan;
  size_t next = 0;
  for (int k = 0; next < requests.size() || !flights.empty() || scheduler.has_work(); ++k) {
    ASSERT_LT(k, 20000) << "no progress";
    while (next < requests.size() && (rng() % 3 == 0 || !scheduler.has_work())) {
      auto ok = scheduler.add(requests[next++], Time{k});
      ASSERT_TRUE(ok) << ok.error().message;
    }
    if (trouble && rng() % 16 == 0)
      scheduler.cancel(1 + rng() % requests.size(), Time{k}, events);  // or it is not there
    scheduler.plan(Time{k}, plan, events);
    for (const Transfer& t : plan.transfers) counts.forks += t.kind == Transfer::copy;
    bool launched = !plan.empty();
    if (launched) flights.push_back(cache.run(plan));
    // Steps behind one that failed fail too.
    bool behind = flights.size() > 1 && !flights[flights.size() - 2].failure.empty();
    if (launched && trouble && (behind || rng() % 64 == 0)) {
      uint64_t step = flights.back().step;
      flights.back() = {};
      flights.back().step = step;
      flights.back().failure = "the device failed";
    }
    auto most = static_cast<size_t>(config.pipeline.max_in_flight());
    if (!flights.empty() && (!launched || flights.size() >= most)) {
      scheduler.complete(flights.front(), Time{k}, events);
      flights.pop_front();
    }
    ASSERT_TRUE(scheduler.count_blocks().conserved());
    ASSERT_LE(static_cast<int>(plan.slices.size()), config.max_seqs);
  }
  std::set<RequestId> stopped;
  for (const Event& e : events.list) {
    if (e.finish == Finish::none || e.finish == Finish::stop || e.finish == Finish::length)
      continue;
    EXPECT_EQ(e.token, kNoToken);
    stopped.insert(e.req);
    if (!requests[e.req - 1].beams) continue;
    counts.cancelled += e.finish == Finish::cancelled;
    counts.late += e.finish == Finish::deadline;
    counts.failed += e.finish == Finish::failed;
  }
  for (const Event& e : events.list) {
    if (stopped.contains(e.req)) continue;
    Outputs& o = out[e.req];
    o.resize(std::max(o.size(), size_t{e.choice} + 1));
    if (e.token != kNoToken) o[e.choice].push_back(e.token);
    if (e.finish == Finish::none) continue;
    EXPECT_EQ(e.finish, o[e.choice].back() == kEndToken ? Finish::stop : Finish::length);
    EXPECT_EQ(e.is_end_token, e.finish == Finish::stop);
    ++counts.answers;
  }
  counts.preemptions += static_cast<int>(scheduler.stats().num_preemptions);
  BlockCounts left = scheduler.count_blocks();
  EXPECT_EQ(left.owned + left.pending, 0);
  EXPECT_EQ(left.free + left.cached, left.total);
}

TEST(SchedulerBeams, OutputsAreThoseOfEachRequestAlone) {
  TestSlice slice;
  Counts counts;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    if (!slice.take()) continue;
    SCOPED_TRACE(seed);
    std::mt19937 rng(static_cast<uint32_t>(seed));
    auto pick = [&](int lo, int hi) {
      return lo + static_cast<int>(rng() % static_cast<uint32_t>(hi - lo + 1));
    };
    SchedulerConfig c;
    c.block_size = 1 << pick(0, 4);
    c.group_windows.clear();
    for (int g = pick(1, 3); g > 0; --g)
      c.group_windows.push_back(c.group_windows.empty() || pick(0, 1) ? 0 : pick(2, 20));
    c.max_len = 64;
    c.max_seqs = pick(4, 10);
    c.budget = std::max(pick(4, 40), c.max_seqs);
    c.prefix_cache = pick(0, 3) > 0;
    c.admission = static_cast<Admission>(pick(0, 2));
    c.order = static_cast<Order>(pick(0, 4));
    c.prefill = pick(0, 3) ? Prefill::chunked : Prefill::whole;
    c.mix = static_cast<Mix>(pick(0, 2));
    c.short_share = pick(0, 1) ? 0.25f : 0;
    c.pipeline = pick(0, 1) ? Pipeline{1, true, 1} : Pipeline{pick(0, 2), false, 1};
    if (pick(0, 2) == 0) {
      c.preempt = Preempt::swap;
      c.tiers.swap = pick(0, 40);
      c.tiers.host = pick(0, 40);
    }
    std::vector<Request> requests;
    std::vector<Token> common;
    for (int k = pick(0, 20); k > 0; --k) common.push_back(pick(1, kVocab - 1));
    for (RequestId id = 1; id <= 7; ++id) {
      std::vector<Token> prompt = pick(0, 1) ? common : std::vector<Token>{};
      for (int k = pick(1, 12); k > 0; --k) prompt.push_back(pick(1, kVocab - 1));
      requests.push_back(some_request(id, prompt, pick(1, 24), pick(1, 4)));
      requests.back().priority = pick(0, 2);
      if (pick(0, 1))
        requests.back().beams =
            BeamSpec{static_cast<float>(pick(-1, 2)), static_cast<BeamEnd>(pick(0, 2))};
      int rows = (static_cast<int>(requests.back().prompt->size()) + requests.back().max_new) /
                     c.block_size +
                 1;
      int most = static_cast<int>(c.group_windows.size()) * requests.back().n * rows;
      c.num_blocks = std::max(c.num_blocks, most);
    }
    c.num_blocks += pick(0, 20);
    const bool trouble = pick(0, 1) == 0;
    for (Request& r : requests) {
      if (trouble && pick(0, 3) == 0) r.deadline = Time{pick(1, 60)};
    }
    std::map<RequestId, Outputs> got;
    ASSERT_NO_FATAL_FAILURE(run_all(c, requests, rng, trouble, got, counts));
    for (const Request& r : requests) {
      if (trouble && !got.contains(r.id)) continue;  // did not come to its end
      EXPECT_EQ(got[r.id], alone(r)) << "request " << r.id;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(counts.cancelled, 0);
  EXPECT_GT(counts.late, 0);
  EXPECT_GT(counts.failed, 0);
  EXPECT_GT(counts.forks, 0);
  EXPECT_GT(counts.answers, 0);
  EXPECT_GT(counts.preemptions, 0);
}

SchedulerConfig small_pool() {
  SchedulerConfig c;
  c.block_size = 4;
  c.max_len = 64;
  c.num_blocks = 64;
  c.max_seqs = 8;
  return c;
}

TEST(SchedulerBeams, ForksShareFullBlocksAndCopyThePartialOne) {
  Scheduler scheduler(small_pool(), nullptr);
  HashCache cache(scheduler.config());
  Request r = some_request(1, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 8, 3);
  r.beams = BeamSpec{};
  ASSERT_TRUE(scheduler.add(r, Time{0}));
  StepPlan plan;
  Events events;
  scheduler.plan(Time{0}, plan, events);
  // The prompt's three blocks; one more of its own, and three for each of the other beams, are
  // promised: two full blocks of the prompt are common.
  EXPECT_EQ(scheduler.count_blocks().owned, 2 + 3 * 3);
  scheduler.complete(cache.run(plan), Time{0}, events);
  scheduler.plan(Time{1}, plan, events);
  EXPECT_EQ(plan.slices.size(), 3u);
  EXPECT_EQ(plan.transfers.size(), 2u);
  for (const Transfer& t : plan.transfers) EXPECT_EQ(t.kind, Transfer::copy);
  std::vector<BlockUse> uses(64);
  scheduler.block_uses(uses);
  EXPECT_EQ(std::ranges::count(uses, BlockUse::shared), 2);
  EXPECT_EQ(std::ranges::count(uses, BlockUse::owned), 3);
  EXPECT_TRUE(events.list.empty());
  scheduler.complete(cache.run(plan), Time{1}, events);
  scheduler.cancel(1, Time{2}, events);
  EXPECT_EQ(events.list.size(), 3u);
  EXPECT_EQ(scheduler.count_blocks().owned, 0);
}

// A search holds three of four slots; the last one is of no use to a request for two.
TEST(SchedulerBeams, NobodyIsPreemptedForARequestThatWouldNotFit) {
  SchedulerConfig c = small_pool();
  c.order = Order::priority;
  c.max_seqs = 4;
  Scheduler scheduler(c, nullptr);
  HashCache cache(scheduler.config());
  StepPlan plan;
  Events events;
  Request search = some_request(1, {1, 2, 3}, 12, 3), plain = some_request(2, {1, 2}, 12, 1);
  Request two = some_request(3, {4}, 4, 2), one = some_request(4, {5}, 4, 1);
  search.beams = two.beams = BeamSpec{1, BeamEnd::never};
  search.priority = plain.priority = 5;
  ASSERT_TRUE(scheduler.add(search, Time{0}));
  ASSERT_TRUE(scheduler.add(plain, Time{0}));
  scheduler.plan(Time{0}, plan, events);
  ASSERT_EQ(plan.slices.size(), 2u);
  scheduler.complete(cache.run(plan), Time{0}, events);
  ASSERT_TRUE(scheduler.add(two, Time{1}));
  scheduler.plan(Time{1}, plan, events);
  EXPECT_EQ(scheduler.stats().num_preemptions, 0u);
  scheduler.complete(cache.run(plan), Time{1}, events);
  scheduler.cancel(3, Time{2}, events);
  ASSERT_TRUE(scheduler.add(one, Time{2}));
  scheduler.plan(Time{2}, plan, events);
  EXPECT_EQ(scheduler.stats().num_preemptions, 1u);
}

TEST(SchedulerBeams, OneBeamIsGreedy) {
  for (Token first = 1; first < kVocab; ++first) {
    Request greedy = some_request(1, {first, 3, 5}, 12, 1), beam = greedy;
    beam.beams = BeamSpec{};
    for (Token second = 1; second < kVocab; ++second) {
      greedy.prompt = beam.prompt =
          std::make_shared<const std::vector<Token>>(std::vector<Token>{first, second});
      EXPECT_EQ(alone(beam), alone(greedy)) << first << " " << second;
    }
  }
}

TEST(SchedulerBeams, WhatDoesNotGoTogetherIsRefusedByName) {
  SchedulerConfig config = small_pool();
  auto refusal = [&](auto&& change) {
    Request r = some_request(1, {1, 2, 3}, 8, 2);
    r.beams = BeamSpec{};
    SamplingSpec spec = *r.sampling;
    SchedulerConfig c = config;
    change(r, spec, c);
    r.sampling = std::make_shared<const SamplingSpec>(spec);
    auto ok = Scheduler::check(r, c);
    EXPECT_TRUE(ok || ok.error().code == 400);
    return ok ? std::string() : ok.error().message;
  };
  auto names = [&](auto&& change, const char* word) {
    std::string message = refusal(change);
    EXPECT_NE(message.find("beam"), std::string::npos) << message;
    EXPECT_NE(message.find(word), std::string::npos) << message;
  };
  EXPECT_EQ(refusal([](Request&, SamplingSpec& s, SchedulerConfig&) { s.temperature = 0.7f; }), "");
  names([](Request&, SamplingSpec& s, SchedulerConfig&) { s.repetition_penalty = 1.1f; },
        "repetition_penalty");
  names([](Request&, SamplingSpec& s, SchedulerConfig&) { s.min_tokens = 2; }, "min_tokens");
  names([](Request&, SamplingSpec& s, SchedulerConfig&) { s.num_logprobs = 2; }, "logprobs");
  names(
      [](Request&, SamplingSpec& s, SchedulerConfig&) {
        s.logit_bias = {{1, 1.0f}};
      },
      "logit_bias");
  names([](Request& r, SamplingSpec&, SchedulerConfig&) { r.stop.strings = {"x"}; }, "stop");
  names(
      [](Request& r, SamplingSpec&, SchedulerConfig&) {
        // Any at all: core/ does not look inside.
        r.thinking = {std::shared_ptr<void>(), reinterpret_cast<const constrain::Thinking*>(&r)};
      },
      "thinking");
  names([](Request& r, SamplingSpec&, SchedulerConfig&) { r.n = 9; }, "--max-seqs");
  names([](Request&, SamplingSpec&, SchedulerConfig& c) { c.allocator = KvAllocator::range; },
        "range");
  names([](Request&, SamplingSpec&, SchedulerConfig& c) { c.sampling.num_logprobs = 2; }, "device");
  // The pool must hold all beams at their longest.
  EXPECT_NE(refusal([](Request& r, SamplingSpec&, SchedulerConfig& c) {
              r.n = 8, c.num_blocks = 16;
            }).find("KV blocks"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice
