#include "core/length_predictor.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace sluice {

int LengthHistogram::bucket_of(int length) {
  auto v = static_cast<uint32_t>(std::max(length, 0));
  if (v < kExact) return static_cast<int>(v);
  int octave = std::bit_width(v) - 1;  // at least 4
  int part = static_cast<int>((v >> (octave - 3)) & (kPerOctave - 1));
  return std::min(kExact + (octave - 4) * kPerOctave + part, kBuckets - 1);
}

int LengthHistogram::last_of(int bucket) {
  if (bucket < kExact) return bucket;
  int octave = (bucket - kExact) / kPerOctave + 4, part = (bucket - kExact) % kPerOctave;
  return ((kPerOctave + part + 1) << (octave - 3)) - 1;
}

void LengthHistogram::add(int length) {
  ++counts_[static_cast<size_t>(bucket_of(length))];
  if (++total_ < kFull) return;
  total_ = 0;
  for (uint16_t& c : counts_) total_ += c /= 2;
}

int LengthHistogram::quantile(float q, int above) const {
  // The bucket of `above` is left out: some of its lengths may be below.
  int first = above > 0 ? bucket_of(above) + 1 : 0, num = 0;
  for (int b = first; b < kBuckets; ++b) num += counts_[static_cast<size_t>(b)];
  if (num == 0) return 0;
  int want = std::max(1, static_cast<int>(std::ceil(q * static_cast<float>(num))));
  for (int b = first; b < kBuckets; ++b) {
    want -= counts_[static_cast<size_t>(b)];
    if (want <= 0) return last_of(b);
  }
  return last_of(kBuckets - 1);
}

// At every length, of those that got there the share that goes on.
void SurvivalCurve::fit(const LengthHistogram& ended) {
  std::array<int, kBuckets> reached;
  int num = 0;
  for (int b = kBuckets - 1; b >= 0; --b) {
    auto i = static_cast<size_t>(b);
    reached[i] = num += ended.counts_[i] + running_[i];
  }
  float share = 1;
  for (size_t i = 0; i < kBuckets; ++i) {
    share_[i] = share;
    if (reached[i] > 0)
      share *= 1 - static_cast<float>(ended.counts_[i]) / static_cast<float>(reached[i]);
  }
  share_[kBuckets] = share;
}

double SurvivalCurve::longer_than(int length) const {
  if (length < 0) return 1;
  int b = LengthHistogram::bucket_of(length);
  auto i = static_cast<size_t>(b);
  int before = b > 0 ? LengthHistogram::last_of(b - 1) : -1, last = LengthHistogram::last_of(b);
  double part = std::min(1.0, static_cast<double>(length - before) / (last - before));
  return share_[i] * (1 - part) + share_[i + 1] * part;
}

LengthPredictor::LengthPredictor(PredictorConfig config) : config_(config) {
  if (config_.kind == Predict::histogram) known_.resize(kPromptSizes);
  if (by_account()) known_.resize(kAccounts);
}

size_t LengthPredictor::place_of(const Request& r) const {
  if (config_.kind == Predict::histogram)
    return std::min<size_t>(std::bit_width(r.prompt->size()), kPromptSizes - 1);
  return static_cast<size_t>((r.account * 0x9E3779B97F4A7C15u) >> 32) % kAccounts;
}

namespace {

int bounded(int guess, const Request& r, int num_output) {
  // Longer than predicted, or than any before it: half as much again.
  if (guess <= num_output) guess = num_output + std::max(num_output / 2, 16);
  return std::min(guess, r.max_new);
}

}  // namespace

// From outputs that have ended; max_new until there are enough.
int LengthPredictor::learnt(const Request& r, int num_output, float quantile) const {
  if (!known_.empty()) {
    const Known& known = known_[place_of(r)];
    if (known.lengths.total() >= kEnough &&
        (config_.kind == Predict::histogram || known.account == r.account))
      return known.lengths.quantile(quantile, num_output);
  }
  return all_.total() >= kEnough ? all_.quantile(quantile, num_output) : r.max_new;
}

int LengthPredictor::predict(const Request& r, int num_output) const {
  int guess = r.max_new;
  if (r.predicted_output > 0) {
    guess = r.predicted_output;
  } else if (config_.kind == Predict::constant) {
    guess = config_.tokens;
  } else if (config_.kind != Predict::oracle) {
    guess = learnt(r, num_output, config_.quantile);
  }
  return bounded(guess, r, num_output);
}

int LengthPredictor::expect(const Request& r, int num_output) const {
  if (r.predicted_output > 0 || config_.kind == Predict::constant) return predict(r, num_output);
  return bounded(learnt(r, num_output, 0.5f), r, num_output);
}

const LengthHistogram* LengthPredictor::history(const Request& r) const {
  if (config_.kind != Predict::survival || r.predicted_output > 0 || all_.total() < kEnough)
    return nullptr;
  const Known& known = known_[place_of(r)];
  return known.account == r.account && known.lengths.total() >= kEnough ? &known.lengths : &all_;
}

void LengthPredictor::learn(const Request& r, int num_output) {
  all_.add(num_output);
  if (known_.empty()) return;
  Known& known = known_[place_of(r)];
  if (by_account() && known.account != r.account) known = {r.account, {}};
  known.lengths.add(num_output);
}

void LengthPredictor::clear() noexcept {
  all_ = {};
  for (Known& known : known_) known = {};
}

}  // namespace sluice
