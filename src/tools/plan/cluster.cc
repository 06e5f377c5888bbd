// sluice plan cluster: a workload on several simulated workers, by routing policy.
#include <algorithm>
#include <cstdio>
#include <numeric>

#include "base/json.h"
#include "base/str.h"
#include "core/cluster_simulation.h"
#include "tools/commands.h"
#include "tools/plan/plan.h"
#include "tools/plan/target.h"

namespace sluice {

namespace {

// A policy, with or without early rejection, with or without roles.
struct RoutingTrial {
  std::string name;
  RoutingConfig config;
  std::vector<WorkerRole> roles;
  PlanFigures figures;
  uint64_t rejected = 0, handed_over = 0, fetches = 0, fetched_tokens = 0, role_changes = 0;
  double retry_after = 0;  // mean seconds of the rejected ones
  double busiest = 0;      // answers of the worker with the most, over the mean; with roles, of
                           // the decode workers
};

std::vector<RoutingTrial> trials_for(const PlanClusterOptions& o, const Slo& slo) {
  std::vector<std::string> names = o.routes.empty() ? names_in(kRoutings) : o.routes;
  std::vector<RoutingTrial> out;
  for (const std::string& name : names) {
    RoutingTrial t;
    t.name = name;
    t.config.policy = *value_named(kRoutings, name);
    t.config.ttft = slo.ttft;
    t.config.tpot = slo.tpot;
    out.push_back(t);
    if (t.config.policy != Routing::cache_aware || (slo.ttft <= 0 && slo.tpot <= 0)) continue;
    t.name += ", early rejection";
    t.config.reject = true;
    out.push_back(t);
  }
  return out;
}

bool moves_blocks(const PlanClusterOptions& o) { return o.prefill > 0 || o.fetch || o.balance; }

int num_workers(const PlanClusterOptions& o) {
  return o.prefill > 0 ? o.prefill + o.decode : o.workers;
}

// Each cache-aware trial again with one more thing that workers do for each other. `kv_token`:
// bytes of K and V of a token.
void add_cache_aware(std::vector<RoutingTrial>& trials,
                     const PlanClusterOptions& o,
                     double kv_token,
                     bool RoutingConfig::*what,
                     const char* name) {
  const size_t num = trials.size();
  for (size_t i = 0; i < num; ++i) {
    if (trials[i].config.policy != Routing::cache_aware) continue;
    RoutingTrial t = trials[i];
    t.name += name;
    t.config.*what = true;
    t.config.transfer = kv_token * 8 / (o.link * 1e9);
    trials.push_back(std::move(t));
  }
}

// Each trial again with roles. `kv_token`: bytes of K and V of a token.
void add_apart(std::vector<RoutingTrial>& trials, const PlanClusterOptions& o, double kv_token) {
  if (o.prefill == 0) return;
  const size_t num = trials.size();
  for (size_t i = 0; i < num; ++i) {
    RoutingTrial t = trials[i];
    if (t.config.balance) continue;
    t.name += strf(", %d + %d", o.prefill, o.decode);
    t.roles.assign(static_cast<size_t>(o.prefill), WorkerRole::prefill);
    t.roles.insert(t.roles.end(), static_cast<size_t>(o.decode), WorkerRole::decode);
    t.config.transfer = kv_token * 8 / (o.link * 1e9);
    trials.push_back(std::move(t));
  }
}

void run_routing(RoutingTrial& t,
                 const SimSetup& worker,
                 const PlanClusterOptions& o,
                 std::span<const SimRequest> workload,
                 const Slo& slo) {
  const ClusterSetup setup{worker, num_workers(o), t.roles, t.config, o.workload.seed};
  const ClusterRun run = simulate_cluster(setup, workload);
  t.figures = figures_of(run.workers, slo);
  t.figures.requests += run.num_rejected;
  t.rejected = run.num_rejected;
  t.handed_over = run.num_handed_over;
  t.fetches = run.num_fetches;
  t.fetched_tokens = run.num_fetched_tokens;
  t.role_changes = run.num_role_changes;
  if (t.rejected > 0)
    t.retry_after = std::accumulate(run.retry_after.begin(), run.retry_after.end(), 0.0) /
                    static_cast<double>(t.rejected);
  const double answering = t.roles.empty() ? num_workers(o) : o.decode;
  size_t most = 0, all = 0;
  for (const SimRun& w : run.workers)
    most = std::max(most, w.answers.size()), all += w.answers.size();
  if (all > 0) t.busiest = static_cast<double>(most) * answering / static_cast<double>(all);
}

void print_routings(std::span<const RoutingTrial> trials) {
  std::printf("%-38s %9s %9s %9s %8s %8s %6s %9s %8s %6s %8s %8s\n", "policy", "TTFT p50", "p90",
              "p99", "TPOT p50", "p99", "hits", "tokens/s", "goodput", "good", "rejected",
              "busiest");
  for (const RoutingTrial& t : trials) {
    const PlanFigures& f = t.figures;
    std::printf("%-38s %9.1f %9.1f %9.1f %8.2f %8.2f %5.1f%% %9.0f %8.2f %5.1f%% %8llu %8.2f\n",
                t.name.c_str(), f.ttft.p50 * 1e3, f.ttft.p90 * 1e3, f.ttft.p99 * 1e3,
                f.tpot.p50 * 1e3, f.tpot.p99 * 1e3, f.hit_rate * 100, f.output_per_s, f.goodput,
                f.share_good() * 100, static_cast<unsigned long long>(t.rejected), t.busiest);
  }
  std::printf(
      "TTFT and TPOT in ms, of the requests that were taken; hits: prompt tokens found cached;\n"
      "goodput: requests/s that keep the objectives; good: their share of all requests; busiest:\n"
      "requests of the worker with the most, over the mean (with roles, of those that decode).\n");
}

json::object routing_json(const RoutingTrial& t) {
  json::object j{{"policy", name_of(kRoutings, t.config.policy)},
                 {"early_rejection", t.config.reject},
                 {"prefill", std::ranges::count(t.roles, WorkerRole::prefill)},
                 {"decode", std::ranges::count(t.roles, WorkerRole::decode)},
                 {"handed_over", t.handed_over},
                 {"fetch", t.config.fetch},
                 {"fetches", t.fetches},
                 {"fetched_tokens", t.fetched_tokens},
                 {"balance_roles", t.config.balance},
                 {"role_changes", t.role_changes},
                 {"rejected", t.rejected},
                 {"mean_retry_after_s", t.retry_after},
                 {"busiest_over_mean", t.busiest}};
  j["figures"] = figures_json(t.figures);
  return j;
}

}  // namespace

int cmd_plan_cluster(const PlanClusterOptions& o) {
  Result<Slo> slo = parse_slo(o.slo);
  if (!slo) return report(slo.error());
  Result<std::vector<SimRequest>> workload = plan_workload(o.workload);
  if (!workload) return report(workload.error());
  Result<PlanTarget> target = PlanTarget::open(o.engine, o.on);
  if (!target) return report(target.error());
  Result<PlanSetup> setup = target->setup({});
  if (!setup) return report(setup.error());
  std::vector<RoutingTrial> trials = trials_for(o, *slo);
  const auto kv_token = static_cast<double>(setup->ledger.kv_per_token);
  if (o.fetch) {
    add_cache_aware(trials, o, kv_token, &RoutingConfig::fetch, ", fetch");
    setup->sim = with_places(std::move(setup->sim));  // of all, to compare alike
  }
  if (o.balance) add_cache_aware(trials, o, kv_token, &RoutingConfig::balance, ", balanced");
  add_apart(trials, o, kv_token);
  for (RoutingTrial& t : trials) run_routing(t, setup->sim, o, *workload, *slo);
  if (trials[0].figures.refused == workload->size())
    return report(Error{400,
                        "no request of the workload fits the context: raise --ctx, or lower "
                        "the lengths (--length-scale)"});
  if (o.json) {
    json::array rows;
    for (const RoutingTrial& t : trials) rows.push_back(routing_json(t));
    std::printf("%s\n", plain_json(json::object{{"model", o.engine.model},
                                                {"device", target->device()},
                                                {"step_cost", target->source()},
                                                {"workload", workload_name(o.workload)},
                                                {"slo", o.slo},
                                                {"workers", num_workers(o)},
                                                {"link_gbit_s", moves_blocks(o) ? o.link : 0},
                                                {"requests", workload->size()},
                                                {"policies", std::move(rows)}})
                            .c_str());
    return kExitOk;
  }
  std::printf("%s on %d x %s; %s, %zu requests%s%s\nStep costs %s.\n\n", o.engine.model.c_str(),
              num_workers(o), target->device().c_str(), workload_name(o.workload).c_str(),
              workload->size(), o.slo.empty() ? "" : "; objectives ", o.slo.c_str(),
              target->source().c_str());
  print_routings(trials);
  if (o.prefill > 0)
    std::printf("%d + %d: workers that compute prompts and that decode, over links of %g Gbit/s.\n",
                o.prefill, o.decode, o.link);
  for (const RoutingTrial& t : trials)
    if (t.fetches > 0)
      std::printf("%s: %llu prefixes fetched, %llu tokens, over links of %g Gbit/s.\n",
                  t.name.c_str(), static_cast<unsigned long long>(t.fetches),
                  static_cast<unsigned long long>(t.fetched_tokens), o.link);
  for (const RoutingTrial& t : trials)
    if (t.config.balance)
      std::printf("%s: %llu roles changed, %llu prompts handed over, over links of %g Gbit/s.\n",
                  t.name.c_str(), static_cast<unsigned long long>(t.role_changes),
                  static_cast<unsigned long long>(t.handed_over), o.link);
  if (const uint64_t refused = trials[0].figures.refused; refused > 0)
    std::printf("%llu requests are longer than the context and are refused.\n",
                static_cast<unsigned long long>(refused));
  return kExitOk;
}

}  // namespace sluice
