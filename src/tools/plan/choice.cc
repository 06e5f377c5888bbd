#include "tools/plan/choice.h"

#include <algorithm>
#include <set>
#include <type_traits>

#include "base/str.h"

namespace sluice {

namespace {

// Losing more than this of one figure is no gain, whatever the others do.
constexpr double kNoLoss = 0.01;

bool more_by(double a, double b, double margin) { return a > b * (1 + margin); }
bool loses(double a, double b) { return a < b * (1 - kNoLoss); }

// Settings with one less, and that one.
struct Simpler {
  PlanSettings settings, dropped;
};

// Each of the settings left out, `first` having none; of replicas half.
std::vector<Simpler> simpler_settings(const PlanSettings& s, const PlanSettings& first) {
  std::vector<Simpler> out;
  const auto without = [&](auto field) {
    if (s.*field == first.*field) return;
    Simpler one{s, {}};
    one.settings.*field = first.*field;
    one.dropped.*field = s.*field;
    out.push_back(one);
  };
  if (s.replicas > first.replicas) {
    Simpler half{s, {}};
    half.settings.replicas = std::max(first.replicas, s.replicas / 2);
    half.dropped.replicas = s.replicas;
    out.push_back(half);
  }
  without(&PlanSettings::kv);
  without(&PlanSettings::preset);
  without(&PlanSettings::beside);
  without(&PlanSettings::budget);
  without(&PlanSettings::max_seqs);
  return out;
}

std::string percent_change(double from, double to) {
  if (from <= 0) return to > 0 ? strf("from 0 to %.2f", to) : "+0.0 %";
  if (to >= 2 * from) return strf("%.1f times", to / from);
  return strf("%+.1f %%", (to / from - 1) * 100);
}

std::string setting_words(const PlanSettings& s, bool gpu) {
  std::string out = option_words(setting_options(s, gpu));
  if (s.replicas > 1) out += strf("%s%d replicas", out.empty() ? "" : ", ", s.replicas);
  return out;
}

template <typename T>
std::string join_tried(const char* name, const std::set<T>& values, const char* between) {
  std::string out = name;
  if constexpr (std::is_integral_v<T>) {
    out += strf(" %d", *values.begin());
    if (values.size() > 1) out += strf(" to %d", *values.rbegin());
  } else {
    const char* before = " ";
    for (const T& v : values) out += before + v, before = between;
  }
  return out;
}

}  // namespace

std::string replica_words(const PlanSettings& s) {
  if (s.replicas <= 1) return {};
  if (s.prefill == 0) return strf("%d replicas", s.replicas);
  return strf("%d prefill and %d decode worker%s", s.prefill, s.replicas - s.prefill,
              s.replicas - s.prefill == 1 ? "" : "s");
}

GainMargins prediction_error(double cost_error) {
  return {std::max(kMeasuredError.rate, cost_error), std::max(kMeasuredError.latency, cost_error)};
}

bool gains_goodput(const PlanFigures& a, const PlanFigures& b, const GainMargins& margins) {
  // In requests, of all: two more where one was good are none of many.
  return a.share_good() - b.share_good() > margins.rate &&
         more_by(a.goodput, b.goodput, margins.rate);
}

bool better(const PlanFigures& a,
            const PlanFigures& b,
            const Slo& slo,
            const GainMargins& margins) {
  if (a.refused != b.refused) return a.refused < b.refused;
  if (slo.any()) {
    if (gains_goodput(a, b, margins)) return true;
    if (a.share_good() < b.share_good() - kNoLoss || loses(a.goodput, b.goodput)) return false;
  }
  const bool longer = slo.any() && more_by(a.e2e.mean, b.e2e.mean, margins.latency);
  if (more_by(a.output_per_s, b.output_per_s, margins.rate)) return !longer;
  if (loses(a.output_per_s, b.output_per_s)) return false;
  return a.e2e.mean < b.e2e.mean * (1 - margins.latency);
}

PlanChoice choose_settings(const std::vector<Trial>& trials,
                           const TrialGoal& goal,
                           const TrySettings& attempt) {
  PlanChoice c;
  const auto is_better = [&](size_t a, size_t b, const GainMargins& margins) {
    const PlanFigures &left = trials[a].figures, &right = trials[b].figures;
    return trials[a].settings.replicas > trials[b].settings.replicas
               ? gains_goodput(left, right, margins)
               : better(left, right, goal.slo, margins);
  };
  for (size_t i = 1; i < trials.size(); ++i) {
    if (trials[i].estimate) continue;
    if (is_better(i, c.nearest, kAnyGain)) c.nearest = i;
  }
  std::set<size_t> rejected = {0};
  const auto next_candidate = [&] {
    size_t best = 0;
    for (size_t i = 1; i < trials.size(); ++i) {
      if (trials[i].estimate || rejected.contains(i) || !is_better(i, 0, goal.error)) continue;
      if (best == 0 || is_better(i, best, kAnyGain)) best = i;
    }
    return best;
  };
  const auto drop_one = [&] {
    c.needed.clear();
    for (const Simpler& s : simpler_settings(trials[c.best].settings, trials[0].settings)) {
      const std::optional<size_t> without = attempt(s.settings);
      if (without && !is_better(c.best, *without, goal.error)) {
        c.best = *without;
        return true;
      }
      c.needed.push_back({s.dropped, without});
    }
    return false;
  };
  while ((c.best = next_candidate()) != 0) {
    rejected.insert(c.best);
    while (drop_one()) {
    }
    // Several small gains may have left nothing; a setting with fewer of them may still gain.
    if (is_better(c.best, 0, goal.error)) return c;
  }
  c.needed.clear();
  return c;
}

std::string change_words(const PlanFigures& from, const PlanFigures& to, const Slo& slo) {
  std::string out;
  if (from.refused != to.refused)
    out =
        strf("%llu instead of %llu requests refused, ", static_cast<unsigned long long>(to.refused),
             static_cast<unsigned long long>(from.refused));
  if (slo.any()) out += "goodput " + percent_change(from.goodput, to.goodput) + ", ";
  return out + "tokens/s " + percent_change(from.output_per_s, to.output_per_s) +
         ", mean latency " + percent_change(from.e2e.mean, to.e2e.mean);
}

std::string tried_words(const std::vector<Trial>& trials, bool gpu) {
  std::set<int> budget, beside, max_seqs, replicas;
  std::set<std::string> preset, kv;
  for (const Trial& t : trials) {
    if (t.estimate) continue;
    const PlanSettings& s = t.settings;
    if (s.budget) budget.insert(*s.budget);
    if (s.beside) beside.insert(*s.beside);
    if (s.max_seqs) max_seqs.insert(*s.max_seqs);
    if (s.preset) preset.insert(*s.preset);
    if (s.kv) kv.insert(name_of(kKvTypes, s.kv));
    replicas.insert(s.replicas);
  }
  std::vector<std::string> parts;
  const auto add = [&](const char* name, const auto& values) {
    if (!values.empty()) parts.push_back(join_tried(name, values, " or "));
  };
  add("--max-seqs", max_seqs);
  add("--budget", budget);
  add(gpu ? "--mixed-budget" : "--chunk", beside);
  add("--preset", preset);
  add("--kv", kv);
  if (replicas.size() > 1) add("replicas", replicas);
  std::string out;
  for (const std::string& p : parts) out += (out.empty() ? "" : ", ") + p;
  return out;
}

std::vector<std::string> choice_words(const std::vector<Trial>& trials,
                                      const PlanChoice& choice,
                                      const TrialGoal& goal,
                                      const std::string& first,
                                      bool gpu) {
  std::vector<std::string> out;
  const auto change = [&](size_t from, size_t to) {
    return change_words(trials[from].figures, trials[to].figures, goal.slo);
  };
  const auto words_of = [&](size_t i) { return setting_words(trials[i].settings, gpu); };
  const double rate = goal.error.rate * 100, latency = goal.error.latency * 100;
  std::string margins;
  if (goal.slo.any()) margins = strf("%.0f %% of all requests within the objectives, ", rate);
  margins += strf("%.0f %% of tokens/s, %.0f %% of the mean latency", rate, latency);
  if (choice.best == 0) {
    out.push_back(
        strf("%s are best: no setting by itself is predicted to gain more than the error of "
             "predictions (%s).",
             first.c_str(), margins.c_str()));
    if (choice.nearest != 0)
      out.push_back(strf("The nearest is %s: %s.", words_of(choice.nearest).c_str(),
                         change(0, choice.nearest).c_str()));
  } else {
    out.push_back(strf("Recommended: %s. It gains more than the error of predictions (%s): %s.",
                       words_of(choice.best).c_str(), margins.c_str(),
                       change(0, choice.best).c_str()));
    for (const NeededSetting& n : choice.needed) {
      std::string instead = "Without " + setting_words(n.setting, gpu);
      if (n.setting.replicas > 1 && n.without)
        instead = strf("With %d instead of %d replicas", trials[*n.without].settings.replicas,
                       n.setting.replicas);
      out.push_back(strf(
          "%s: %s.", instead.c_str(),
          n.without ? change(choice.best, *n.without).c_str() : "such an engine would not start"));
    }
  }
  const auto keeps_none = [](const Trial& t) { return t.estimate || t.figures.good == 0; };
  if (goal.slo.any() && std::ranges::all_of(trials, keeps_none))
    out.push_back("No request keeps the objectives with any of the settings tried.");
  const std::string tried = tried_words(trials, gpu);
  if (!tried.empty()) out.push_back("Tried: " + tried + ".");
  return out;
}

}  // namespace sluice
