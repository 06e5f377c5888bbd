// Which of the settings tried a plan recommends: only one whose predicted gain is larger than the
// error of predictions, and no options that gain nothing. Pure but for the trials it asks for.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/plan/figures.h"
#include "tools/plan/target.h"

namespace sluice {

// One setting and what it came to.
struct Trial {
  PlanSettings settings;
  std::string flags;  // of `sluice serve`; empty: the defaults
  PlanFigures figures;
  std::vector<SimRun> runs;  // by replica; kept for the first trial and the best
  double memory = 0;         // bytes on all devices
  double per_million = 0;    // dollars per million output tokens; 0: nobody knows the price
  bool on_front = false, estimate = false;
  std::vector<std::string> commands;  // with prefill and decode workers: what runs them
};

// Gains up to these do not count, as shares.
struct GainMargins {
  double rate;     // of all requests, that keep the SLO; of output tokens per second
  double latency;  // of the mean request latency, where rates are the same
  bool operator==(const GainMargins&) const = default;
};

// A search goes on from whatever looks a little better.
inline constexpr GainMargins kAnyGain{0.01, 0.03};
// How far predictions are off: docs/plan.md, "How far off it is". With measured costs, throughput
// is wanted within 5 % and medians of latencies within 10 %.
inline constexpr GainMargins kMeasuredError{0.05, 0.10};
// The margins for costs of such an error (PlanTarget::cost_error): no less than kMeasuredError.
GainMargins prediction_error(double cost_error);

inline constexpr int kMostReplicas = 64;

struct TrialGoal {
  Slo slo;
  double price = 0;  // dollars per hour and device
  GainMargins error = kMeasuredError;
  int most_replicas = kMostReplicas;
  double link = 25;  // Gbit/s of a worker, for K and V between workers
};

// Whether more requests keep the SLO by more than the margin, as a share of all and per second.
// What more replicas are worth.
bool gains_goodput(const PlanFigures& a, const PlanFigures& b, const GainMargins& margins);

// Whether `a` gains more than the margins: fewer requests refused, then goodput (the share of
// requests that keep the SLO, and their number per second), then output tokens per second (with an
// SLO: not for longer requests), then shorter requests. Not if it loses any of what comes before.
bool better(const PlanFigures& a, const PlanFigures& b, const Slo& slo, const GainMargins& margins);

// Replicas and who of them computes prompts: "4 replicas", "1 prefill and 3 decode workers"; empty
// for one that does all.
std::string replica_words(const PlanSettings& settings);

// A chosen setting that is needed: without it the gain is smaller by more than the margins.
struct NeededSetting {
  PlanSettings setting;           // nothing but this one
  std::optional<size_t> without;  // the trial without; none: such an engine would not start
};

struct PlanChoice {
  size_t best = 0;     // a trial; 0: the settings as given
  size_t nearest = 0;  // the one that looks best, margins or not
  std::vector<NeededSetting> needed;
};

// The index of the trial with such settings, which it may append; none: such an engine would not
// start.
using TrySettings = std::function<std::optional<size_t>(const PlanSettings&)>;

// Every setting of the best one is needed.
PlanChoice choose_settings(const std::vector<Trial>& trials,
                           const TrialGoal& goal,
                           const TrySettings& attempt);

// "goodput +12.0 %, tokens/s +3.1 %, mean latency -4.0 %"; goodput only with an SLO, requests
// refused only where their number differs.
std::string change_words(const PlanFigures& from, const PlanFigures& to, const Slo& slo);

// What was tried, by option: "--budget 1024 to 16384, --kv int8 or f8".
std::string tried_words(const std::vector<Trial>& trials, bool gpu);

// The recommendation in sentences. `first`: what the settings of trial 0 are called.
std::vector<std::string> choice_words(const std::vector<Trial>& trials,
                                      const PlanChoice& choice,
                                      const TrialGoal& goal,
                                      const std::string& first,
                                      bool gpu);

}  // namespace sluice
