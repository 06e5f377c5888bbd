// sluice plan compare: the same requests simulated and run for real, side by side.
#include <cstdio>

#include "base/json.h"
#include "base/str.h"
#include "runtime/placement.h"
#include "runtime/session.h"
#include "tools/commands.h"
#include "tools/lab/files.h"
#include "tools/plan/calibrate.h"
#include "tools/plan/plan.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

struct ComparedFigure {
  const char *name, *unit;
  double scale, allowed;  // allowed: error that docs/plan.md promises; 0: none
  double (*of)(const PlanFigures&);
};

constexpr ComparedFigure kCompared[] = {
    {"TTFT p50", "ms", 1e3, 0.10, [](const PlanFigures& f) { return f.ttft.p50; }},
    {"TTFT p99", "ms", 1e3, 0.20, [](const PlanFigures& f) { return f.ttft.p99; }},
    {"TPOT p50", "ms", 1e3, 0.10, [](const PlanFigures& f) { return f.tpot.p50; }},
    {"TPOT p99", "ms", 1e3, 0.20, [](const PlanFigures& f) { return f.tpot.p99; }},
    {"ITL p99", "ms", 1e3, 0, [](const PlanFigures& f) { return f.itl.p99; }},
    {"E2E p50", "ms", 1e3, 0, [](const PlanFigures& f) { return f.e2e.p50; }},
    {"output tokens/s", "", 1, 0.05, [](const PlanFigures& f) { return f.output_per_s; }},
    {"steps", "", 1, 0, [](const PlanFigures& f) { return static_cast<double>(f.steps); }},
    {"preemptions", "", 1, 0,
     [](const PlanFigures& f) { return static_cast<double>(f.preemptions); }},
};

// The run again in the simulator, with the times that its requests came and its steps took: what
// differs then is the simulator's fault, not the cost's.
PlanFigures replay(const LabRun& run,
                   SimSetup setup,
                   std::vector<SimRequest> workload,
                   const Slo& slo) {
  double first = run.times.front().arrival;
  for (const TokenTimes& t : run.times) first = std::min(first, t.arrival);
  for (size_t i = 0; i < workload.size(); ++i)
    workload[i].at = Time(static_cast<int64_t>((run.times[i].arrival - first) * 1e9));
  const std::vector<TimedStep> steps = timed_steps(run.reports);
  size_t next = 0;
  setup.step_seconds = [&](const StepPlan& plan) {
    if (plan.slices.empty()) return 0.0;
    return next < steps.size() ? steps[next++].seconds : setup.cost.seconds(step_load(plan));
  };
  return figures_of(std::vector{simulate(setup, workload)}, slo);
}

struct BothRuns {
  PlanFigures simulated, replayed;  // replayed: the first of those measured
  std::vector<PlanFigures> measured;
  StepKinds kinds;  // of the first
};

void print_kinds(const StepKinds& kinds) {
  std::printf("\n%-16s %10s %10s %10s %8s\n", "steps of", "number", "predicted", "measured",
              "ratio");
  for (const StepKind& k : kinds) {
    if (k.num == 0) continue;
    std::printf("%-16s %10d %7.2f ms %7.2f ms %8.3f\n", k.name, k.num, k.predicted / k.num * 1e3,
                k.measured / k.num * 1e3, k.predicted / k.measured);
  }
}

json::array kinds_json(const StepKinds& kinds) {
  json::array out;
  for (const StepKind& k : kinds) {
    out.push_back(json::object{{"kind", k.name},
                               {"steps", k.num},
                               {"predicted_s", k.predicted},
                               {"measured_s", k.measured}});
  }
  return out;
}

void print_comparison(const PlanCompareOptions& o,
                      const BothRuns& b,
                      size_t num_requests,
                      const std::string& machine) {
  json::array rows;
  if (!o.json)
    std::printf("%s, %s: %zu requests; %s\n\n%-16s %10s %10s %10s %8s %10s  %s\n",
                o.engine.model.c_str(), workload_name(o.workload).c_str(), num_requests,
                machine.c_str(), "", "simulated", "measured", "spread", "ratio", "replayed",
                "within");
  for (const ComparedFigure& c : kCompared) {
    std::vector<double> values;
    for (const PlanFigures& f : b.measured) values.push_back(c.of(f));
    const Spread is = spread_of(values);
    const double of = c.of(b.simulated), ratio = is.median > 0 ? of / is.median : 0;
    const bool near = std::abs(of - is.median) <= c.allowed * is.median;
    const bool inside = o.repeat > 1 && of >= is.least && of <= is.most;
    if (o.json) {
      rows.push_back(json::object{{"figure", c.name},
                                  {"simulated", of * c.scale},
                                  {"measured", is.median * c.scale},
                                  {"least", is.least * c.scale},
                                  {"most", is.most * c.scale},
                                  {"ratio", ratio},
                                  {"first_run", values[0] * c.scale},
                                  {"replayed", c.of(b.replayed) * c.scale}});
      continue;
    }
    const std::string spread = strf("%.1f", (is.most - is.least) * c.scale);
    std::printf("%-16s %10.1f %10.1f %10s %8.3f %10.1f  %s\n",
                strf("%s %s", c.name, c.unit).c_str(), of * c.scale, is.median * c.scale,
                o.repeat > 1 ? spread.c_str() : "-", ratio, c.of(b.replayed) * c.scale,
                c.allowed == 0   ? ""
                : near || inside ? "yes"
                                 : strf("no, %.0f %% allowed", c.allowed * 100).c_str());
  }
  if (!o.json) {
    std::printf("Replayed: the first run in the simulator with its own arrivals and step times.\n");
    print_kinds(b.kinds);
  }
  if (o.json) {
    json::object j{{"model", o.engine.model},
                   {"workload", workload_name(o.workload)},
                   {"requests", num_requests},
                   {"machine", machine},
                   {"runs", o.repeat},
                   {"figures", std::move(rows)},
                   {"step_kinds", kinds_json(b.kinds)}};
    std::printf("%s\n", plain_json(j).c_str());
  }
}

}  // namespace

int cmd_plan_compare(const PlanCompareOptions& o) {
  Result<Slo> slo = parse_slo(o.slo);
  if (!slo) return report(slo.error());
  Result<std::vector<SimRequest>> workload = plan_workload(o.workload);
  if (!workload) return report(workload.error());
  // The real runs have none either.
  for (SimRequest& r : *workload) r.priority = 0, r.account = 0, r.deadline = kNever;
  std::optional<CostFile> cost;
  if (!o.cost.empty()) {
    Result<CostFile> file = load_cost(o.cost);
    if (!file) return report(file.error());
    cost = std::move(*file);
  }
  StatusLine status(!o.engine.quiet);
  if (!cost) {
    Result<std::unique_ptr<Session>> session = open_session(calibration_options(o.engine));
    if (!session) return report(session.error());
    Result<CostFile> file =
        calibrate(**session, o.limit, [&](const std::string& what, double share) {
          status.show(strf("measuring steps: %s %s", progress_bar(share).c_str(), what.c_str()));
        });
    if (!file) return report(file.error());
    cost = std::move(*file);
  }
  Result<std::unique_ptr<Session>> session = open_session(o.engine);
  if (!session) return report(session.error());
  Session& s = **session;
  const EngineOptions& e = s.options();
  if (auto ok = check_cost_shape(*cost, o.cost, e.model, s.model().shape()); !ok)
    return report(ok.error());
  const CostUse use{.model = e.model,
                    .format = cost_format(e.model, random_format(e)),
                    .gpu = e.device.is_gpu(),
                    .gpu_name = "",
                    .threads = num_threads(e),
                    .types = weight_types(e)};
  if (auto ok = check_cost_use(*cost, o.cost, use); !ok) return report(ok.error());
  SimSetup setup{e.scheduler, cost->cost};
  // Both get the requests that fit.
  const int len = setup.scheduler.max_len;
  std::erase_if(*workload, [&](const SimRequest& r) { return r.output > len - r.input; });
  if (workload->empty())
    return report(Error{400,
                        "no request of the workload fits the context: raise --ctx, or lower "
                        "the lengths (--length-scale)"});
  const std::vector<SimRun> sim = {simulate(setup, *workload)};
  const PlanFigures simulated = figures_of(sim, *slo);
  std::vector<PlanFigures> measured;
  PlanFigures replayed;  // the first
  StepKinds kinds;
  for (int i = 0; i < o.repeat; ++i) {
    status.show(strf("run %d of %d: %zu requests, about %.0f s", i + 1, o.repeat, workload->size(),
                     simulated.elapsed),
                true);
    // Other prompts each time: none finds the last run's in the prefix cache.
    Result<LabRun> run =
        run_lab_on(s, {}, lab_workload(*workload), static_cast<uint64_t>(77 + 1'000'000 * i));
    if (!run) return report(run.error());
    measured.push_back(figures_of(*run, *slo));
    if (i > 0) continue;
    replayed = replay(*run, setup, *workload, *slo);
    kinds = step_kinds(timed_steps(run->reports), setup.cost);
  }
  status.clear();
  print_comparison(o, {simulated, replayed, measured, kinds}, workload->size(), cost->machine);
  return kExitOk;
}

}  // namespace sluice
