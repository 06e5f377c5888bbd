// The sampler against a naive one: full sorts, std::exp in double, plain sums.
#include "exec/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "base/random.h"
#include "base/test_slice.h"

namespace sluice {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float uniform(uint64_t seed, int64_t i, float lo, float hi) {
  return lo + (hi - lo) * draw_float({seed, 77, i, 0});
}

// Sum of twelve uniforms less six: close to normal, and the same everywhere.
float normal(uint64_t seed, int64_t i) {
  float sum = -6;
  for (uint32_t k = 0; k < 12; ++k) sum += draw_float({seed, 78, i, k});
  return sum;
}

RowState make_row(const SamplingSpec& spec,
                  const std::vector<Token>& history = {},
                  size_t num_prompt = SIZE_MAX) {
  RowState row;
  row.open(spec, history, std::min(num_prompt, history.size()));
  return row;
}

Token sample(std::vector<float> logits, const RowState& row, int64_t position = 0, int choice = 0) {
  SampleScratch scratch;
  return sample_row(logits.data(), static_cast<int>(logits.size()), row, choice, position, nullptr,
                    scratch);
}

// --full-sort: the same tokens, flat rows and peaked ones, with ties, infinities and NaN.
TEST(Sampler, AFullSortDrawsTheSame) {
  for (int i = 0; i < 400; ++i) {
    auto draw = [&](uint32_t what) { return draw_double({21, 0, i, what}); };
    std::vector<float> logits(1 + static_cast<size_t>(draw(1) * 3000));
    const double spread = draw(2) < 0.5 ? 0.5 : 12;
    for (size_t t = 0; t < logits.size(); ++t) {
      const double x = draw_double({22, static_cast<uint32_t>(i), static_cast<int64_t>(t), 0});
      logits[t] = static_cast<float>(std::round(x * spread * 16) / 16);
      if (x < 0.01) logits[t] = x < 0.005 ? -kInf : NAN;
    }
    SamplingSpec spec;
    spec.temperature = static_cast<float>(0.3 + draw(3));
    spec.top_p = draw(4) < 0.3 ? 1 : static_cast<float>(draw(5) * 0.98 + 0.01);
    spec.top_k = draw(6) < 0.5 ? 0 : 1 + static_cast<int>(draw(7) * 100);
    spec.min_p = draw(8) < 0.7 ? 0 : static_cast<float>(draw(9) * 0.3);
    RowState row;
    row.open(spec, {}, 0);
    SampleScratch fast, slow;
    slow.full_sort = true;
    std::vector<float> copy = logits;
    const int vocab = static_cast<int>(logits.size());
    const Token a = sample_row(copy.data(), vocab, row, 0, i, nullptr, fast);
    const Token b = sample_row(logits.data(), vocab, row, 0, i, nullptr, slow);
    ASSERT_EQ(a, b) << "row " << i;
  }
}

SamplingSpec greedy() {
  SamplingSpec s;
  s.temperature = 0;
  return s;
}

// Ids from most to least likely.
std::vector<int> sorted_ids(const std::vector<float>& logits) {
  std::vector<int> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  auto value = [&](int i) { return std::isnan(logits[i]) ? -kInf : logits[i]; };
  std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) { return value(a) > value(b); });
  return ids;
}

// Probability of every token after temperature, min_p, top_k and top_p.
std::vector<double> naive_distribution(const std::vector<float>& logits, const SamplingSpec& s) {
  std::vector<int> ids = sorted_ids(logits);
  std::vector<double> w(logits.size());
  double max = logits[ids[0]];
  for (size_t i = 0; i < w.size(); ++i) {
    w[i] = std::isnan(logits[i]) ? 0 : std::exp((logits[i] - max) / s.temperature);
    if (w[i] < s.min_p) w[i] = 0;
  }
  if (s.top_k > 0) {
    for (size_t r = s.top_k; r < ids.size(); ++r) w[ids[r]] = 0;
  }
  double total = std::accumulate(w.begin(), w.end(), 0.0), sum = 0;
  bool done = false;
  for (int i : ids) {
    if (done && s.top_p < 1) w[i] = 0;
    sum += w[i];
    done = done || sum >= static_cast<double>(s.top_p) * total;
  }
  total = std::accumulate(w.begin(), w.end(), 0.0);
  for (double& x : w) x /= total;
  return w;
}

Token naive_draw(const std::vector<double>& p, const DrawKey& key) {
  double u = draw_double(key), sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    sum += p[i];
    if (sum > u) return static_cast<Token>(i);
  }
  return static_cast<Token>(sorted_ids({p.begin(), p.end()})[0]);
}

// Pearson's statistic in standard deviations above its mean, bins of expectation >= 5.
double chi_square_sigmas(const std::map<Token, int>& counts, const std::vector<double>& p, int n) {
  double chi = 0, rest_p = 0, rest_n = 0;
  int bins = 0;
  auto add = [&](double expected, double got) {
    chi += (got - expected) * (got - expected) / expected;
    ++bins;
  };
  for (size_t i = 0; i < p.size(); ++i) {
    auto it = counts.find(static_cast<Token>(i));
    double got = it == counts.end() ? 0 : it->second;
    if (p[i] * n >= 5) {
      add(p[i] * n, got);
    } else {
      rest_p += p[i], rest_n += got;
    }
  }
  if (rest_p * n >= 5) add(rest_p * n, rest_n);
  double dof = bins - 1;
  return dof > 0 ? (chi - dof) / std::sqrt(2 * dof) : 0;
}

TEST(Sampler, GreedyTakesTheLowestIdOfTies) {
  RowState row = make_row(greedy());
  EXPECT_EQ(sample({1, 3, 2, 3, 3}, row), 1);
  EXPECT_EQ(sample({0.0f, -0.0f}, row), 0);
  EXPECT_EQ(sample({-0.0f, 0.0f}, row), 0);
  EXPECT_EQ(sample({-5}, row), 0);
  for (int n : {1, 15, 16, 17, 127, 128, 129, 4095, 4096, 4097, 10000}) {
    std::vector<float> logits(n);
    for (int i = 0; i < n; ++i) logits[i] = uniform(1, i, -1, 1);
    for (int at = 0; at < n; at += std::max(1, n / 13)) {
      std::vector<float> x = logits;
      x[at] = x[n - 1] = 2;
      EXPECT_EQ(sample(x, row), at) << n;
    }
  }
}

TEST(Sampler, NonFiniteLogits) {
  for (float temperature : {0.0f, 1.0f}) {
    for (float top_p : {1.0f, 0.5f}) {
      for (int top_k : {0, 2}) {
        SamplingSpec s;
        s.temperature = temperature, s.top_p = top_p, s.top_k = top_k;
        RowState row = make_row(s);
        EXPECT_EQ(sample({kNan, kNan, -3, kNan}, row), 2);
        EXPECT_EQ(sample({-kInf, kNan, -3, -kInf}, row), 2);
        EXPECT_EQ(sample({kNan, kNan, kNan}, row), 0);
        EXPECT_EQ(sample({-kInf, -kInf}, row), 0);
        EXPECT_EQ(sample({1, kInf, 3}, row), 1);
        EXPECT_EQ(sample({-3e38f, 3e38f, 0}, row), 1);
        s.allowed = {2, 1};
        EXPECT_EQ(sample({kNan, kNan, kNan}, make_row(s)), 1);
        s.min_tokens = 1, s.banned_until_min = {1};
        EXPECT_EQ(sample({kNan, kNan, kNan}, make_row(s)), 2);
      }
    }
  }
}

TEST(Sampler, ExtremeTemperatures) {
  SamplingSpec s;
  s.temperature = 1e-30f;
  EXPECT_EQ(sample({1, 2, 1.9999f}, make_row(s)), 1);
  s.temperature = 2e-5f;
  EXPECT_EQ(sample({1, 2, 1.99f}, make_row(s)), 1);
  s.temperature = 1e30f;
  std::set<Token> seen;
  for (int i = 0; i < 100; ++i) seen.insert(sample({-50, 0, 50}, make_row(s), i));
  EXPECT_EQ(seen.size(), 3u);
}

struct Shape {
  const char* name;
  float spread, step;  // step > 0 rounds logits to multiples: ties
};
constexpr Shape kShapes[] = {
    {"flat", 0, 0}, {"soft", 0.5f, 0}, {"usual", 2.5f, 0}, {"peaked", 12, 0}, {"ties", 1.5f, 1}};

std::vector<float> make_logits(const Shape& shape, int n, uint64_t seed) {
  std::vector<float> x(n);
  for (int i = 0; i < n; ++i) {
    x[i] = 3 + shape.spread * normal(seed, i);
    if (shape.step > 0) x[i] = shape.step * std::round(x[i] / shape.step);
  }
  return x;
}

TEST(Sampler, EqualsNaiveFullSort) {
  const float kTopP[] = {1, 0.999f, 0.95f, 0.7f, 0.5f, 0.1f, 0};
  const float kMinP[] = {0, 0, 0.02f, 0.3f, 1};
  const float kTemperature[] = {1, 0.3f, 0.7f, 2};
  int cases = 0;
  TestSlice slice;
  for (const Shape& shape : kShapes) {
    for (int n : {1, 7, 128, 1000, 3000}) {
      for (int trial = 0; trial < 120; ++trial) {
        uint64_t seed = static_cast<uint64_t>(++cases);
        if (!slice.take()) continue;
        auto pick = [&](uint32_t k, size_t m) { return draw_u32({seed, 5, 0, k}) % m; };
        SamplingSpec s;
        s.seed = seed;
        s.top_p = kTopP[pick(0, 7)];
        s.min_p = kMinP[pick(1, 5)];
        s.temperature = kTemperature[pick(2, 4)];
        const int kTopK[] = {0, 0, 1, 5, 50, n / 2, n, n + 5};
        s.top_k = kTopK[pick(3, 8)];
        std::vector<float> logits = make_logits(shape, n, seed);
        std::vector<double> p = naive_distribution(logits, s);
        RowState row = make_row(s);
        for (int64_t pos = 0; pos < 8; ++pos) {
          ASSERT_EQ(sample(logits, row, pos, 3), naive_draw(p, {seed, 3, pos, 0}))
              << shape.name << " n=" << n << " k=" << s.top_k << " p=" << s.top_p
              << " min_p=" << s.min_p << " t=" << s.temperature << " seed=" << seed;
        }
      }
    }
  }
}

TEST(Sampler, EqualsNaiveOnARealVocabulary) {
  const int kVocab = 151936;
  for (const Shape& shape : kShapes) {
    std::vector<float> logits = make_logits(shape, kVocab, 9);
    for (float top_p : {1.0f, 0.9f, 0.3f}) {
      for (int top_k : {0, 40, 5000}) {
        SamplingSpec s;
        s.seed = 4, s.top_p = top_p, s.top_k = top_k;
        std::vector<double> p = naive_distribution(logits, s);
        RowState row = make_row(s);
        for (int64_t pos = 0; pos < 4; ++pos) {
          ASSERT_EQ(sample(logits, row, pos), naive_draw(p, {4, 0, pos, 0}))
              << shape.name << " p=" << top_p << " k=" << top_k;
        }
      }
    }
  }
}

TEST(Sampler, FollowsTheDistribution) {
  std::vector<float> logits = make_logits(kShapes[2], 200, 3);
  struct Row {
    float temperature, top_p, min_p;
    int top_k;
  };
  for (const Row& r : {Row{1, 1, 0, 0}, Row{0.6f, 1, 0, 0}, Row{1.5f, 1, 0, 0}, Row{1, 0.8f, 0, 0},
                       Row{1, 1, 0.1f, 0}, Row{1, 1, 0, 10}, Row{1.3f, 0.9f, 0.01f, 30}}) {
    SamplingSpec s;
    s.temperature = r.temperature, s.top_p = r.top_p, s.min_p = r.min_p, s.top_k = r.top_k;
    s.seed = 2024;
    RowState row = make_row(s);
    std::vector<double> p = naive_distribution(logits, s);
    std::map<Token, int> counts;
    const int kDraws = 20000;
    for (int i = 0; i < kDraws; ++i) ++counts[sample(logits, row, i)];
    for (auto [t, c] : counts) EXPECT_GT(p[t], 0) << t;
    EXPECT_LT(chi_square_sigmas(counts, p, kDraws), 4) << r.temperature << " " << r.top_p;
  }
}

TEST(Sampler, TruncationKeepsTheRightTokens) {
  // Probabilities 0.4, 0.3, 0.2, 0.1 at ids 2, 0, 3, 1.
  std::vector<float> logits = {std::log(0.3f), std::log(0.1f), std::log(0.4f), std::log(0.2f)};
  auto reached = [&](SamplingSpec s) {
    RowState row = make_row(s);
    std::set<Token> seen;
    for (int i = 0; i < 400; ++i) seen.insert(sample(logits, row, i));
    return seen;
  };
  SamplingSpec s;
  EXPECT_EQ(reached(s), (std::set<Token>{0, 1, 2, 3}));
  s.top_k = 2;
  EXPECT_EQ(reached(s), (std::set<Token>{0, 2}));
  s = {}, s.top_p = 0.69f;
  EXPECT_EQ(reached(s), (std::set<Token>{0, 2}));
  s = {}, s.top_p = 0.71f;
  EXPECT_EQ(reached(s), (std::set<Token>{0, 2, 3}));
  s = {}, s.top_p = 0;
  EXPECT_EQ(reached(s), (std::set<Token>{2}));
  s = {}, s.min_p = 0.49f;  // of 0.4: 0.196
  EXPECT_EQ(reached(s), (std::set<Token>{0, 2, 3}));
  s = {}, s.min_p = 0.51f;
  EXPECT_EQ(reached(s), (std::set<Token>{0, 2}));
  s = {}, s.top_k = 3, s.top_p = 0.7f;  // of the renormalised 4/9, 3/9, 2/9
  EXPECT_EQ(reached(s), (std::set<Token>{0, 2}));
  logits = {1, 1, 1, 1};
  s = {}, s.top_p = 0.5f;
  EXPECT_EQ(reached(s), (std::set<Token>{0, 1}));
  s = {}, s.top_k = 3;
  EXPECT_EQ(reached(s), (std::set<Token>{0, 1, 2}));
}

TEST(Sampler, PenaltiesEqualNaive) {
  const int kVocab = 300;
  SamplingSpec s = greedy();
  s.repetition_penalty = 1.3f, s.frequency_penalty = 0.4f, s.presence_penalty = 0.25f;
  std::vector<Token> prompt, history;
  for (int i = 0; i < 500; ++i) prompt.push_back(static_cast<Token>(draw_u32({1, 0, i, 0}) % 90));
  history = prompt;
  for (int i = 0; i < 40; ++i) history.push_back(static_cast<Token>(draw_u32({1, 0, i, 1}) % 150));
  RowState row = make_row(s, history, prompt.size());
  for (int i = 0; i < 1500; ++i) {
    Token t = static_cast<Token>(draw_u32({1, 0, i, 2}) % kVocab);
    row.add(t);
    history.push_back(t);
  }
  EXPECT_EQ(row.num_generated(), 1540);
  std::vector<float> logits(kVocab), want;
  for (int i = 0; i < kVocab; ++i) logits[i] = uniform(3, i, -4, 4);
  want = logits;
  for (int t = 0; t < kVocab; ++t) {
    auto made = static_cast<float>(std::count(history.begin() + 500, history.end(), t));
    if (std::find(history.begin(), history.end(), t) == history.end()) continue;
    want[t] = want[t] > 0 ? want[t] / 1.3f : want[t] * 1.3f;
    if (made > 0) want[t] = want[t] - 0.4f * made - 0.25f;
  }
  row.adjust(logits);
  EXPECT_EQ(logits, want);
}

TEST(Sampler, OutputPenaltiesIgnoreThePrompt) {
  SamplingSpec s = greedy();
  s.presence_penalty = 2;
  RowState row = make_row(s, {1, 1, 1});
  EXPECT_EQ(sample({0, 1, 0.5f}, row), 1);
  row.add(1);
  EXPECT_EQ(sample({0, 1, 0.5f}, row), 2);
  s.presence_penalty = 0, s.frequency_penalty = 0.2f;
  row = make_row(s, {1, 1, 1});
  row.add(1), row.add(1);
  EXPECT_EQ(sample({0, 1, 0.5f}, row), 1);
  row.add(1);
  EXPECT_EQ(sample({0, 1, 0.5f}, row), 2);
  s.frequency_penalty = 0, s.repetition_penalty = 3;
  EXPECT_EQ(sample({0, 1, 0.5f}, make_row(s, {1})), 2);
}

TEST(Sampler, ReopeningForgets) {
  SamplingSpec s = greedy();
  s.presence_penalty = 2;
  RowState row = make_row(s);
  for (int t = 0; t < 1000; ++t) row.add(t);
  row.open(s, {}, 0);
  EXPECT_EQ(row.num_generated(), 0);
  std::vector<float> logits(1000, 1.0f);
  row.adjust(logits);
  EXPECT_EQ(logits, std::vector<float>(1000, 1.0f));
}

TEST(Sampler, BansUntilMinTokens) {
  SamplingSpec s = greedy();
  s.min_tokens = 2, s.banned_until_min = {0, 2, 99, -1};
  RowState row = make_row(s, {0, 0, 0});
  EXPECT_EQ(sample({3, 1, 2}, row), 1);
  row.add(1);
  EXPECT_EQ(sample({3, 1, 2}, row), 1);
  row.add(1);
  EXPECT_EQ(sample({3, 1, 2}, row), 0);
  // A row reopened after preemption continues to count.
  EXPECT_EQ(sample({3, 1, 2}, make_row(s, {0, 1}, 1)), 1);
  EXPECT_EQ(sample({3, 1, 2}, make_row(s, {0, 1, 1}, 1)), 0);
}

TEST(Sampler, BadSequencesEndBeforeTheirLastToken) {
  SamplingSpec s = greedy();
  s.bad_sequences = {{0}, {1, 2}, {2, 1, 2}};
  RowState row = make_row(s, {1, 1}, 2);  // the prompt is no part of it
  EXPECT_EQ(sample({9, 1, 8, 2}, row), 2) << "0 is bad alone, 2 only after a 1 of the output";
  row.add(1);
  EXPECT_EQ(sample({9, 1, 8, 2}, row), 3);
  row.add(3);
  EXPECT_EQ(sample({9, 1, 8, 2}, row), 2);
  // A row reopened after preemption looks back on the same output.
  EXPECT_EQ(sample({9, 1, 8, 2}, make_row(s, {0, 3, 1}, 1)), 3);
  // With nothing finite left, the lowest id that is not bad.
  EXPECT_EQ(sample({9, -INFINITY, -INFINITY}, make_row(s, {}, 0)), 1);
}

TEST(Sampler, LogitBias) {
  for (float temperature : {0.0f, 1.0f}) {
    SamplingSpec s;
    s.temperature = temperature;
    s.logit_bias = {{1, 100}, {99, 5}, {-3, 5}};
    RowState row = make_row(s);
    for (int i = 0; i < 50; ++i) EXPECT_EQ(sample({3, 1, 2}, row, i), 1);
    s.logit_bias = {{0, -100}, {1, -100}};
    row = make_row(s);
    for (int i = 0; i < 50; ++i) EXPECT_EQ(sample({3, 1, 2}, row, i), 2);
  }
}

TEST(Sampler, AllowedSetAndMask) {
  std::vector<float> logits(200);
  for (int i = 0; i < 200; ++i) logits[i] = uniform(4, i, -1, 1);
  SamplingSpec s;
  s.allowed = {150, 7, 31, 7, 5000, -1};
  s.logit_bias = {{8, 100}};
  RowState row = make_row(s);
  std::set<Token> seen;
  for (int i = 0; i < 300; ++i) seen.insert(sample(logits, row, i));
  EXPECT_EQ(seen, (std::set<Token>{7, 31, 150}));
  const uint32_t mask[] = {1u << 7 | 1u << 9, 0, 1u << 3};
  row.set_mask(mask);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(sample(logits, row, i), 7);
  row = make_row({});
  row.set_mask(mask);
  seen.clear();
  for (int i = 0; i < 300; ++i) seen.insert(sample(logits, row, i));
  EXPECT_EQ(seen, (std::set<Token>{7, 9, 67}));
}

std::vector<uint32_t> random_mask(uint64_t seed, int num, float share) {
  std::vector<uint32_t> mask(static_cast<size_t>(num + 31) / 32);
  for (int i = 0; i < num; ++i) {
    if (uniform(seed, i, 0, 1) < share) mask[static_cast<size_t>(i) / 32] |= 1u << (i % 32);
  }
  return mask;
}

// Under a mask, sampling is sampling from logits of which the others are -inf; log-probabilities
// are those without it.
TEST(Sampler, AMaskAgainstLogitsWithoutTheRest) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    int vocab = 3 + static_cast<int>(draw_u32({9, 0, static_cast<int64_t>(seed), 0}) % 700);
    std::vector<float> logits = make_logits(kShapes[seed % 5], vocab, seed), rest = logits;
    std::vector<uint32_t> mask = random_mask(seed, vocab, seed % 3 ? 0.3f : 0.01f);
    if (seed % 7 == 0) mask.resize((mask.size() + 1) / 2);
    auto allowed = [&](size_t t) {
      return t / 32 < mask.size() && (mask[t / 32] >> (t % 32) & 1) != 0;
    };
    bool any = false;
    for (size_t i = 0; i < rest.size(); ++i) {
      if (!allowed(i)) rest[i] = -kInf;
      any |= rest[i] > -kInf;
    }
    if (!any) continue;
    SamplingSpec s;
    s.temperature = seed % 4 == 0 ? 0 : 0.8f;
    s.top_k = seed % 5 == 0 ? 7 : 0;
    s.top_p = seed % 2 ? 0.9f : 1;
    s.repetition_penalty = seed % 6 == 0 ? 1.3f : 1;
    s.num_logprobs = 2;
    RowState row = make_row(s, {0, 1, 2}), plain = row;
    row.set_mask(mask);
    EXPECT_FALSE(is_plain_greedy(row));
    SampleScratch scratch;
    std::vector<TopLogprob> top, expected;
    std::vector<float> x = logits, y = rest;
    Token got = sample_row(x.data(), vocab, row, 0, 5, &top, scratch);
    ASSERT_TRUE(got >= 0 && allowed(static_cast<size_t>(got))) << "seed " << seed;
    ASSERT_EQ(got, sample_row(y.data(), vocab, plain, 0, 5, nullptr, scratch)) << "seed " << seed;
    score_row(logits.data(), vocab, got, 5, {2}, expected, scratch);
    ASSERT_EQ(top.size(), expected.size());
    for (size_t k = 0; k < top.size(); ++k) EXPECT_EQ(top[k].logprob, expected[k].logprob);
  }
}

// Whatever else is asked for, nothing outside the mask is sampled.
TEST(Sampler, AMaskIsNeverLeft) {
  std::vector<float> logits{5, 4, 3, 2, 1};
  const uint32_t three[] = {0b01101}, end_alone[] = {0b01000}, none[] = {0};
  auto token = [&](const SamplingSpec& s, std::span<const uint32_t> mask, int num_before = 0) {
    RowState row = make_row(s);
    for (int i = 0; i < num_before; ++i) row.add(4);
    row.set_mask(mask);
    SampleScratch scratch;
    std::vector<float> x = logits;
    std::vector<TopLogprob> top;
    return sample_row(x.data(), 5, row, 0, 0, &top, scratch);
  };
  for (float temperature : {0.0f, 1.0f}) {
    SamplingSpec s;
    s.temperature = temperature;
    s.num_logprobs = 1;
    EXPECT_EQ(token(s, none), kNoToken);
    EXPECT_EQ(token(s, end_alone), 3);
    s.min_tokens = 2, s.banned_until_min = {0, 3};
    EXPECT_EQ(token(s, three), 2) << "min_tokens leaves another token";
    EXPECT_EQ(token(s, end_alone), 3) << "the constraint wins over min_tokens";
    EXPECT_EQ(token(s, end_alone, 2), 3);
    s.allowed = {1, 2};
    EXPECT_EQ(token(s, three), 2);
    EXPECT_EQ(token(s, end_alone), kNoToken);
    s.allowed = {};
    s.bad_sequences = {{3}};
    EXPECT_EQ(token(s, end_alone), kNoToken);
    s = {};
    s.temperature = temperature;
    s.logit_bias = {{3, -kInf}};
    EXPECT_EQ(token(s, end_alone), 3) << "a bias makes a token unlikely, it forbids none";
  }
}

TEST(Sampler, KeysAreIndependent) {
  std::vector<float> flat(1000, 0.0f);
  auto run = [&](uint64_t seed, int choice, int64_t from) {
    SamplingSpec s;
    s.seed = seed;
    RowState row = make_row(s);
    std::vector<Token> out;
    for (int64_t i = 0; i < 64; ++i) out.push_back(sample(flat, row, from + i, choice));
    return out;
  };
  std::vector<Token> a = run(1, 0, 0);
  EXPECT_EQ(a, run(1, 0, 0));
  for (const auto& b : {run(2, 0, 0), run(1, 1, 0), run(1, 0, 64), run(uint64_t{1} << 40, 0, 0)}) {
    int same = 0;
    for (size_t i = 0; i < 64; ++i) same += a[i] == b[i];
    EXPECT_LT(same, 4);
  }
  EXPECT_GT((std::set<Token>{a.begin(), a.end()}).size(), 55u);
}

TEST(Sampler, ScratchDoesNotMatter) {
  SampleScratch used;
  SamplingSpec s;
  s.top_p = 0.9f, s.num_logprobs = 3, s.repetition_penalty = 1.2f;
  RowState row = make_row(s, {1, 2, 3});
  for (int i = 0; i < 40; ++i) {
    int n = 1 + static_cast<int>(draw_u32({6, 0, i, 0}) % 2000);
    std::vector<float> x = make_logits(kShapes[i % 5], n, static_cast<uint64_t>(i)), y = x;
    SampleScratch fresh;
    std::vector<TopLogprob> a, b;
    EXPECT_EQ(sample_row(x.data(), n, row, 0, i, &a, used),
              sample_row(y.data(), n, row, 0, i, &b, fresh));
    ASSERT_EQ(a.size(), b.size());
    for (size_t k = 0; k < a.size(); ++k) EXPECT_EQ(a[k].logprob, b[k].logprob);
  }
}

void expect_scores(const std::vector<float>& logits,
                   Token actual,
                   int num_top,
                   const std::vector<TopLogprob>& got) {
  std::vector<int> ids = sorted_ids(logits);
  double sum = 0, max = logits[ids[0]];
  for (float x : logits) sum += std::isnan(x) ? 0 : std::exp(x - max);
  auto want = [&](Token t) { return logits[t] - max - std::log(sum); };
  auto rank = [&](Token t) { return std::find(ids.begin(), ids.end(), t) - ids.begin() + 1; };
  ASSERT_EQ(got.size(), 1u + std::min<size_t>(num_top, logits.size()));
  EXPECT_EQ(got[0].token, actual);
  for (size_t i = 0; i < got.size(); ++i) {
    if (i > 0) {
      EXPECT_EQ(got[i].token, ids[i - 1]);
    }
    EXPECT_NEAR(got[i].logprob, want(got[i].token), 1e-6 * (8 + std::abs(want(got[i].token))));
    EXPECT_EQ(got[i].rank, rank(got[i].token));
    EXPECT_EQ(got[i].pos, 42);
  }
}

TEST(Sampler, ScoresEqualNaive) {
  SampleScratch scratch;
  for (const Shape& shape : kShapes) {
    for (int n : {1, 100, 1000, 151936}) {
      std::vector<float> logits = make_logits(shape, n, 21);
      for (int num_top : {0, 1, 20, 500}) {
        Token actual = static_cast<Token>(draw_u32({8, 0, n, 3}) % static_cast<uint32_t>(n));
        std::vector<TopLogprob> out;
        score_row(logits.data(), n, actual, 42, {num_top}, out, scratch);
        expect_scores(logits, actual, num_top, out);
      }
    }
  }
}

TEST(Sampler, LogprobsAreOfTheRawLogits) {
  std::vector<float> logits = make_logits(kShapes[2], 500, 5);
  SamplingSpec s;
  s.num_logprobs = 4, s.temperature = 0.5f, s.repetition_penalty = 1.5f, s.top_k = 20;
  s.logit_bias = {{3, 100}};
  SampleScratch scratch;
  std::vector<TopLogprob> top(1);  // appended to, not replaced
  std::vector<float> work = logits;
  Token t = sample_row(work.data(), 500, make_row(s, {1, 2}), 0, 42, &top, scratch);
  EXPECT_EQ(t, 3);
  top.erase(top.begin());
  expect_scores(logits, 3, 4, top);
  s.num_logprobs = -1;
  top.clear(), work = logits;
  sample_row(work.data(), 500, make_row(s), 0, 42, &top, scratch);
  EXPECT_TRUE(top.empty());
}

TEST(Sampler, LogprobsOfGivenTokens) {
  std::vector<float> logits = make_logits(kShapes[2], 500, 5), work = logits;
  SamplingSpec s;
  s.num_logprobs = 4, s.temperature = 0;
  s.logprob_ids = {499, 7, 7};
  SampleScratch scratch;
  std::vector<TopLogprob> top, all;
  Token t = sample_row(work.data(), 500, make_row(s, {1, 2}), 0, 42, &top, scratch);
  ASSERT_EQ(top.size(), 4u);  // these instead of the most likely ones
  score_row(logits.data(), 500, t, 42, {500}, all, scratch);
  EXPECT_EQ(top[0].token, t);
  for (size_t i = 0; i < 3; ++i) {
    const TopLogprob& e = top[i + 1];
    EXPECT_EQ(e.token, s.logprob_ids[i]);
    auto at = std::find_if(all.begin() + 1, all.end(), [&](auto& x) { return x.token == e.token; });
    ASSERT_NE(at, all.end());
    EXPECT_EQ(e.logprob, at->logprob);
    EXPECT_EQ(e.rank, at->rank);
    EXPECT_EQ(e.pos, 42);
  }
}

TEST(Sampler, LogprobsSurviveALargeNucleus) {
  std::vector<float> logits = make_logits(kShapes[0], 500, 6), work = logits;
  SamplingSpec s;
  s.num_logprobs = 4, s.top_p = 0.5f;
  SampleScratch scratch;
  std::vector<TopLogprob> top;
  Token t = sample_row(work.data(), 500, make_row(s), 0, 42, &top, scratch);
  expect_scores(logits, t, 4, top);
}

TEST(Sampler, ScoresOfNonFiniteRowsAreFinite) {
  SampleScratch scratch;
  for (const std::vector<float>& logits :
       {std::vector<float>{kNan, kNan}, {-kInf, -kInf}, {kInf, 1}, {1, kInf}, {kNan, 2}}) {
    for (Token t : {0, 1}) {
      std::vector<TopLogprob> out;
      score_row(logits.data(), 2, t, 0, {2}, out, scratch);
      for (const TopLogprob& e : out) {
        EXPECT_TRUE(std::isfinite(e.logprob));
        EXPECT_LE(e.logprob, 0);
        EXPECT_GE(e.rank, 1);
        EXPECT_LE(e.rank, 2);
      }
    }
  }
  std::vector<TopLogprob> out;
  const float mixed[] = {kNan, 2, -kInf, 2};
  score_row(mixed, 4, 2, 0, {}, out, scratch);
  score_row(mixed, 4, 3, 0, {}, out, scratch);
  EXPECT_EQ(out[0].logprob, kMinLogprob);
  EXPECT_EQ(out[0].rank, 4);
  EXPECT_EQ(out[1].rank, 2);
  EXPECT_NEAR(out[1].logprob, std::log(0.5), 1e-6);
}

}  // namespace
}  // namespace sluice
