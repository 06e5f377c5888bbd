#include "tools/plan/search.h"

#include <algorithm>
#include <array>
#include <set>

#include "core/cluster_simulation.h"
#include "core/policy.h"
#include "runtime/fit.h"
#include "tools/sla.h"

namespace sluice {

namespace {

constexpr int kRoundsOfKnobs = 2, kMostWays = 8;
constexpr int kMostSplits = 8;  // of so many workers, more or less

// A knob's values, each written into settings.
struct PlanKnob {
  std::vector<std::function<void(PlanSettings&)>> values;
};

std::vector<PlanKnob> knobs_for(const PlanTarget& t) {
  std::vector<PlanKnob> out(5);
  for (int n : {8, 16, 32, 64, 128, 256, 512})
    out[0].values.push_back([n](PlanSettings& s) { s.max_seqs = n; });
  const std::vector<int> budgets = t.is_gpu() ? std::vector<int>{1024, 2048, 4096, 8192, 16384}
                                              : std::vector<int>{128, 256, 512, 1024, 2048};
  for (int n : budgets) out[1].values.push_back([n](PlanSettings& s) { s.budget = n; });
  const std::vector<int> beside = t.is_gpu() ? std::vector<int>{256, 512, 1024, 2048, 4096}
                                             : std::vector<int>{16, 32, 64, 128, 256};
  for (int n : beside) out[2].values.push_back([n](PlanSettings& s) { s.beside = n; });
  for (const char* p : {"sarathi", "vllm"})
    out[3].values.push_back([p](PlanSettings& s) { s.preset = p; });
  const KvType kv = int8_kv_type(t.shape().head_dim);
  out[4].values.push_back([kv](PlanSettings& s) { s.kv = kv; });
  return out;
}

// Behind `sluice route`, which places requests by what it knows of the workers.
std::vector<SimRun> run_apart(const PlanSetup& setup,
                              const PlanSettings& s,
                              std::span<const SimRequest> workload,
                              const TrialGoal& goal) {
  ClusterSetup cluster;
  cluster.worker = setup.sim;
  cluster.num_workers = s.replicas;
  cluster.roles.assign(static_cast<size_t>(s.replicas), WorkerRole::decode);
  std::fill_n(cluster.roles.begin(), s.prefill, WorkerRole::prefill);
  cluster.routing.ttft = goal.slo.ttft, cluster.routing.tpot = goal.slo.tpot;
  cluster.routing.transfer = static_cast<double>(setup.ledger.kv_per_token) * 8 / (goal.link * 1e9);
  return simulate_cluster(cluster, workload).workers;
}

// Splits of every number of replicas that was tried, with the chosen settings.
void try_splits(SearchResult& out, const TrialGoal& goal, const TrySettings& attempt) {
  std::set<int> workers;
  for (const Trial& t : out.trials)
    if (t.settings.replicas > 1) workers.insert(t.settings.replicas);
  const PlanSettings from = out.trials[out.choice.best].settings;
  for (int num : workers) {
    const int step = std::max(1, num / kMostSplits);
    for (int prefill = step; prefill < num; prefill += step) {
      PlanSettings s = from;
      s.replicas = num, s.prefill = prefill;
      const std::optional<size_t> at = attempt(s);
      if (!at || num > from.replicas) continue;
      const size_t best = out.split.value_or(out.choice.best);
      if (better(out.trials[*at].figures, out.trials[best].figures, goal.slo,
                 out.split ? kAnyGain : goal.error))
        out.split = at;
    }
  }
}

}  // namespace

bool dominates(std::span<const double> a, std::span<const double> b) {
  bool any = false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] > b[i]) return false;
    any |= a[i] < b[i];
  }
  return any;
}

void mark_front(std::span<Trial> trials) {
  const auto goals = [](const Trial& t) {
    return std::array<double, 5>{t.figures.ttft.p99, t.figures.tpot.p99, -t.figures.output_per_s,
                                 t.memory, t.per_million};
  };
  // Refusing requests makes the rest look good.
  const auto counts = [&](const Trial& t) {
    return t.figures.refused <= trials[0].figures.refused;
  };
  for (Trial& t : trials) {
    t.on_front = counts(t) && std::ranges::none_of(trials, [&](const Trial& other) {
                   return counts(other) && (dominates(goals(other), goals(t)) ||
                                            (&other < &t && goals(other) == goals(t)));
                 });
  }
}

Result<Trial> run_trial(const PlanTarget& target,
                        const PlanSettings& settings,
                        std::span<const SimRequest> workload,
                        const TrialGoal& goal) {
  Result<PlanSetup> setup = target.setup(settings);
  if (!setup) return setup.error();
  Trial t;
  t.settings = settings;
  t.flags = option_words(setting_options(settings, target.is_gpu()));
  if (settings.prefill > 0) t.runs = run_apart(*setup, settings, workload, goal);
  for (int r = 0; settings.prefill == 0 && r < settings.replicas; ++r)
    t.runs.push_back(simulate(setup->sim, settings.replicas == 1
                                              ? std::vector(workload.begin(), workload.end())
                                              : share_of(workload, r, settings.replicas)));
  t.figures = figures_of(t.runs, goal.slo);
  const Ledger& l = setup->ledger;
  const int devices = settings.replicas * settings.ways;
  t.memory = static_cast<double>(l.weights + l.kv + l.workspace + l.program) * settings.replicas;
  t.estimate = settings.ways > 1;
  if (goal.price > 0 && t.figures.output_per_s > 0)
    t.per_million = goal.price * devices / 3600 / t.figures.output_per_s * 1e6;
  return t;
}

SearchResult search_settings(const PlanTarget& target,
                             Trial start,
                             std::span<const SimRequest> workload,
                             const TrialGoal& goal,
                             const std::function<void(size_t)>& progress) {
  SearchResult out;
  std::vector<Trial>& trials = out.trials;
  trials.push_back(std::move(start));
  size_t best = 0;
  const TrySettings attempt = [&](const PlanSettings& s) -> std::optional<size_t> {
    const auto known = std::ranges::find(trials, s, &Trial::settings);
    if (known != trials.end()) return known - trials.begin();
    progress(trials.size());
    Result<Trial> t = run_trial(target, s, workload, goal);
    if (!t) return std::nullopt;
    t->runs.clear();
    trials.push_back(std::move(*t));
    return trials.size() - 1;
  };
  const auto keep_if_better = [&](const PlanSettings& s) {
    const std::optional<size_t> t = attempt(s);
    if (t && better(trials[*t].figures, trials[best].figures, goal.slo, kAnyGain)) best = *t;
  };
  for (int round = 0; round < kRoundsOfKnobs; ++round) {
    const size_t before = best;
    for (const PlanKnob& knob : knobs_for(target)) {
      const PlanSettings from = trials[best].settings;
      for (const auto& set : knob.values) {
        PlanSettings s = from;
        set(s);
        keep_if_better(s);
      }
    }
    if (best == before) break;
  }
  while (goal.slo.any() && trials[best].figures.share_good() < kAttainmentGoal &&
         trials[best].settings.replicas * 2 <= goal.most_replicas) {
    PlanSettings s = trials[best].settings;
    s.replicas *= 2;
    const std::optional<size_t> t = attempt(s);
    if (!t || !gains_goodput(trials[*t].figures, trials[best].figures, kAnyGain)) break;
    best = *t;
  }
  out.choice = choose_settings(trials, goal, attempt);
  Trial& chosen = trials[out.choice.best];
  if (chosen.runs.empty()) chosen.runs = run_trial(target, chosen.settings, workload, goal)->runs;
  try_splits(out, goal, attempt);
  if (target.is_gpu() && target.link() > 0) {
    for (int ways = 2; ways <= kMostWays && target.shape().num_kv_heads % ways == 0; ways *= 2) {
      PlanSettings s = trials[out.choice.best].settings;
      s.ways = ways;
      attempt(s);
    }
  }
  mark_front(trials);
  return out;
}

}  // namespace sluice
