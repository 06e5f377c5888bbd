// sluice plan, and sluice plan calibrate.
#include "tools/plan/plan.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>

#include "base/json.h"
#include "base/str.h"
#include "runtime/session.h"
#include "tools/commands.h"
#include "tools/plan/calibrate.h"
#include "tools/plan/page.h"
#include "tools/plan/search.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

Result<void> write_plan_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) return Error{500, strf("cannot write %s", quote(path, 400).c_str())};
  return {};
}

// Of this thread: others who use the machine do not count.
double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// What the means of a workload come to with prompts and decodes on devices of their own.
struct SplitEstimate {
  double prefill = 0, decode = 0;  // requests per second and device
  double shared = 0;
  Split best;
};

SplitEstimate estimate_split(const SimSetup& setup,
                             std::span<const SimRequest> workload,
                             const Slo& slo) {
  double input = 0, output = 0;
  for (const SimRequest& r : workload) input += r.input, output += r.output;
  input /= static_cast<double>(workload.size()), output /= static_cast<double>(workload.size());
  const StepCost& cost = setup.cost;
  const double budget = setup.scheduler.budget;
  // Prompts shorter than the budget share a step.
  const double together = std::max(1.0, budget / input);
  double prompt = 0;
  for (double pos = 0; pos < input; pos += budget) {
    const double n = std::min(budget, input - pos);
    prompt += cost.seconds({.tokens = static_cast<int>(n * together),
                            .sampled = static_cast<int>(together),
                            .context = static_cast<int64_t>((pos + n) * together),
                            .attended = static_cast<int64_t>((n * pos + n * n / 2) * together)});
  }
  SplitEstimate e;
  e.prefill = together / prompt;
  const double context = input + output / 2;
  const int64_t room =
      static_cast<int64_t>(setup.scheduler.num_blocks) * setup.scheduler.block_size;
  for (int n = 1; n <= setup.scheduler.max_seqs && n * context <= static_cast<double>(room); ++n) {
    const auto read = static_cast<int64_t>(n * context);
    const double step =
        cost.seconds({.tokens = n, .sampled = n, .context = read, .attended = read});
    if (n > 1 && slo.tpot > 0 && step > slo.tpot) break;
    e.decode = n / (step * output);
  }
  e.shared = shared_rate(e.prefill, e.decode);
  for (int devices = 2; devices <= 8; ++devices) {
    const Split s = best_split(e.prefill, e.decode, devices);
    if (s.rate > e.best.rate * 1.02) e.best = s;
  }
  return e;
}

std::string split_line(const SplitEstimate& e) {
  return strf(
      "Estimate, not simulated: a device that only computes prompts takes %.2f requests/s, one "
      "that "
      "only decodes %.2f. %d + %d such devices come to %.2f requests/s per device, devices that do "
      "both to at most %.2f; `sluice plan cluster --prefill-workers N --decode-workers M` "
      "simulates "
      "them.",
      e.prefill, e.decode, e.best.prefill, e.best.decode, e.best.rate, e.shared);
}

void print_trials(std::span<const Trial> trials, size_t best, bool price) {
  std::printf("%9s %9s %8s %8s %8s %9s %8s %6s %5s %9s %8s%s  %s\n", "TTFT p50", "p99", "TPOT p50",
              "p99", "E2E p99", "tokens/s", "goodput", "good", "KV", "preempted", "memory",
              price ? "    $/M" : "", "settings");
  for (size_t i = 0; i < trials.size(); ++i) {
    const Trial& t = trials[i];
    if (i != 0 && i != best && !t.on_front) continue;
    const PlanFigures& f = t.figures;
    std::string what = t.flags.empty() ? "(as given)" : t.flags;
    if (t.settings.replicas > 1) what += " x " + replica_words(t.settings);
    if (t.estimate) what += strf(" tensor parallel %d, an estimate", t.settings.ways);
    if (i == best && trials.size() > 1) what += "  <- best";
    std::printf("%9.1f %9.1f %8.2f %8.2f %8.2f %9.0f %8.2f %5.0f%% %4.0f%% %9llu %8s",
                f.ttft.p50 * 1e3, f.ttft.p99 * 1e3, f.tpot.p50 * 1e3, f.tpot.p99 * 1e3, f.e2e.p99,
                f.output_per_s, f.goodput, f.share_good() * 100, f.most_kv * 100,
                static_cast<unsigned long long>(f.preemptions),
                human_bytes(static_cast<uint64_t>(t.memory)).c_str());
    if (price) std::printf(" %6.2f", t.per_million);
    std::printf("  %s\n", what.c_str());
  }
}

json::object trial_json(const Trial& t) {
  json::object j{{"flags", t.flags},
                 {"replicas", t.settings.replicas},
                 {"prefill", t.settings.prefill},
                 {"tensor_parallel", t.settings.ways},
                 {"estimate", t.estimate},
                 {"on_front", t.on_front},
                 {"memory_bytes", t.memory}};
  if (t.per_million > 0) j["dollars_per_million_output_tokens"] = t.per_million;
  if (!t.commands.empty()) j["commands"] = json::array(t.commands.begin(), t.commands.end());
  j["figures"] = figures_json(t.figures);
  return j;
}

// What prefill and decode workers that beat the choice come to.
std::string split_words(const SearchResult& found, const TrialGoal& goal) {
  const Trial &best = found.trials[found.choice.best], &split = found.trials[*found.split];
  return strf("%s are predicted to be better than %s: %s.", replica_words(split.settings).c_str(),
              replica_words(best.settings).c_str(),
              change_words(best.figures, split.figures, goal.slo).c_str());
}

// What the page and the terminal say below the table.
std::vector<std::string> plan_notes(const std::vector<Trial>& trials,
                                    size_t best,
                                    const SplitEstimate& split,
                                    double price) {
  std::vector<std::string> notes;
  if (trials[0].figures.refused > 0)
    notes.push_back(strf("%llu of %llu requests are longer than the context and are refused.",
                         static_cast<unsigned long long>(trials[0].figures.refused),
                         static_cast<unsigned long long>(trials[0].figures.requests)));
  if (trials[best].figures.expired > 0)
    notes.push_back(strf("%llu of %llu requests are ended by their deadlines.",
                         static_cast<unsigned long long>(trials[best].figures.expired),
                         static_cast<unsigned long long>(trials[best].figures.requests)));
  if (trials[best].settings.replicas > 1)
    notes.push_back(strf("Run %d of this server and share the requests out in turn.",
                         trials[best].settings.replicas));
  if (trials[best].settings.kv)
    notes.push_back(strf("--kv %s keeps K and V in 8 bits: measure what that does to answers.",
                         name_of(kKvTypes, trials[best].settings.kv)));
  notes.push_back(split_line(split));
  if (price > 0) notes.push_back(strf("Prices assume $%.2f per hour and device.", price));
  return notes;
}

// What the settings of the first trial are called: by whether the user has set any that are tried.
const char* name_of_given(const PlanOptions& options) {
  constexpr const char* kTried[] = {"--preset",       "--budget",   "--chunk",
                                    "--mixed-budget", "--max-seqs", "--kv"};
  const bool set = std::ranges::any_of(options.given, [&](const GivenOption& o) {
    return std::ranges::find(kTried, o.name) != std::end(kTried);
  });
  return set || options.replicas > 1 ? "The settings as given" : "The defaults";
}

// The search's last word, for programs.
json::object verdict_json(const PlanChoice& choice,
                          const TrialGoal& goal,
                          const std::vector<std::string>& words,
                          bool gpu) {
  json::array needed;
  for (const NeededSetting& n : choice.needed) {
    json::object one{{"flags", option_words(setting_options(n.setting, gpu))},
                     {"replicas", n.setting.replicas}};
    if (n.without) one["without"] = *n.without;
    needed.push_back(std::move(one));
  }
  return json::object{{"defaults_are_best", choice.best == 0},
                      {"verdict", words[0]},
                      {"words", json::array(words.begin(), words.end())},
                      {"margin_rate", goal.error.rate},
                      {"margin_latency", goal.error.latency},
                      {"nearest", choice.nearest},
                      {"needed", std::move(needed)}};
}

// The simulation of the settings as given.
struct FirstRun {
  double simulated, took;  // seconds; `took` of one core
  uint64_t steps;
};

json::object plan_json(const PlanPage& page,
                       const PlanTarget& target,
                       const FirstRun& run,
                       const SplitEstimate& split,
                       const SearchResult& found) {
  json::array tried;
  for (const Trial& t : found.trials) tried.push_back(trial_json(t));
  return json::object{{"model", page.model},
                      {"device", page.device},
                      {"step_cost", page.cost},
                      {"step_cost_measured", target.measured()},
                      {"workload", page.workload},
                      {"slo", page.slo},
                      {"simulated_s", run.simulated},
                      {"cpu_s", run.took},
                      {"steps", run.steps},
                      {"best", found.choice.best},
                      {"command", page.command},
                      {"prefill_requests_per_s", split.prefill},
                      {"decode_requests_per_s", split.decode},
                      {"trials", std::move(tried)}};
}

void print_plan(const PlanPage& page, const FirstRun& run, const SearchResult& found, bool price) {
  std::printf("%s on %s; %s%s%s\nStep costs %s.\n", page.model.c_str(), page.device.c_str(),
              page.workload.c_str(), page.slo.empty() ? "" : "; objectives ", page.slo.c_str(),
              page.cost.c_str());
  std::printf(
      "Simulated %.0f s, %llu steps, in %.2f s of one core: %.0f times real time, %.1f us a "
      "step.\n\n",
      run.simulated, static_cast<unsigned long long>(run.steps), run.took,
      run.took > 0 ? run.simulated / run.took : 0,
      run.took * 1e6 / static_cast<double>(std::max<uint64_t>(run.steps, 1)));
  print_trials(found.trials, found.choice.best, price);
  std::printf("TTFT and TPOT in ms, E2E in s; goodput: requests/s that keep the objectives.\n\n");
  for (const std::string& note : page.notes) std::printf("%s\n", note.c_str());
  std::printf("\n%s\n", page.command.c_str());
  for (const Trial& t : found.trials) {
    if (t.commands.empty() || !t.on_front) continue;
    std::printf("\n%s:\n", replica_words(t.settings).c_str());
    for (const std::string& line : t.commands) std::printf("%s\n", line.c_str());
  }
}

}  // namespace

int cmd_plan(const PlanOptions& o) {
  Result<Slo> slo = parse_slo(o.slo);
  if (!slo) return report(slo.error());
  Result<std::vector<SimRequest>> workload = plan_workload(o.workload);
  if (!workload) return report(workload.error());
  Result<PlanTarget> target = PlanTarget::open(o.engine, o.on);
  if (!target) return report(target.error());
  const TrialGoal goal{*slo, target->price(), prediction_error(target->cost_error()),
                       o.max_replicas.value_or(kMostReplicas), o.link};
  PlanSettings given;
  given.replicas = o.replicas;
  const double begin = cpu_seconds();
  Result<Trial> first = run_trial(*target, given, *workload, goal);
  if (!first) return report(first.error());
  const double took = cpu_seconds() - begin;
  if (first->figures.refused == first->figures.requests)
    return report(Error{400,
                        "no request of the workload fits the context: raise --ctx, or lower "
                        "the lengths (--length-scale)"});
  const FirstRun run{first->figures.elapsed * o.replicas, took, first->figures.steps};
  SearchResult found;
  std::vector<std::string> words;
  if (o.search) {
    StatusLine status(!o.engine.quiet);
    found = search_settings(*target, std::move(*first), *workload, goal,
                            [&](size_t n) { status.show(strf("settings tried: %zu", n)); });
    words = choice_words(found.trials, found.choice, goal, name_of_given(o), target->is_gpu());
  } else {
    found.trials.push_back(std::move(*first));
  }
  const std::vector<Trial>& trials = found.trials;
  const size_t best = found.choice.best;
  Result<PlanSetup> setup = target->setup(trials[best].settings);
  if (!setup) return report(setup.error());
  PlanPage page;
  page.model = o.engine.model, page.device = target->device(), page.cost = target->source();
  page.workload = workload_name(o.workload), page.slo = o.slo;
  std::vector<GivenOption> engine = o.given;
  engine.push_back({"--device", {target->is_gpu() ? "cuda" : "cpu"}});
  for (Trial& t : found.trials)
    if (t.settings.prefill > 0)
      t.commands =
          split_commands(target->model(), engine, setting_options(t.settings, target->is_gpu()),
                         t.settings.prefill, t.settings.replicas - t.settings.prefill);
  page.command = serve_command(target->model(), engine,
                               setting_options(trials[best].settings, target->is_gpu()));
  const SplitEstimate split = estimate_split(setup->sim, *workload, *slo);
  page.notes = words;
  if (found.split) page.notes.push_back(split_words(found, goal));
  for (std::string& note : plan_notes(trials, best, split, goal.price))
    page.notes.push_back(std::move(note));
  if (!o.html.empty()) {
    if (auto ok = write_plan_file(o.html, plan_html(page, trials, best)); !ok)
      return report(ok.error());
  }
  if (o.json) {
    json::object j = plan_json(page, *target, run, split, found);
    if (o.search) j["choice"] = verdict_json(found.choice, goal, words, target->is_gpu());
    std::printf("%s\n", plain_json(j).c_str());
  } else {
    print_plan(page, run, found, goal.price > 0);
  }
  return kExitOk;
}

int cmd_plan_calibrate(const CalibrateOptions& o) {
  if (!o.out.empty()) {
    // Before a minute of work: can it be written?
    std::ofstream out(o.out, std::ios::app);
    if (!out) return report(Error{400, strf("cannot write %s", quote(o.out, 400).c_str())});
  }
  Result<std::unique_ptr<Session>> session = open_session(calibration_options(o.engine));
  if (!session) return report(session.error());
  StatusLine status(!o.engine.quiet);
  Result<CostFile> file = calibrate(**session, o.limit, [&](const std::string& what, double share) {
    status.show(strf("measuring steps: %s %s", progress_bar(share).c_str(), what.c_str()));
  });
  status.clear();
  if (!file) return report(file.error());
  if (o.out.empty()) {
    std::printf("%s", cost_to_json(*file).c_str());
  } else if (auto ok = write_plan_file(o.out, cost_to_json(*file)); !ok) {
    return report(ok.error());
  }
  if (!o.engine.quiet)
    tell(strf("%d steps; the fit is within %.1f %% for half of them, %.1f %% for nine in ten",
              file->num_steps, file->error_p50 * 100, file->error_p90 * 100));
  return kExitOk;
}

}  // namespace sluice
