#include "exec/sampler.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>

#include "backend/best.h"
#include "base/check.h"
#include "base/random.h"

namespace sluice {

namespace {

using Candidate = SampleScratch::Candidate;
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
constexpr int kBlock = 128;  // logits that share one maximum and one sum

// Temperature and min_p as a function from logit to integer weight, round(2^bits * e^x) with
// x = (logit - max) / temperature, 0 below x_min. The sum over a vocabulary stays within 2^53, so
// every sum of weights is exact and selection does not depend on the order of addition.
struct Weigher {
  float max, inv_temperature, x_min, scale;

  Weigher(float max_logit, int vocab, float temperature, float min_p)
      : max(std::min(max_logit, FLT_MAX)), inv_temperature(1.0f / temperature) {
    // e^-60 is below the resolution for any vocabulary.
    x_min = min_p > 0 ? std::clamp(std::log(min_p), -60.0f, 0.0f) : -60.0f;
    scale = std::ldexp(1.0f, 53 - std::bit_width(static_cast<unsigned>(vocab)));
  }

  // 2^bits e^x before rounding. Branch-free, so that loops over it vectorise; scalar and vector
  // code give the same bits.
  float exp_scaled(float logit) const {
    float x = (logit - max) * inv_temperature;
    auto where = [](bool c, float v) {
      return std::bit_cast<float>(std::bit_cast<uint32_t>(v) & (0u - static_cast<uint32_t>(c)));
    };
    bool keep = x >= x_min;  // false for NaN
    x = where(x < 0, x);     // +inf becomes 0
    // e^x = 2^n e^r with |r| <= ln2 / 2: n by rounding in the mantissa of t, e^r by its series to
    // the 7th power (measured relative error 1.02e-7), 2^n through the exponent field.
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
    float t = x * 1.44269504f + kRound;
    float n = t - kRound;
    float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t e = (std::bit_cast<uint32_t>(t) - std::bit_cast<uint32_t>(kRound) + 127) << 23;
    return where(keep, p * std::bit_cast<float>(e) * scale);
  }
  static double to_integer(float w) { return (static_cast<double>(w) + 0x1p52) - 0x1p52; }

  double operator()(float logit) const { return to_integer(exp_scaled(logit)); }
};

// out[i] = exp_scaled(logits[i]) for i < n <= kBlock, 0 for the rest of the block.
void exp_block(const Weigher& weigher, const float* logits, int n, float* out) {
  float padded[kBlock];
  if (n < kBlock) {
    std::fill(std::copy(logits, logits + n, padded), padded + kBlock, kMinusInf);
    logits = padded;
  }
  for (int i = 0; i < kBlock; ++i) out[i] = weigher.exp_scaled(logits[i]);
}

// Sum of all weights; scratch.block_sum gets one entry per kBlock logits. Needs block_maxima:
// blocks below min_p are not read.
double total_weight(const Weigher& weigher,
                    const float* logits,
                    int vocab,
                    SampleScratch& scratch) {
  scratch.block_sum.assign(scratch.block_max.size(), 0);
  double total = 0;
  for (size_t b = 0; b < scratch.block_sum.size(); ++b) {
    if (!(weigher.exp_scaled(scratch.block_max[b]) > 0)) continue;
    int at = static_cast<int>(b) * kBlock;
    float weight[kBlock];
    exp_block(weigher, logits + at, std::min(kBlock, vocab - at), weight);
    double lane[4] = {};
    for (int i = 0; i < kBlock; i += 4) {
      for (int l = 0; l < 4; ++l) lane[l] += Weigher::to_integer(weight[i + l]);
    }
    scratch.block_sum[b] = lane[0] + lane[1] + lane[2] + lane[3];
    total += scratch.block_sum[b];
  }
  return total;
}

// Fills scratch.block_max and returns the largest.
float block_maxima(const float* logits, int vocab, SampleScratch& scratch) {
  scratch.block_max.clear();
  float best = kMinusInf;
  for (int at = 0; at < vocab; at += kBlock) {
    float m = largest(logits + at, std::min(kBlock, vocab - at));
    scratch.block_max.push_back(m);
    best = std::max(best, m);
  }
  return best;
}

bool more_likely(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}
bool lower_id(const Candidate& a, const Candidate& b) { return a.id < b.id; }

// The k most likely tokens (fewer where the rest is NaN) into scratch.candidates, in no order.
// Needs block_maxima. At least k logits reach the k-th largest block maximum, so only blocks whose
// maximum does are read: for k far below vocab / kBlock a small part of the row.
void gather_top(const float* logits, int vocab, size_t k, SampleScratch& scratch) {
  float threshold = kMinusInf;
  if (k <= scratch.block_max.size()) {
    scratch.order = scratch.block_max;
    auto kth = scratch.order.begin() + static_cast<ptrdiff_t>(k) - 1;
    std::nth_element(scratch.order.begin(), kth, scratch.order.end(), std::greater<>());
    threshold = *kth;
  }
  std::vector<Candidate>& out = scratch.candidates;
  out.clear();
  for (size_t b = 0; b < scratch.block_max.size(); ++b) {
    if (scratch.block_max[b] < threshold) continue;
    int begin = static_cast<int>(b) * kBlock, end = std::min(begin + kBlock, vocab);
    for (int i = begin; i < end; ++i) {
      if (logits[i] >= threshold) out.push_back({logits[i], i, 0});
    }
  }
  if (out.size() <= k) return;
  std::nth_element(out.begin(), out.begin() + static_cast<ptrdiff_t>(k), out.end(), more_likely);
  out.resize(k);
}

double weigh_candidates(const Weigher& weigher, std::span<Candidate> c) {
  double total = 0;
  for (Candidate& x : c) total += x.weight = weigher(x.logit);
  return total;
}

// Reorders c so that c[0, n) are its first n elements under `less` with c[n-1] the last of them,
// and n the smallest number whose weights sum to `target` (in (0, sum of all]); returns n. Linear
// time: a quickselect by weight.
template <typename Less>
size_t shortest_prefix(std::span<Candidate> c, double target, Less less) {
  size_t lo = 0, hi = c.size();  // the answer is in (lo, hi]
  double before = 0;             // weight of c[0, lo)
  while (hi - lo > 32) {
    size_t mid = lo + (hi - lo) / 2;
    auto at = [&](size_t i) { return c.begin() + static_cast<ptrdiff_t>(i); };
    std::nth_element(at(lo), at(mid), at(hi), less);
    double half = before;
    for (size_t i = lo; i < mid; ++i) half += c[i].weight;
    if (half >= target) {
      hi = mid;
    } else {
      before = half, lo = mid;
    }
  }
  std::sort(c.begin() + static_cast<ptrdiff_t>(lo), c.begin() + static_cast<ptrdiff_t>(hi), less);
  for (; lo < hi; ++lo) {
    before += c[lo].weight;
    if (before >= target) return lo + 1;
  }
  return hi;
}

// The token at which the running sum first exceeds a uniform integer of [0, total).
double draw_target(const DrawKey& key, double total) {
  return std::min(std::floor(draw_double(key) * total), total - 1) + 1;
}

Token draw_candidate(std::span<Candidate> c, const DrawKey& key) {
  double total = 0;
  for (const Candidate& x : c) total += x.weight;
  return c[shortest_prefix(c, draw_target(key, total), lower_id) - 1].id;
}

// Draws from the whole vocabulary, after total_weight.
Token draw_any(const float* logits,
               int vocab,
               const Weigher& weigher,
               double total,
               const DrawKey& key,
               const SampleScratch& scratch) {
  double left = draw_target(key, total);
  size_t b = 0;
  while (left > scratch.block_sum[b]) left -= scratch.block_sum[b++];
  int i = static_cast<int>(b) * kBlock;
  for (; i < vocab; ++i) {
    left -= weigher(logits[i]);
    if (left <= 0) break;
  }
  DCHECK(i < vocab);
  return i;
}

// The most likely tokens of weight `target` where those are few, else nothing: a nucleus is usually
// small. In scratch.candidates.
std::span<Candidate> small_nucleus(
    const float* logits, int vocab, const Weigher& weigher, double target, SampleScratch& scratch) {
  for (size_t k = 128; k < scratch.block_max.size(); k *= 4) {
    gather_top(logits, vocab, k, scratch);
    std::span<Candidate> c = scratch.candidates;
    if (weigh_candidates(weigher, c) >= target) {
      return c.first(shortest_prefix(c, target, more_likely));
    }
  }
  return {};
}

// The least likely token of the nucleus of weight `target`. A histogram of the weights (eight
// buckets per octave: the leading bits of the float) finds the bucket where the sum is reached;
// only tokens around it are put in order. Its neighbours are taken in because e^x is monotone only
// up to its last bit, and order is by logit.
Candidate last_of_nucleus(
    const float* logits, int vocab, const Weigher& weigher, double target, SampleScratch& scratch) {
  constexpr size_t kBuckets = 2048;
  auto bucket = [](float w) { return std::bit_cast<uint32_t>(w) >> 20; };
  std::vector<float>& weight = scratch.weight;
  weight.resize(scratch.block_max.size() * kBlock);
  scratch.histogram.assign(kBuckets, 0);
  for (int at = 0; at < vocab; at += kBlock) {
    exp_block(weigher, logits + at, std::min(kBlock, vocab - at), &weight[static_cast<size_t>(at)]);
    for (int i = at; i < at + kBlock; ++i) {
      float w = weight[static_cast<size_t>(i)];
      scratch.histogram[bucket(w)] += Weigher::to_integer(w);
    }
  }
  size_t b = kBuckets - 2;
  double above = 0;  // weight of the buckets over b + 1, all of it in the nucleus
  double reached = scratch.histogram[b + 1] + scratch.histogram[b];
  for (; b > 1 && above + reached < target; --b) {
    above += scratch.histogram[b + 1];
    reached += scratch.histogram[b - 1] - scratch.histogram[b + 1];
  }
  scratch.candidates.clear();
  for (int i = 0; i < vocab; ++i) {
    float w = weight[static_cast<size_t>(i)];
    size_t k = bucket(w);
    if (k + 1 < b || k > b + 1) continue;
    scratch.candidates.push_back({logits[i], i, Weigher::to_integer(w)});
  }
  return scratch.candidates[shortest_prefix(scratch.candidates, target - above, more_likely) - 1];
}

Token draw_from_nucleus(float* logits,
                        int vocab,
                        const Weigher& weigher,
                        double target,
                        const DrawKey& key,
                        SampleScratch& scratch) {
  std::span<Candidate> few = small_nucleus(logits, vocab, weigher, target, scratch);
  if (!few.empty()) return draw_candidate(few, key);
  Candidate last = last_of_nucleus(logits, vocab, weigher, target, scratch);
  for (int i = 0; i < vocab; ++i) logits[i] = logits[i] >= last.logit ? logits[i] : kMinusInf;
  for (int i = last.id + 1; i < vocab; ++i) {
    logits[i] = logits[i] == last.logit ? kMinusInf : logits[i];
  }
  double total = total_weight(weigher, logits, vocab, scratch);
  return draw_any(logits, vocab, weigher, total, key, scratch);
}

// What draw_token does, in the plain way: all tokens in order, then the sums.
Token draw_sorted(const float* logits,
                  int vocab,
                  const SamplingSpec& spec,
                  const Weigher& weigher,
                  const DrawKey& key,
                  SampleScratch& scratch) {
  scratch.candidates.clear();
  for (int i = 0; i < vocab; ++i) {
    if (!std::isnan(logits[i])) scratch.candidates.push_back({logits[i], i, 0});
  }
  std::span<Candidate> kept = scratch.candidates;
  std::sort(kept.begin(), kept.end(), more_likely);
  if (spec.top_k > 0) kept = kept.first(std::min<size_t>(kept.size(), spec.top_k));
  const double total = weigh_candidates(weigher, kept);
  if (spec.top_p < 1) {
    const double target = std::max(1.0, spec.top_p * total);
    double sum = 0;
    size_t num = 0;
    while (num < kept.size() && sum < target) sum += kept[num++].weight;
    kept = kept.first(num);
  }
  return draw_candidate(kept, key);
}

Token draw_token(float* logits,
                 int vocab,
                 const SamplingSpec& spec,
                 const DrawKey& key,
                 SampleScratch& scratch) {
  float max = block_maxima(logits, vocab, scratch);
  if (max == kMinusInf) return kNoToken;
  Weigher weigher(max, vocab, spec.temperature, spec.min_p);
  if (scratch.full_sort) return draw_sorted(logits, vocab, spec, weigher, key, scratch);
  bool use_top_p = spec.top_p < 1;
  auto target = [&](double total) { return std::max(1.0, spec.top_p * total); };
  if (spec.top_k > 0 && spec.top_k < vocab) {
    gather_top(logits, vocab, static_cast<size_t>(spec.top_k), scratch);
    std::span<Candidate> kept = scratch.candidates;
    double total = weigh_candidates(weigher, kept);
    if (use_top_p) kept = kept.first(shortest_prefix(kept, target(total), more_likely));
    return draw_candidate(kept, key);
  }
  double total = total_weight(weigher, logits, vocab, scratch);
  if (!use_top_p) return draw_any(logits, vocab, weigher, total, key, scratch);
  return draw_from_nucleus(logits, vocab, weigher, target(total), key, scratch);
}

// 1 + the number of tokens before `token` in order of likelihood.
int32_t rank_of(const float* logits, int vocab, Token token) {
  float x = std::isnan(logits[token]) ? kMinusInf : logits[token];
  int32_t before = 0;
  for (int i = 0; i < token; ++i) before += logits[i] >= x;
  for (int i = token + 1; i < vocab; ++i) before += logits[i] > x;
  // Below every number stand the tokens of probability 0, among them NaN, by id.
  if (x == kMinusInf) {
    for (int i = 0; i < token; ++i) before += std::isnan(logits[i]);
  }
  return before + 1;
}

}  // namespace

void score_row(const float* logits,
               int vocab,
               Token actual,
               int64_t position,
               const ReportedTokens& report,
               std::vector<TopLogprob>& out,
               SampleScratch& scratch) {
  CHECK(vocab > 0 && actual >= 0 && actual < vocab);
  float max = block_maxima(logits, vocab, scratch);
  Weigher weigher(max, vocab, 1.0f, 0.0f);
  double total = total_weight(weigher, logits, vocab, scratch);
  double log_sum = total > 0 ? std::log(total / weigher.scale) : 0;
  auto entry = [&](Token token, int32_t rank) {
    double lp = static_cast<double>(std::min(logits[token], FLT_MAX)) - weigher.max - log_sum;
    // The comparison is false for NaN: no finite logit at all, or this one.
    float logprob = lp > kMinLogprob ? static_cast<float>(lp) : kMinLogprob;
    return TopLogprob{static_cast<int32_t>(position), token, logprob, rank};
  };
  out.push_back(entry(actual, rank_of(logits, vocab, actual)));
  for (Token id : report.ids) out.push_back(entry(id, rank_of(logits, vocab, id)));
  if (report.num_top <= 0 || !report.ids.empty()) return;
  gather_top(logits, vocab, static_cast<size_t>(std::min(report.num_top, vocab)), scratch);
  std::sort(scratch.candidates.begin(), scratch.candidates.end(), more_likely);
  int32_t rank = 0;
  for (const Candidate& c : scratch.candidates) out.push_back(entry(c.id, ++rank));
}

bool is_plain_greedy(const RowState& row) {
  const SamplingSpec& spec = row.spec();
  return spec.temperature < kGreedyTemperature && spec.num_logprobs < 0 && !row.adjusts();
}

Token pick(const Best& best, const RowState& row, int vocab) {
  return best.at >= 0 ? best.at : row.lowest_allowed(vocab);
}

Token sample_row(float* logits,
                 int vocab,
                 const RowState& row,
                 int choice,
                 int64_t position,
                 std::vector<TopLogprob>* top,
                 SampleScratch& scratch) {
  CHECK(vocab > 0);
  const SamplingSpec& spec = row.spec();
  bool report = top != nullptr && spec.num_logprobs >= 0;
  bool draws = spec.temperature >= kGreedyTemperature;
  const float* raw = logits;
  // Adjusting overwrites the row, and so does a large nucleus.
  if (report && (row.adjusts() || (draws && spec.top_p < 1))) {
    scratch.raw.assign(logits, logits + vocab);
    raw = scratch.raw.data();
  }
  if (row.adjusts()) row.adjust({logits, static_cast<size_t>(vocab)});
  Token token;
  if (draws) {
    DrawKey key{spec.seed, static_cast<uint32_t>(choice), position, 0};
    token = draw_token(logits, vocab, spec, key, scratch);
  } else {
    token = better({}, logits, vocab).at;
  }
  if (token < 0) token = row.lowest_allowed(vocab);
  if (report && token != kNoToken)
    score_row(raw, vocab, token, position, {spec.num_logprobs, spec.logprob_ids}, *top, scratch);
  return token;
}

}  // namespace sluice
