#include "core/slo_budget.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/str.h"

namespace sluice {

namespace {

// Decode steps tell nothing about prompts: more of them in a row would make the model forget.
constexpr int kMostPlain = 64;
constexpr uint64_t kFirstFit = 8;  // measurements without which errors mean nothing
constexpr double kLeastMargin = 0.5, kMostMargin = 2;
constexpr double kKeepLate = 0.998;  // weight of a step's decodes relative to the next one's
// Once half of the tokens that may be late are, the margin grows by this for each such share of
// them: its own quantile leaves as many late as are allowed, and sizes that are tried come on top.
constexpr double kCaution = 0.4;
constexpr int kMostStride = 2;                // times the prompt tokens that were ever timed
constexpr uint64_t kTries = 3, kRetry = 512;  // of a size: at first, then in so many prompt steps
// A step's time counts for so much more when sizes are compared, as predictions are off by as much:
// the fewer tokens, the more that matters.
constexpr double kDoubt = 0.02;
constexpr int kStartContext = 512, kStartDecodes = 8;  // of the steps that start() has run
constexpr double kAlike = 1.06;                        // prices within it: the larger step

std::string time_name(Time t) {
  const double s = seconds(t);
  return s >= 1 ? strf("%gs", s) : s >= 1e-3 ? strf("%gms", s * 1e3) : strf("%gus", s * 1e6);
}

// "p99" of "itl_p99": 0.99.
bool parse_quantile(std::string_view text, float& quantile) {
  float percent = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), percent);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  quantile = percent / 100;
  return quantile >= 0.5f && quantile < 1;
}

}  // namespace

Result<Time> parse_time(std::string_view text) {
  double unit = 0, value = 0;
  std::string_view number = text;
  for (auto [suffix, seconds] :
       {std::pair<std::string_view, double>{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}}) {
    if (!number.ends_with(suffix)) continue;
    number.remove_suffix(suffix.size());
    unit = seconds;
    break;
  }
  auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  const bool whole = error == std::errc() && end == number.data() + number.size();
  const double seconds = value * unit;
  if (!whole || unit == 0 || !(seconds >= 1e-6 && seconds <= 3600))
    return Error{400, strf("%s is no time from 1us to 3600s: write it like 50ms or 1.5s",
                           quote(text).c_str())};
  return Time(static_cast<int64_t>(std::llround(seconds * 1e9)));
}

Result<SloTarget> parse_slo_target(std::string_view text) {
  SloTarget target;
  const bool none = text.empty() || text == "none";
  for (std::string_view rest = none ? std::string_view() : text; !rest.empty();) {
    const size_t comma = rest.find(',');
    std::string_view item = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    const size_t equals = item.find('='), under = item.find("_p");
    std::string_view name = item.substr(0, std::min(under, item.size()));
    const bool itl = name == "itl";
    float* quantile = itl ? &target.itl_quantile : name == "ttft" ? &target.ttft_quantile : nullptr;
    if (!quantile || equals == std::string_view::npos || under + 2 > equals ||
        !parse_quantile(item.substr(under + 2, equals - under - 2), *quantile))
      return Error{400, strf("%s is no target: write itl_p99=TIME and, if wanted, "
                             "ttft_p95=TIME, with percentiles from 50 to 99.9",
                             quote(item).c_str())};
    Time& to = itl ? target.itl : target.ttft;
    if (to != Time{0}) return Error{400, strf("%s is there twice", quote(name).c_str())};
    Result<Time> time = parse_time(item.substr(equals + 1));
    if (!time) return time.error();
    to = *time;
  }
  if (!none && target.itl == Time{0})
    return Error{400,
                 "no target between tokens, which is what a step's budget is chosen by: "
                 "add one like itl_p99=50ms"};
  return target;
}

std::string slo_target_name(const SloTarget& t) {
  if (!t.any()) return "none";
  auto percent = [](float q) { return strf("%g", std::round(static_cast<double>(q) * 1e4) / 100); };
  std::string out = "itl_p" + percent(t.itl_quantile) + "=" + time_name(t.itl);
  if (t.ttft > Time{0}) out += ",ttft_p" + percent(t.ttft_quantile) + "=" + time_name(t.ttft);
  return out;
}

// As if steps of all sizes had run: decodes alone, and prompts at their beginning and far on beside
// some of them.
void SloBudget::start(const StepCost& cost) {
  const auto ran = [&](const StepLoad& load) {
    const double s = cost.seconds(load);
    if (s > 0) model_.add(load, s, 1 / (s * s));
  };
  const auto decodes = [](int rows) {
    const int64_t positions = int64_t{rows} * kStartContext;
    return StepLoad{.tokens = rows, .sampled = rows, .context = positions, .attended = positions};
  };
  for (int rows : {1, 2, 4, 8, 16, 32, 64, 128}) ran(decodes(rows));
  for (int tokens : {16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024}) {
    for (int pos : {0, 4 * kStartContext}) {
      StepLoad load = decodes(kStartDecodes);
      load += chunk_load(pos, tokens);
      ran(load);
    }
    most_seen_ = std::max(most_seen_, tokens);
  }
  num_timed_.fill(kTries);
}

int SloBudget::choose(const Offer& offer) {
  const int least = std::min(kMinTokens, offer.most);
  const int most = std::min(offer.most, std::max(least, kMostStride * most_seen_));
  const double target = seconds(target_.itl);
  auto within = [&](double factor) {
    if (model_.count() < kFirstFit) return least;
    const int n = model_.prompt_tokens_within(offer.decodes, offer.pos, target / factor, most);
    return std::max(n, least);
  };
  const double margin = margin_ * (1 + kCaution * std::clamp(lateness() - 0.5, 0.0, 2.0));
  const int limit = within(margin);
  stats_.step_target = target / margin;
  if (in_danger(offer, limit)) {
    stats_.step_target = target / std::min(median_, margin_);
    return stats_.prompt_tokens = within(std::min(median_, margin_));
  }
  const bool untried = limit == most && most < offer.most;
  return stats_.prompt_tokens = untried ? limit : cheapest(offer, limit);
}

double SloBudget::lateness() const {
  return stats_.late / (1 - static_cast<double>(target_.itl_quantile));
}

// Whether a prompt would miss its target with so many tokens a step, while tokens beyond theirs are
// so few that some more do no harm.
bool SloBudget::in_danger(const Offer& offer, int safe) const {
  if (target_.ttft == Time{0}) return false;
  if (lateness() > 0.5) return false;
  const int64_t steps = (offer.rest + safe - 1) / std::max(safe, 1);
  return offer.waited + steps * target_.itl > target_.ttft;
}

double SloBudget::time_with(const Offer& offer, int tokens) const {
  StepLoad load = offer.decodes;
  load += chunk_load(offer.pos, tokens);
  return model_.predict(load);
}

double SloBudget::time_for_all(const Offer& offer, int tokens) const {
  const int64_t steps = (offer.rest + offer.behind + tokens - 1) / tokens;
  return static_cast<double>(steps) * time_with(offer, tokens);
}

// The size of step, up to `limit` prompt tokens, whose prompt tokens take the least time beyond
// what the decodes take without them; the largest such. All prompts that wait must be done within
// half of the target for first tokens; without one, in at most twice the time that the one in front
// takes at the limit, so that nothing is saved while prompts queue up. A size that was not timed
// enough goes before all others: between sizes that were, the model knows nothing better than a
// straight line.
int SloBudget::cheapest(const Offer& offer, int limit) const {
  const double alone = model_.predict(offer.decodes);
  Offer front = offer;
  front.behind = 0;
  const double patience = target_.ttft > Time{0} ? seconds(target_.ttft / 2 - offer.waited)
                                                 : 2 * time_for_all(front, limit);
  auto price = [&](int n) { return ((1 + kDoubt) * time_with(offer, n) - alone) / n; };
  int best = limit;
  double least = price(limit);
  for (size_t k = kKnees.size(); k-- > 0;) {  // the larger sizes first
    const int n = kKnees[k] - offer.decodes.tokens;
    if (n < kMinTokens || n >= limit || time_for_all(offer, n) > patience) continue;
    if (num_timed_[k] < kTries + num_prompt_steps_ / kRetry) return n;
    if (const double p = price(n); p * kAlike < least) best = n, least = p;
  }
  return best;
}

SloBudget::Planned SloBudget::plan(const StepLoad& load, int num_decode) {
  stats_.predicted = model_.count() < kFirstFit ? 0 : model_.predict(load);
  return {load, num_decode, stats_.predicted};
}

void SloBudget::complete(const Planned& step, Time scheduled, Time end) {
  const Time began = std::max(scheduled, last_end_);
  last_end_ = std::max(last_end_, end);
  if (step.load.tokens == 0 || end <= began) return;
  const double took = seconds(end - began);
  ++stats_.num_learnt;
  stats_.last_predicted = step.predicted;
  stats_.last_seconds = took;
  if (step.num_decode > 0) {
    late_rows_ = late_rows_ * kKeepLate + (end - began > target_.itl ? step.num_decode : 0);
    rows_ = rows_ * kKeepLate + step.num_decode;
    stats_.late = late_rows_ / rows_;
  }
  const int prompt = step.load.tokens - step.num_decode;
  num_plain_ = prompt > 0 ? 0 : num_plain_ + 1;
  if (num_plain_ > kMostPlain) return;
  most_seen_ = std::max(most_seen_, prompt);
  if (prompt > 0 && step.num_decode > 0) {
    ++num_prompt_steps_;
    const auto knee = std::ranges::lower_bound(kKnees, step.load.tokens);
    if (knee != kKnees.end() && step.load.tokens > *knee - *knee / 16)
      ++num_timed_[static_cast<size_t>(knee - kKnees.begin())];
  }
  model_.add(step.load, took, 1 / (took * took));
  if (step.predicted <= 0) return;
  errors_[num_errors_++ % kWindow] = static_cast<float>(took / step.predicted);
  const size_t num = std::min<uint64_t>(num_errors_, kWindow);
  std::array<float, kWindow> sorted = errors_;
  auto at = [&](double q) {
    const auto k = static_cast<size_t>(std::ceil(q * static_cast<double>(num))) - 1;
    std::nth_element(sorted.begin(), sorted.begin() + k, sorted.begin() + num);
    return std::clamp(static_cast<double>(sorted[k]), kLeastMargin, kMostMargin);
  };
  margin_ = at(static_cast<double>(target_.itl_quantile));
  median_ = at(0.5);
}

}  // namespace sluice
