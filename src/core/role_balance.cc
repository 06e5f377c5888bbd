#include "core/role_balance.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace sluice {

namespace {

// Share of requests that may miss an objective, and the matching quantile of a normal distribution.
constexpr double kOthers = 0.1, kNormal90 = 1.28;
constexpr double kFull = 0.95;        // a worker that is busier keeps no objective
constexpr double kGain = 1.1;         // another split must carry so many times as much
constexpr double kSplitGain = 1.2;    // and any split so many times as much as none: the error
constexpr int kBisections = 12;       // halvings of the rate: 0.02 %
constexpr int kShareBisections = 6;   // of a share: 2 %
constexpr int kMostSplits = 16;       // that are tried, about
constexpr int kMostIterations = 100;  // to find how many sequences decode at once
constexpr double kClose = 1e-3;       // when they are found
constexpr double kTooMany = std::numeric_limits<double>::infinity();

// Seconds of a step in which so many sequences decode.
double step_of(const SplitSetup& s, const RequestMix& m, double rows) {
  const double context = rows * (m.tokens + s.output / 2);
  const int num = static_cast<int>(std::ceil(std::max(1.0, rows)));
  const auto positions = static_cast<int64_t>(context);
  return s.cost->seconds(
             {.tokens = num, .sampled = num, .context = positions, .attended = positions}) *
         s.decode_pace;
}

// Sequences that decode at once on a worker that gets `rate` of them a second and has the share
// `free` of its time for them. kTooMany: its memory does not hold them.
double rows_at(const SplitSetup& s, const RequestMix& m, double rate, double free) {
  const double most = s.kv_tokens > 0 ? static_cast<double>(s.kv_tokens) / (m.tokens + s.output)
                                      : static_cast<double>(std::numeric_limits<int16_t>::max());
  double rows = 0;
  for (int i = 0; i < kMostIterations; ++i) {
    const double next = rate * s.output * step_of(s, m, rows) / free;
    if (next > most) return kTooMany;
    if (next - rows <= kClose * next) return next;
    rows = next;
  }
  return kTooMany;
}

// 1 + cv^2 of a quantity, from its mean and its mean square.
double varied(double mean, double squared) { return std::max(1.0, squared / (mean * mean)); }

// 90th percentile of a lognormal distribution.
double lognormal90(double mean, double varied) {
  return mean / std::sqrt(varied) * std::exp(kNormal90 * std::sqrt(std::log(varied)));
}

// 90th percentile of a prompt's wait for one of several workers (Allen and Cunneen; those that wait
// do so for exponentially distributed times).
double wait_seconds(const SplitSetup& s, const RequestMix& m, double busy, int workers) {
  const double waits = std::pow(busy, std::sqrt(2.0 * (workers + 1)) - 1);  // their share
  if (waits <= kOthers) return 0;
  const double each =
      m.prompt * s.pace * varied(m.prompt, m.prompt_squared) / (2 * workers * (1 - busy));
  return each * std::log(waits / kOthers);
}

// 90th percentile of a prompt's own time.
double own_seconds(const SplitSetup& s, const RequestMix& m) {
  return lognormal90(m.prompt * s.pace, varied(m.prompt, m.prompt_squared));
}

// 90th percentile of the rows of a decode step, each with as many positions as the mean.
double most_rows(const RequestMix& m, double rows) {
  return rows + kNormal90 * std::sqrt(rows * varied(m.tokens, m.tokens_squared));
}

bool keeps(double objective, double seconds) { return objective <= 0 || seconds <= objective; }

// Whether `workers` that do nothing else compute so many prompts a second in time; `more` comes on
// top of it.
bool prompts_keep(const SplitSetup& s, const RequestMix& m, double rate, int workers, double more) {
  const double busy = rate * m.prompt * s.pace / workers;
  return busy <= kFull &&
         keeps(s.ttft, own_seconds(s, m) + more + wait_seconds(s, m, busy, workers));
}

// The part of the prompts that prefill workers can compute in time. Decode workers do the rest.
double share_apart(const SplitSetup& s, const RequestMix& m, double rate, int prefill) {
  if (prefill == 0) return 0;
  const double more = s.transfer * m.tokens + step_of(s, m, 1);
  if (prompts_keep(s, m, rate, prefill, more)) return 1;
  double least = 0, most = 1;
  for (int i = 0; i < kShareBisections; ++i) {
    const double share = (least + most) / 2;
    (prompts_keep(s, m, rate * share, prefill, more) ? least : most) = share;
  }
  return least;
}

bool split_keeps(const SplitSetup& s, const RequestMix& m, int prefill, int decode, double rate) {
  const double whole = (1 - share_apart(s, m, rate, prefill)) * rate;  // beside decodes
  const double busy = whole * m.prompt * s.pace / decode;
  if (busy > kFull) return false;
  const double rows = rows_at(s, m, rate / decode, 1 - busy);
  if (rows == kTooMany) return false;
  const double step = step_of(s, m, most_rows(m, rows));
  if (whole == 0) return keeps(s.tpot, step);
  // Steps with prompts hold up all that decode beside them, by what they take longer.
  const double lasts = s.output * step_of(s, m, rows) / (1 - busy);
  const double prompts = whole / decode * lasts;  // that come while a sequence decodes
  const double delay =
      std::max(0.0, m.prompt * s.pace - std::ceil(m.tokens / s.budget) * step_of(s, m, rows));
  const double delays =
      lognormal90(prompts * delay, 1 + varied(m.prompt, m.prompt_squared) / prompts);
  return keeps(s.tpot, step + delays / s.output) && prompts_keep(s, m, whole, decode, step);
}

}  // namespace

void RequestMix::learn(double seconds, int64_t num_tokens) {
  num = std::min(num + 1, kMixMost);
  prompt += (seconds - prompt) / num;
  prompt_squared += (seconds * seconds - prompt_squared) / num;
  const auto n = static_cast<double>(num_tokens);
  tokens += (n - tokens) / num;
  tokens_squared += (n * n - tokens_squared) / num;
}

double split_capacity(const SplitSetup& s, const RequestMix& m, int prefill, int decode) {
  CHECK(s.cost != nullptr && prefill >= 0 && decode >= 0);
  if (decode == 0 || m.prompt <= 0) return 0;
  double least = 0, most = (prefill + decode) / (m.prompt * s.pace);
  for (int i = 0; i < kBisections; ++i) {
    const double rate = (least + most) / 2;
    (split_keeps(s, m, prefill, decode, rate) ? least : most) = rate;
  }
  return least;
}

int best_split(const SplitSetup& s, const RequestMix& m, const SplitWorkers& w) {
  CHECK(w.moved <= w.movable);
  const auto capacity = [&](int moved) {
    const double c = split_capacity(s, m, w.prefill + moved, w.decode + w.movable - moved);
    return w.prefill + moved == 0 ? c * kSplitGain : c;
  };
  int best = w.moved;
  double most = capacity(w.moved) * kGain;
  for (int moved = 0; moved <= w.movable; moved += std::max(1, w.movable / kMostSplits)) {
    const double c = capacity(moved);
    if (moved != w.moved && c > most) best = moved, most = c;
  }
  return best;
}

}  // namespace sluice
