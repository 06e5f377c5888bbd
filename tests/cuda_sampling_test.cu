// The device's sampling and prepare against the host's: exec/sampler and exec/row_state give the
// expected tokens, ranks and lists, a plain loop gives the arrays of a step.
//   cuda_sampling_test [--quick]
// --quick: small vocabularies only, for compute-sanitizer.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "backend/cuda/prepare.cuh"
#include "backend/cuda/sampling.cuh"
#include "cuda_fixture.cuh"
#include "exec/row_spec.h"
#include "exec/sampler.h"

namespace sluice {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

int failures = 0;
std::string context;

void fail(const char* format, auto... args) {
  if (++failures > 40) return;
  std::printf("FAIL %s: ", context.c_str());
  std::printf(format, args...);
  std::printf("\n");
}

constexpr int kNumKinds = 16;

void fill_logits(Random& r, int kind, float* x, int n) {
  float scale = std::array{0.01f, 1.0f, 3.0f, 10.0f}[static_cast<size_t>(r.below(4))];
  for (int i = 0; i < n; ++i) x[i] = scale * r.normal();
  auto some = [&](int num, auto value) {
    for (int k = 0; k < num; ++k) x[r.below(n)] = value();
  };
  switch (kind) {
    case 0:
    case 1:
    case 2:
      break;
    case 3:
      some(1 + r.below(20), [&] { return r.uniform(20, 30); });
      break;  // peaked
    case 4:   // rounded to bf16: ties
      for (int i = 0; i < n; ++i) {
        x[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(x[i]) & 0xffff0000u);
      }
      break;
    case 5:
      std::fill(x, x + n, 1.5f);
      break;
    case 6:
      std::fill(x, x + n, -kInf);
      break;
    case 7:
      std::fill(x, x + n, kNan);
      break;
    case 8:
      some(n / 4 + 1, [] { return kNan; });
      some(n / 4 + 1, [] { return -kInf; });
      break;
    case 9:
      for (int i = 0; i < n; ++i) x[i] *= r.pick({1e-40f, 1e-10f, 1.0f, 1e30f, 3e37f});
      break;
    case 10:
      some(1 + r.below(5), [] { return kInf; });
      break;
    case 11:  // few values, with both zeros
      for (int i = 0; i < n; ++i) x[i] = r.pick({-1.0f, -0.0f, 0.0f, 2.0f});
      break;
    case 12:  // almost everything forbidden
      std::fill(x, x + n, r.chance(50) ? -kInf : kNan);
      some(1 + r.below(3), [&] { return r.normal(); });
      break;
    case 14:  // the most likely side by side
      for (int i = 0; i < n; ++i) x[i] = 1e-4f * static_cast<float>(i);
      break;
    case 15:  // a step of equals between spread ones
      for (int i = 0; i < n; ++i) x[i] = std::clamp(x[i], -1.0f, 0.5f);
      some(1 + r.below(40), [&] { return r.uniform(1, 3); });
      break;
    case 13:
      for (int i = 0; i < n; ++i) x[i] = -100 + 1e-3f * static_cast<float>(r.below(4000));
      break;
  }
}

Token any_token(Random& r, int vocab) {
  if (r.chance(3)) return r.pick({-1, -5, vocab, vocab + 7});
  return r.chance(50) ? r.below(std::min(vocab, 6)) : r.below(vocab);
}

// Draws by temperature and top_p alone.
SamplingSpec plain_spec(Random& r) {
  SamplingSpec s;
  s.seed = r.bits();
  s.temperature = r.pick({0.01f, 0.3f, 0.8f, 0.8f, 1.0f, 1.0f, 1.7f, 50.0f});
  s.top_p = r.pick({1e-9f, 0.1f, 0.5f, 0.9f, 0.95f, 0.99f, 0.9999999f, 1.0f});
  s.num_logprobs = r.chance(10) ? 5 : -1;
  return s;
}

SamplingSpec random_spec(Random& r, int vocab) {
  SamplingSpec s;
  s.seed = r.bits();
  s.temperature = r.chance(30) ? r.pick({0.0f, 1e-6f})
                               : r.pick({1e-5f, 0.01f, 0.3f, 0.8f, 1.0f, 1.0f, 1.7f, 50.0f});
  if (r.chance(50)) {
    s.top_k = r.pick({1, 2, 5, 20, 50, 200, 1000, 1024, 1025, 3000, vocab - 1, vocab, vocab + 9});
    s.top_k = std::max(s.top_k, 1);
  }
  if (r.chance(50)) s.top_p = r.pick({0.0f, 1e-9f, 0.1f, 0.5f, 0.9f, 0.95f, 0.99f, 0.9999999f});
  if (r.chance(25)) s.min_p = r.pick({1e-12f, 1e-4f, 0.05f, 0.5f, 1.0f});
  s.num_logprobs = r.chance(40) ? r.pick({0, 1, 5, 20, 128}) : -1;
  s.prompt_logprobs = r.pick({0, 1, 7, 128});
  if (r.chance(50)) return s;
  if (r.chance(40)) s.repetition_penalty = r.pick({1.1f, 0.7f, 2.0f});
  if (r.chance(40)) s.frequency_penalty = r.uniform(-1, 2);
  if (r.chance(40)) s.presence_penalty = r.uniform(-1, 2);
  if (r.chance(40)) {
    int num = r.pick({1, 10, 300, kMaxLogitBias});
    for (int i = 0; i < num; ++i) {
      float bias = r.chance(90) ? r.uniform(-10, 10) : r.pick({-100.0f, 100.0f, kInf, -kInf});
      s.logit_bias.push_back({any_token(r, vocab), bias});
    }
  }
  if (r.chance(40)) {
    s.min_tokens = r.below(6);
    int num = r.pick({1, 3, kMaxBanned});
    for (int i = 0; i < num; ++i) s.banned_until_min.push_back(any_token(r, vocab));
  }
  if (r.chance(20)) {
    int num = r.pick({1, 3, 50, 5000});
    for (int i = 0; i < num; ++i) s.allowed.push_back(any_token(r, vocab));
  }
  if (r.chance(40)) {
    int num = r.pick({1, 5, 30});
    for (int i = 0; i < num; ++i) {
      std::vector<Token> bad(static_cast<size_t>(r.pick({1, 1, 2, 3, kMaxBadLength})));
      for (Token& t : bad) t = r.below(std::min(vocab, 4));
      s.bad_sequences.push_back(bad);
    }
  }
  return s;
}

// Rows of sampling on both sides.
class SamplingPair {
 public:
  // plain: rows that temperature and top_p alone choose from, without masks.
  SamplingPair(int slots, int vocab, uint64_t seed, bool plain)
      : vocab_(vocab), plain_(plain), random_(seed), states_(static_cast<size_t>(slots)) {
    sampler_.reserve(slots, vocab, 2);
    check(cudaStreamCreate(&stream_), "stream");
  }
  ~SamplingPair() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
    cudaStreamDestroy(stream_);
  }

  // `rows` outputs each step: sampled, scored and padding.
  void run(int steps, int rows, bool captured) {
    auto n = static_cast<size_t>(rows), v = static_cast<size_t>(vocab_);
    Array<float> logits(n * v);
    Array<OutputRow> outputs(n);
    Array<SampleResult> results(n);
    Array<TopEntry> top(n * kMaxTopLogprobs);
    Array<uint32_t> masks(n * words());
    SampleStep step{logits.data(),  rows,       vocab_,      outputs.data(),
                    results.data(), top.data(), masks.data()};
    std::vector<float> host(n * v);
    for (int at = 0; at < steps; ++at) {
      open_some(at == 0 ? 100 : 15);
      std::vector<OutputRow> out = make_outputs(rows);
      kinds_.resize(n);
      for (size_t i = 0; i < n; ++i) {
        kinds_[i] = random_.below(kNumKinds);
        fill_logits(random_, kinds_[i], host.data() + i * v, vocab_);
      }
      logits.put(host.data(), host.size());
      make_masks(out);
      masks.put(masks_.data(), masks_.size());
      outputs.put(out.data(), out.size());
      results.poison();
      top.poison();
      launch(step, captured);
      compare(at, out, host, results.get(), top.get());
      for (State& s : states_) s.row.set_mask({});
    }
  }

 private:
  void launch(const SampleStep& step, bool captured) {
    if (!captured) {
      sampler_.sample(step, stream_);
    } else {
      if (graph_ == nullptr) {
        cudaGraph_t graph;
        check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
        sampler_.sample(step, stream_, 1);  // the second lane
        check(cudaStreamEndCapture(stream_, &graph), "capture");
        check(cudaGraphInstantiate(&graph_, graph, 0), "instantiate");
        cudaGraphDestroy(graph);
      }
      check(cudaGraphLaunch(graph_, stream_), "graph");
    }
    check(cudaStreamSynchronize(stream_), "sample");
  }

  void open_some(int percent) {
    PacketBuilder packet;
    for (size_t slot = 0; slot < states_.size(); ++slot) {
      if (!random_.chance(percent)) continue;
      // Now and then twice: the later stands.
      for (int k = random_.chance(10) ? 2 : 1; k > 0; --k) open(static_cast<int>(slot), packet);
    }
    Packet p = packet.upload();
    sampler_.open_rows(p, stream_);
    check(cudaStreamSynchronize(stream_), "open");
  }
  void open(int slot, PacketBuilder& packet) {
    auto spec =
        std::make_shared<SamplingSpec>(plain_ ? plain_spec(random_) : random_spec(random_, vocab_));
    std::vector<Token> history(static_cast<size_t>(random_.pick({0, 1, 10, 100})));
    for (Token& t : history) t = any_token(random_, vocab_);
    size_t num_prompt =
        history.empty() ? 0
                        : static_cast<size_t>(random_.below(static_cast<int>(history.size()) + 1));
    auto choice = static_cast<uint32_t>(random_.below(3));
    packet.specs.push_back(make_row_spec(*spec, {slot, choice, history, num_prompt}, packet.words));
    State& state = states_[static_cast<size_t>(slot)];
    state.row.open(*spec, history, num_prompt);
    state.choice = static_cast<int>(choice);
  }

  // Every slot at most once to sample; scored rows of any slot, padding between.
  std::vector<OutputRow> make_outputs(int rows) {
    std::vector<int> slots(states_.size());
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int>(i);
    for (size_t i = slots.size(); i > 1; --i) {
      std::swap(slots[i - 1], slots[static_cast<size_t>(random_.below(static_cast<int>(i)))]);
    }
    std::vector<OutputRow> out;
    for (int i = 0; i < rows; ++i) {
      OutputRow o{i, -1, random_.below(1 << 20), -1, -1};
      bool scored = random_.chance(15) || slots.empty();
      if (!random_.chance(8)) {
        o.slot = scored ? random_.below(static_cast<int>(states_.size())) : slots.back();
        const SamplingSpec& spec = states_[static_cast<size_t>(o.slot)].row.spec();
        o.actual = scored ? random_.below(vocab_) : -1;
        o.num_top = scored ? spec.prompt_logprobs : spec.num_logprobs;
        if (!scored) slots.pop_back();
      }
      out.push_back(o);
    }
    return out;
  }

  size_t words() const { return static_cast<size_t>(mask_words(vocab_)); }

  // A mask for some outputs that sample, on both sides: of everything, much, a few tokens, the ids
  // that are banned before min_tokens, or nothing.
  void make_masks(std::vector<OutputRow>& out) {
    masks_.assign(out.size() * words(), 0);
    int num = 0;
    for (OutputRow& o : out) {
      if (plain_ || o.slot < 0 || o.actual >= 0 || !random_.chance(40)) continue;
      std::span<uint32_t> mask(masks_.data() + static_cast<size_t>(num) * words(), words());
      State& state = states_[static_cast<size_t>(o.slot)];
      auto set = [&](Token t) {
        if (t >= 0 && t < vocab_) mask[static_cast<size_t>(t) / 32] |= 1u << (t % 32);
      };
      int kind = random_.below(5);
      if (kind == 0) std::fill(mask.begin(), mask.end(), ~0u);
      if (kind == 1) {
        for (uint32_t& w : mask) w = static_cast<uint32_t>(random_.bits());
      }
      if (kind == 2 || kind == 3) {
        for (int k = 1 + random_.below(4); k > 0; --k) set(any_token(random_, vocab_));
      }
      if (kind == 3) {
        for (Token t : state.row.spec().banned_until_min) set(t);
      }
      state.row.set_mask(mask);
      o.mask = num++;
    }
  }

  void compare(int step,
               const std::vector<OutputRow>& out,
               const std::vector<float>& logits,
               const std::vector<SampleResult>& results,
               const std::vector<TopEntry>& top) {
    struct Expected {
      Token token = kNoToken;
      std::vector<TopLogprob> top;
    };
    std::vector<Expected> expected(out.size());
    std::atomic<size_t> next = 0;
    auto work = [&] {
      SampleScratch scratch;
      auto v = static_cast<size_t>(vocab_);
      for (size_t i = next++; i < out.size(); i = next++) {
        if (out[i].slot < 0) continue;
        std::vector<float> row(logits.begin() + static_cast<ptrdiff_t>(i * v),
                               logits.begin() + static_cast<ptrdiff_t>((i + 1) * v));
        const State& s = states_[static_cast<size_t>(out[i].slot)];
        Expected& e = expected[i];
        if (out[i].actual >= 0) {
          e.token = out[i].actual;
          score_row(row.data(), vocab_, e.token, 0, {out[i].num_top}, e.top, scratch);
        } else {
          e.token =
              sample_row(row.data(), vocab_, s.row, s.choice, out[i].position, &e.top, scratch);
        }
      }
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < (vocab_ > 10000 ? 16 : 1); ++t) threads.emplace_back(work);
    for (std::thread& t : threads) t.join();
    std::vector<int32_t> last(states_.size());
    check(cudaMemcpy(last.data(), sampler_.last_tokens(), last.size() * sizeof(int32_t),
                     cudaMemcpyDeviceToHost),
          "last tokens");
    for (size_t i = 0; i < out.size(); ++i) {
      const OutputRow& o = out[i];
      context = "vocab " + std::to_string(vocab_) + " step " + std::to_string(step) + " row " +
                std::to_string(i) + " logits " + std::to_string(kinds_[i]);
      if (o.slot < 0) {
        SampleResult untouched;
        std::memset(&untouched, 0xee, sizeof(untouched));
        if (std::memcmp(&untouched, &results[i], sizeof(untouched)) != 0) fail("padding written");
        continue;
      }
      State& s = states_[static_cast<size_t>(o.slot)];
      context += describe(s.row.spec(), o);
      compare_row(expected[i].token, expected[i].top, results[i], top.data() + i * kMaxTopLogprobs);
      ++compared_;
      if (o.actual >= 0) continue;
      if (expected[i].token == kNoToken) continue;
      s.row.add(expected[i].token);
      if (last[static_cast<size_t>(o.slot)] != expected[i].token) fail("last token");
    }
  }

  void compare_row(Token token,
                   const std::vector<TopLogprob>& want,
                   const SampleResult& got,
                   const TopEntry* top) const {
    if (got.token != token) return fail("token %d, wanted %d", got.token, token);
    if (want.empty()) return;
    if (got.rank != want[0].rank) fail("rank %d, wanted %d", got.rank, want[0].rank);
    if (!(std::abs(got.logprob - want[0].logprob) <= 1e-5f * std::max(1.0f, -want[0].logprob))) {
      fail("logprob %g, wanted %g", got.logprob, want[0].logprob);
    }
    if (got.num_top != static_cast<int>(want.size()) - 1) {
      return fail("%d top, wanted %d", got.num_top, static_cast<int>(want.size()) - 1);
    }
    for (size_t i = 1; i < want.size(); ++i) {
      if (top[i - 1].token != want[i].token) {
        return fail("top %d is %d, wanted %d", static_cast<int>(i), top[i - 1].token,
                    want[i].token);
      }
      float lp = want[i].logprob;
      if (!(std::abs(top[i - 1].logprob - lp) <= 1e-5f * std::max(1.0f, -lp))) {
        return fail("top %d logprob %g, wanted %g", static_cast<int>(i), top[i - 1].logprob, lp);
      }
    }
  }

  static std::string describe(const SamplingSpec& s, const OutputRow& o) {
    char text[300];
    std::snprintf(text, sizeof(text),
                  " actual %d t %g k %d p %g m %g rep %g freq %g pres %g bias %zu banned %zu "
                  "allowed %zu bad %zu top %d mask %d",
                  o.actual, s.temperature, s.top_k, s.top_p, s.min_p, s.repetition_penalty,
                  s.frequency_penalty, s.presence_penalty, s.logit_bias.size(),
                  s.banned_until_min.size(), s.allowed.size(), s.bad_sequences.size(), o.num_top,
                  o.mask);
    return text;
  }

 public:
  int compared() const { return compared_; }

 private:
  struct State {
    RowState row;
    int choice = 0;
  };
  int vocab_;
  bool plain_;
  Random random_;
  std::vector<State> states_;
  std::vector<int> kinds_;
  std::vector<uint32_t> masks_;
  cuda::Sampler sampler_;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
  int compared_ = 0;
};

// One random step through prepare() and through loops.
void test_prepare(uint64_t seed) {
  Random r(seed);
  context = "prepare " + std::to_string(seed);
  constexpr int kSlots = 40, kStride = 64, kMaxTokens = 4096;
  bool decode = r.chance(50);
  int num_slices = r.below(kSlots + 1);
  PacketBuilder b;
  std::vector<int32_t> last(kSlots), tables((kSlots + 1) * kStride);
  for (int32_t& t : last) t = r.below(1000);
  for (int32_t& t : tables) t = r.below(1000);
  for (int i = r.below(700); i > 0; --i) {
    b.edits.push_back({r.below(r.chance(50) ? 50 : kSlots * kStride), r.below(10000), 0});
  }
  std::vector<int32_t> tokens, positions, row_slot;
  std::vector<SliceView> slices;
  for (int i = 0; i < num_slices; ++i) {
    int count = decode || r.chance(40) ? 1 : 1 + r.below(90);
    PacketSlice s{static_cast<int32_t>(tokens.size()), count, r.below(500), i, 0, 0};
    s.chained = count == 1 && r.chance(60) ? 1 : 0;
    s.token_at = static_cast<uint32_t>(b.words.size());
    slices.push_back({s.row, s.count, s.pos, s.slot});
    for (int k = 0; k < count; ++k) {
      if (s.chained == 0) b.words.push_back(r.below(5000));
      tokens.push_back(s.chained != 0 ? last[static_cast<size_t>(i)] : b.words.back());
      positions.push_back(s.pos + k);
      row_slot.push_back(i);
    }
    b.slices.push_back(s);
    if (r.chance(80))
      b.outputs.push_back({s.row + count - 1, i, s.pos + count, -1, -1, r.below(9) - 1});
  }
  auto num = static_cast<int>(tokens.size());
  int padded = num + (r.chance(60) ? r.below(20) : 0);
  for (int i = num; i < padded; ++i) {
    tokens.push_back(0), positions.push_back(0), row_slot.push_back(kSlots);
    slices.push_back({i, 1, 0, kSlots});
  }
  std::vector<OutputRow> outputs = b.outputs;
  std::vector<int32_t> out_rows;
  for (auto i = static_cast<int>(outputs.size()); i < padded; ++i) {
    outputs.push_back({i, -1, 0, -1, -1});
  }
  for (const OutputRow& o : outputs) out_rows.push_back(o.row);

  Array<int32_t> d_last(last.size()), d_tables(tables.size()), d_tokens(kMaxTokens),
      d_positions(kMaxTokens), d_row_slot(kMaxTokens), d_out_rows(kMaxTokens);
  Array<SliceView> d_slices(kMaxTokens);
  Array<OutputRow> d_outputs(kMaxTokens);
  d_last.put(last.data(), last.size());
  d_tables.put(tables.data(), tables.size());
  for (const PacketEdit& e : b.edits) tables[static_cast<size_t>(e.at)] = e.block;
  StepArrays arrays{d_tokens.data(),   d_positions.data(), d_row_slot.data(), d_slices.data(),
                    d_out_rows.data(), d_outputs.data(),   d_tables.data(),   kSlots};
  Packet packet = b.upload();
  cuda::prepare(packet, arrays, num, padded, d_last.data(), nullptr);
  check(cudaDeviceSynchronize(), "prepare");

  // Past the expected part nothing was written.
  auto same = [](const char* what, const auto& want, const auto& array) {
    auto got = array.get();
    size_t bytes = want.size() * sizeof(want[0]);
    if (bytes > 0 && std::memcmp(want.data(), got.data(), bytes) != 0) fail("%s differ", what);
    const auto* rest = reinterpret_cast<const unsigned char*>(got.data());
    for (size_t i = bytes; i < got.size() * sizeof(got[0]); ++i) {
      if (rest[i] != 0xee) return fail("%s written past their end", what);
    }
  };
  same("tokens", tokens, d_tokens);
  same("positions", positions, d_positions);
  same("row_slot", row_slot, d_row_slot);
  same("slices", slices, d_slices);
  same("outputs", outputs, d_outputs);
  same("out_rows", out_rows, d_out_rows);
  same("tables", tables, d_tables);
}

void test_all(bool quick) {
  struct Case {
    int vocab, slots, steps, rounds;
    bool plain = false;
  };
  std::vector<Case> cases = {{1, 8, 6, 2},      {7, 60, 10, 5},     {1000, 60, 10, 5},
                             {1000, 600, 3, 1}, {5003, 40, 8, 4},   {32000, 40, 8, 4},
                             {50257, 30, 6, 2}, {151936, 40, 6, 4}, {262144, 16, 4, 2}};
  // Too large for a cluster; so many rows that those that need no memory have a block each.
  for (const Case& c : {Case{420000, 8, 3, 1}, Case{420003, 8, 3, 1}, Case{32000, 200, 4, 2},
                        Case{1000, 1100, 6, 1}, Case{151936, 170, 3, 2}, Case{151937, 170, 1, 1}})
    cases.push_back(c);
  // Rows that a block alone draws from in two reads: the least and the largest vocabulary, others.
  for (const Case& c :
       {Case{151936, 200, 2, 2, true}, Case{32000, 300, 4, 2, true}, Case{16384, 300, 4, 2, true},
        Case{50260, 200, 4, 1, true}, Case{524288, 160, 1, 1, true}})
    cases.push_back(c);
  if (quick)
    cases = {{7, 20, 3, 1},
             {1000, 20, 3, 1},
             {5003, 16, 3, 1},
             {9000, 12, 3, 1},
             {16384, 160, 1, 1, true}};
  for (const Case& c : cases) {
    int before = failures, rows = 0;
    for (int round = 0; round < c.rounds; ++round) {
      SamplingPair pair(c.slots, c.vocab, static_cast<uint64_t>(c.vocab * 100 + round), c.plain);
      pair.run(c.steps, c.slots + 6, round % 2 == 1);
      rows += pair.compared();
    }
    std::printf("sampling vocab %6d%s: %5d rows compared, %d failures\n", c.vocab,
                c.plain ? " plain" : "", rows, failures - before);
    std::fflush(stdout);
  }
  int before = failures, steps = quick ? 10 : 200;
  for (int i = 0; i < steps; ++i) test_prepare(static_cast<uint64_t>(i));
  std::printf("prepare: %d steps compared, %d failures\n", steps, failures - before);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  std::string_view mode = argc > 1 ? argv[1] : "";
  sluice::test_all(mode == "--quick");
  std::printf("%s: %d failures\n", sluice::failures == 0 ? "ok" : "FAILED", sluice::failures);
  return sluice::failures == 0 ? 0 : 1;
}
