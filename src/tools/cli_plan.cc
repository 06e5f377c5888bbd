#include "tools/cli_plan.h"

#include <span>

#include "core/routing_policy.h"
#include "tools/cli_options.h"

namespace sluice {

namespace {

void add_workload_options(CLI::App* app, WorkloadOptions& o) {
  const char* group = "Workload";
  app->add_option("--workload", o.trace,
                  "a trace: Azure's CSV (TIMESTAMP,ContextTokens,GeneratedTokens),\nMooncake's "
                  "JSONL (timestamp, input_length, output_length,\nhash_ids), or what `serve "
                  "--record` wrote (a folder or *.slrec);\nelse --rate and lengths")
      ->group(group);
  const auto without_trace = [group](CLI::Option* option) {
    option->excludes("--workload")->group(group);
  };
  const auto of_trace = [group](CLI::Option* option) {
    option->capture_default_str()->needs("--workload")->group(group);
  };
  without_trace(app->add_option("--rate", o.rate, "requests per second")
                    ->check(number_in(1e-6, 1e6))
                    ->capture_default_str());
  without_trace(
      add_named(app, "--arrivals", o.arrivals, kArrivals, "of --rate: at random or evenly"));
  without_trace(
      app->add_option("--input", o.input, "prompt tokens: N, LO-HI or lognormal:MEDIAN:MOST")
          ->capture_default_str());
  without_trace(
      app->add_option("--output", o.output, "generated tokens, likewise")->capture_default_str());
  without_trace(
      app->add_option("--seed", o.seed, "of arrivals and lengths")->capture_default_str());
  app->add_option("--requests", o.requests, "how many (default: 500, of a trace all)")
      ->check(whole_number(1, 10'000'000))
      ->group(group);
  of_trace(app->add_option("--time-scale", o.time_scale, "of a trace: gaps times this")
               ->check(number_in(1e-6, 1e6)));
  of_trace(app->add_option("--length-scale", o.length_scale, "of a trace: lengths times this")
               ->check(number_in(1e-4, 1e4)));
}

// The engine's own options, but for its --slo, which would be mistaken for objectives; where
// nothing runs, also but for those that only matter then.
void add_planned_engine(CLI::App* app, EngineOptions& o, PresetChoice& p, bool runs) {
  add_engine_options(app, o, p);
  app->remove_option(app->get_option("--slo"));
  if (runs) return;
  for (const char* name : {"--device", "--trace", "--profile-steps", "--full-sort", "--attention",
                           "--no-pin", "--no-graphs", "--no-fuse-layers", "--no-cascade",
                           "--no-forced-tokens", "--fast-products", "--deterministic"})
    app->remove_option(app->get_option(name));
}

std::vector<const CLI::Option*> named_options(const CLI::App& app) {
  std::vector<const CLI::Option*> out;
  for (const CLI::Option* o : app.get_options())
    if (!o->get_lnames().empty() && o != app.get_help_ptr()) out.push_back(o);
  return out;
}

// Those that the command line, a variable or a file named, but for what concerns this command only:
// the file's options are here one by one.
std::vector<GivenOption> given_of(std::span<const CLI::Option* const> options) {
  std::vector<GivenOption> out;
  for (const CLI::Option* o : options) {
    const std::string name = o->get_lnames()[0];
    if (o->count() == 0 || name == "config" || name == "quiet") continue;
    const bool flag = o->get_expected_max() == 0;
    // --no-fuse has the value false.
    if (flag && (o->results().back() == "true") == name.starts_with("no-")) continue;
    out.push_back({"--" + name, flag ? std::vector<std::string>() : o->results()});
  }
  return out;
}

void add_objectives(CLI::App* app, std::string& slo) {
  app->add_option("--slo", slo,
                  "objectives of a request, like ttft=500ms,tpot=50ms; also itl (its\nlongest gap) "
                  "and e2e");
}

void add_price(CLI::App* app, double& price) {
  app->add_option("--price", price, "US dollars per hour and device (default: an assumption)")
      ->check(number_in(1e-3, 1e6));
}

void add_calibrate(CLI::App* plan, CommandLine& c) {
  CalibrateOptions& o = c.calibrate;
  CLI::App* s = plan->add_subcommand("calibrate", "measure what steps cost here, into a file");
  s->add_option("model", o.engine.model, kModelOrShapeHelp)->required();
  s->add_option("--out", o.out, "the file (default: stdout)");
  s->add_option("--limit", o.limit, "seconds of measuring, about")
      ->check(number_in(1.0, 600.0))
      ->capture_default_str();
  add_planned_engine(s, o.engine, c.policy, true);
  s->footer(
      "Runs real steps through the engine: decodes by their number, prompts by their length, long\n"
      "contexts, prompts beside decodes. Give it the options that the server will have.");
  s->callback([&c] {
    apply_policy(c.policy, c.calibrate.engine, true);
    c.resolved = [&c] { return resolved_values(c.calibrate.engine); };
    c.action = [&c] { return cmd_plan_calibrate(c.calibrate); };
  });
}

void add_table(CLI::App* plan, CommandLine& c) {
  PlanTableOptions& o = c.table;
  CLI::App* s = plan->add_subcommand("table", "devices by weight format and batch, at a glance");
  s->add_option("model", o.model, kModelOrShapeHelp)->required();
  s->add_option("--format", o.format, "weight format of random: models")->capture_default_str();
  s->add_option("--devices", o.devices,
                "only these, like h200,l4; cpu: this one, weights as they are")
      ->delimiter(',');
  s->add_option("--batches", o.batches, "sequences that decode at once")
      ->delimiter(',')
      ->check(whole_number(1, 1 << 20))
      ->capture_default_str();
  s->add_option("--context", o.context, "positions of a sequence that decodes")
      ->check(whole_number(1, 1 << 24))
      ->capture_default_str();
  s->add_option("--prompt", o.prompt, "tokens of a prompt")
      ->check(whole_number(1, 1 << 24))
      ->capture_default_str();
  s->add_option("--cost", o.cost, "a row for costs measured by `plan calibrate`, too");
  add_price(s, o.price);
  s->add_flag("--json", o.json, "the result as one JSON object on stdout");
  s->callback([&c] { c.action = [&c] { return cmd_plan_table(c.table); }; });
}

void add_device(CLI::App* app, PlanDeviceOptions& on) {
  app->add_option(
      "--device", on.device,
      "cpu, or a device by name: h200, l4, \"rtx 4090\", ... (default:\nthe one of --cost, "
      "else cpu)");
  app->add_option(
      "--cost", on.cost,
      "costs measured by `plan calibrate` (default: derived from the\ndevice's limits)");
}

void add_cluster(CLI::App* plan, CommandLine& c) {
  PlanClusterOptions& o = c.cluster;
  CLI::App* s = plan->add_subcommand("cluster", "several workers behind a router, simulated");
  s->add_option("model", o.engine.model, kModelOrShapeHelp)->required();
  add_planned_engine(s, o.engine, c.policy, false);
  add_device(s, o.on);
  s->add_option("--workers", o.workers, "engines behind a router")
      ->check(whole_number(1, 1024))
      ->capture_default_str();
  CLI::Option* prefill = s->add_option("--prefill-workers", o.prefill,
                                       "prefill workers; the same total without roles is\n"
                                       "simulated for comparison")
                             ->check(whole_number(1, 512))
                             ->excludes("--workers");
  s->add_option("--decode-workers", o.decode, "workers that go on with those prompts")
      ->check(whole_number(1, 512))
      ->needs(prefill);
  prefill->needs("--decode-workers");
  s->add_flag("--fetch", o.fetch,
              "also cache-aware with workers that fetch cached prefixes from\none another");
  s->add_flag("--balance-roles", o.balance,
              "also cache-aware with workers that compute prompts alone or decode,\nas the mix of "
              "requests asks for (route --balance-roles); needs --slo");
  CLI::Option* link = s->add_option("--link", o.link, "Gbit/s of each worker's link for K and V")
                          ->check(number_in(0.1, 10000.0))
                          ->capture_default_str();
  s->add_option("--policy", o.routes,
                "only these: random, round-robin, least-loaded, cache-aware\n(default: all, and "
                "with --slo cache-aware with early rejection)")
      ->delimiter(',')
      ->check(CLI::IsMember(names_in(kRoutings)));
  add_objectives(s, o.slo);
  s->add_flag("--json", o.json, "the result as one JSON object on stdout");
  add_workload_options(s, o.workload);
  s->footer(
      "Simulates the workload on several engines in virtual time by routing policy,\n"
      "and shows them side by side. The engine's options are those of every worker.");
  s->callback([&c, link] {
    const PlanClusterOptions& p = c.cluster;
    if (link->count() > 0 && !p.fetch && !p.balance && p.prefill == 0)
      throw CLI::ValidationError("--link", "needs --fetch, --balance-roles or --prefill-workers");
    if (p.balance && p.slo.empty())
      throw CLI::ValidationError("--balance-roles", "needs --slo: roles are chosen to keep it");
    apply_policy(c.policy, c.cluster.engine, true);
    c.resolved = [&c] { return resolved_values(c.cluster.engine); };
    c.action = [&c] { return cmd_plan_cluster(c.cluster); };
  });
}

void add_compare(CLI::App* plan, CommandLine& c) {
  PlanCompareOptions& o = c.compare;
  CLI::App* s = plan->add_subcommand("compare", "simulate requests, run them, and say how far off");
  s->add_option("model", o.engine.model, kModelOrShapeHelp)->required();
  add_planned_engine(s, o.engine, c.policy, true);
  s->add_option("--cost", o.cost, "costs of `plan calibrate` (default: measured first)");
  s->add_option("--limit", o.limit, "seconds of measuring without --cost, about")
      ->check(number_in(1.0, 600.0))
      ->capture_default_str();
  s->add_option("--repeat", o.repeat, "real runs; the median counts")
      ->check(whole_number(1, 1000))
      ->capture_default_str();
  add_objectives(s, o.slo);
  s->add_flag("--json", o.json, "the result as one JSON object on stdout");
  add_workload_options(s, o.workload);
  s->callback([&c] {
    apply_policy(c.policy, c.compare.engine, true);
    c.resolved = [&c] { return resolved_values(c.compare.engine); };
    c.action = [&c] { return cmd_plan_compare(c.compare); };
  });
}

}  // namespace

void add_plan(CLI::App& app, CommandLine& c) {
  PlanOptions& o = c.plan;
  CLI::App* s = app.add_subcommand("plan", "which settings, how many users, which machine");
  s->require_subcommand(0, 1);
  s->add_option("model", o.engine.model, kModelOrShapeHelp);
  add_planned_engine(s, o.engine, c.policy, false);
  const std::vector<const CLI::Option*> engine = named_options(*s);
  add_device(s, o.on);
  add_price(s, o.on.price);
  add_objectives(s, o.slo);
  s->add_option("--replicas", o.replicas, "engines that share the requests")
      ->check(whole_number(1, 1024))
      ->capture_default_str();
  s->add_option("--max-replicas", o.max_replicas,
                "most replicas that the search tries (default: 64)")
      ->check(whole_number(1, 1024));
  s->add_option(
       "--link", o.link,
       "Gbit/s of a worker's link for K and V, where prefill and decode\nworkers are tried")
      ->check(number_in(0.1, 10000.0))
      ->capture_default_str();
  s->add_flag("!--no-search", o.search, "only the settings given, no others tried");
  s->add_option("--html", o.html, "write a page with plots to this file");
  s->add_flag("--json", o.json, "the result as one JSON object on stdout");
  add_workload_options(s, o.workload);
  s->footer(
      "Simulates the workload with the engine's own scheduler in virtual time, then tries other\n"
      "settings and names the best for the objectives, with the command that runs it. It keeps to\n"
      "the defaults where no setting is predicted to gain more than the error of predictions.");
  add_calibrate(s, c);
  add_table(s, c);
  add_compare(s, c);
  add_cluster(s, c);
  s->callback([&c, s, engine] {
    if (!s->get_subcommands().empty()) return;
    if (c.plan.engine.model.empty())
      throw CLI::ValidationError(
          "plan for which model? Name one, like smollm2 or random:qwen2.5-7b");
    apply_policy(c.policy, c.plan.engine, true);
    if (c.plan.max_replicas && *c.plan.max_replicas < c.plan.replicas)
      throw CLI::ValidationError("--max-replicas is less than --replicas");
    if (c.plan.max_replicas && !c.plan.search)
      throw CLI::ValidationError("--max-replicas is for the search, which --no-search leaves out");
    c.plan.given = given_of(engine);
    c.resolved = [&c] { return resolved_values(c.plan.engine); };
    c.action = [&c] { return cmd_plan(c.plan); };
  });
}

}  // namespace sluice
