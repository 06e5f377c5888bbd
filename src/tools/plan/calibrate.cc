#include "tools/plan/calibrate.h"

#include <algorithm>
#include <chrono>
#include <unordered_map>

#include "base/str.h"
#include "runtime/placement.h"
#include "runtime/session.h"
#include "tools/cpu_limits.h"
#include "tools/lab/files.h"
#include "tools/lab/run.h"
#include "tools/plan/probes.h"

namespace sluice {

namespace {

constexpr double kLongHost = 5e-3;     // between two steps: the engine waited, it did not compute
constexpr double kMostOfLimit = 0.15;  // of a calibration's time for one probe

}  // namespace

std::vector<TimedStep> timed_steps(std::span<const StepReport> reports) {
  struct Launched {
    StepLoad load;
    Time at{0};
  };
  std::unordered_map<uint64_t, Launched> launched;
  std::vector<TimedStep> out;
  Time last_end{0};
  for (const StepReport& r : reports) {
    if (r.launched) launched[r.launched_step] = {r.work, r.plan_end};
    if (!r.completed) continue;
    auto it = launched.find(r.completed_step);
    if (it != launched.end() && it->second.load.tokens > 0) {
      const Time from = std::max(it->second.at, last_end);
      if (r.end > from && !r.failed) out.push_back({it->second.load, seconds(r.end - from)});
    }
    last_end = std::max(last_end, r.end);
    if (it != launched.end()) launched.erase(it);
  }
  return out;
}

StepKinds step_kinds(std::span<const TimedStep> steps, const StepCost& cost) {
  StepKinds out = {{{.name = "decodes"}, {.name = "prompts"}, {.name = "both"}}};
  for (const TimedStep& s : steps) {
    // Of a prompt at most one token is sampled; several prompts count as both.
    const bool decodes = s.load.tokens == s.load.sampled;
    StepKind& k = out[decodes ? 0 : s.load.sampled <= 1 ? 1 : 2];
    ++k.num;
    k.predicted += cost.seconds(s.load);
    k.measured += s.seconds;
  }
  return out;
}

HostCost fit_host_cost(std::span<const StepReport> reports) {
  std::vector<double> ata(4), aty(2);
  for (size_t i = 1; i < reports.size(); ++i) {
    const StepReport &before = reports[i - 1], &r = reports[i];
    if (!before.completed || !r.launched || r.num_slices == 0) continue;
    const double s = seconds(r.plan_end - before.complete_begin), n = r.num_slices;
    if (!(s > 0) || s > kLongHost) continue;
    const double w = 1 / (s * s);
    ata[0] += w, ata[1] += w * n, ata[2] += w * n, ata[3] += w * n * n;
    aty[0] += w * s, aty[1] += w * s * n;
  }
  const std::vector<double> x = nonneg_least_squares(ata, aty);
  return {x[0], x[1]};
}

EngineOptions calibration_options(EngineOptions o) {
  o.scheduler.prefix_cache = false;
  o.scheduler.slo = {};
  // Prompts fill steps also beside decodes, so that all sizes of steps are seen.
  if (o.step_sizes) o.step_sizes->chunk = o.step_sizes->mixed_budget = 0;
  o.record_metrics = true;
  return o;
}

Result<CostFile> calibrate(Session& s,
                           double limit,
                           const std::function<void(const std::string&, double)>& progress) {
  using std::chrono::steady_clock;
  const auto begin = steady_clock::now();
  const auto spent = [&] {
    return std::chrono::duration<double>(steady_clock::now() - begin).count();
  };
  const SchedulerConfig& c = s.options().scheduler;
  LabSetup setup;
  std::vector<TimedStep> steps;
  std::vector<StepReport> reports;
  const std::vector<Probe> probes = calibration_probes(c);
  CostFit fit;
  // Again and again while there is time: the first round says how long each probe takes. What does
  // not fit the time that is left is left out, and what would take a large share of it.
  bool any = true;
  for (uint64_t round = 0; any && (round == 0 || spent() < limit); ++round) {
    any = false;
    for (const Probe& p : probes) {
      const double expected = probe_seconds(p.requests, fit.cost, c.budget);
      if (!steps.empty() && (expected > limit * kMostOfLimit || spent() + expected > limit))
        continue;
      progress(p.what, std::min(1.0, spent() / limit));
      setup.warm = steps.empty();
      Result<LabRun> run = run_lab_on(s, setup, p.requests, 1000 + round * probes.size());
      if (!run) return run.error();
      any = true;
      for (const TimedStep& t : timed_steps(run->reports)) steps.push_back(t);
      reports.insert(reports.end(), run->reports.begin(), run->reports.end());
      if (round == 0 || &p == &probes.back()) fit = fit_step_cost(steps);
    }
  }
  fit = fit_step_cost(steps);
  const HostCost host = fit_host_cost(reports);
  const ModelShape& shape = s.model().shape();
  CostFile f;
  f.model = s.options().model;
  f.format = cost_format(f.model, random_format(s.options()));
  f.types = weight_types(s.options());
  f.arch = shape.arch;
  f.layers = shape.num_layers, f.hidden = shape.hidden, f.vocab = shape.vocab;
  f.device = s.options().device.is_gpu() ? s.options().device.name() : "cpu";
  f.threads = num_threads(s.options());
  f.machine = s.backend().describe() + "; " + machine_line(s.options().threads.value_or(0));
  f.measured = utc_now();
  f.kv_token = static_cast<double>(s.ledger().kv_per_token);
  f.memory = static_cast<double>(s.ledger().available);
  f.num_steps = static_cast<int>(steps.size());
  f.error_p50 = fit.error_p50, f.error_p90 = fit.error_p90;
  f.cost = fit.cost;
  f.cost.host_step = host.step, f.cost.host_slice = host.slice;
  return f;
}

}  // namespace sluice
