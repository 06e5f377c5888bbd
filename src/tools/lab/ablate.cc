// sluice bench ablate: each technique on and off, where its bottleneck exists.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "base/json.h"
#include "base/str.h"
#include "tools/commands.h"
#include "tools/lab/experiments.h"
#include "tools/lab/files.h"
#include "tools/lab/lab.h"
#include "tools/plot.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

constexpr const char* kWaterfall = "waterfall";

struct AblationResult {
  const Experiment* experiment = nullptr;
  Spread off, on, gain, beside_off, beside_on;
  bool same_output = true;  // both sides gave the same tokens

  const char* judged() const { return verdict(gain.median, experiment->least, experiment->most); }
};

struct RungResult {
  const Rung* rung = nullptr;
  Spread rate;  // requests/s
};

// How long a prompt takes alone: the least of five, one after another, since the first of an engine
// waits for its memory.
Result<double> seconds_of_prompt(LabSetup setup, int tokens, uint64_t seed) {
  setup.engine.scheduler.max_seqs = 1;
  Result<LabRun> run = run_lab(setup, equal_requests(5, tokens, 1), seed);
  if (!run) return run.error();
  double before = 0, least = 0;  // all come at 0
  for (const TokenTimes& t : run->times) {
    const double took = t.ttft() - before;
    least = least == 0 ? took : std::min(least, took);
    before = t.ttft();
  }
  return least;
}

Result<AblationResult> run_pairs(const Experiment& e, const BenchAblateOptions& o) {
  LabSetup sides[2] = {lab_setup(o.lab.model, o.lab.format, o.lab.threads), {}};
  if (e.both) e.both(sides[0]);
  sides[1] = sides[0];
  e.turn_off(sides[0]);
  e.turn_on(sides[1]);
  LabWorkload workload = e.workload();
  if (e.unit_prompt > 0) {
    Result<double> unit = seconds_of_prompt(sides[0], e.unit_prompt, o.lab.seed);
    if (!unit) return unit.error();
    for (LabRequest& r : workload) r.at *= *unit;
  }
  const bool more = figure_info(e.figure).more_is_better;
  std::vector<double> figures[2], beside[2], gains;
  AblationResult r;
  r.experiment = &e;
  for (int pair = 0; pair < o.pairs; ++pair) {
    double now[2] = {};
    uint64_t digests[2] = {};
    for (int k = 0; k < 2; ++k) {
      const int side = (pair + k) % 2;  // who goes first takes turns
      Result<LabRun> run = run_lab(sides[side], workload, o.lab.seed);
      if (!run) return run.error();
      now[side] = figure_of(*run, e.figure);
      digests[side] = run->digest;
      figures[side].push_back(now[side]);
      beside[side].push_back(figure_of(*run, e.beside));
    }
    const double off = std::max(now[0], 1e-12), on = std::max(now[1], 1e-12);
    gains.push_back(more ? on / off : off / on);
    r.same_output = r.same_output && digests[0] == digests[1];
  }
  r.off = spread_of(figures[0]);
  r.on = spread_of(figures[1]);
  r.beside_off = spread_of(beside[0]);
  r.beside_on = spread_of(beside[1]);
  r.gain = spread_of(gains);
  return r;
}

Result<std::vector<RungResult>> run_waterfall(const BenchAblateOptions& o, StatusLine& status) {
  const LabWorkload workload = waterfall_workload();
  const std::span<const Rung> rungs = waterfall_rungs();
  std::vector<std::vector<double>> rates(rungs.size());
  for (int pass = 0; pass < o.pairs; ++pass) {
    LabSetup setup = lab_setup(o.lab.model, o.lab.format, o.lab.threads);
    for (size_t i = 0; i < rungs.size(); ++i) {
      status.show(strf("waterfall, pass %d of %d: %s", pass + 1, o.pairs, rungs[i].name), true);
      rungs[i].apply(setup);
      Result<LabRun> run = run_lab(setup, workload, o.lab.seed);
      if (!run) return run.error();
      rates[i].push_back(figure_of(*run, Figure::requests_per_s));
    }
  }
  std::vector<RungResult> out;
  for (size_t i = 0; i < rungs.size(); ++i) out.push_back({&rungs[i], spread_of(rates[i])});
  return out;
}

std::string gain_text(const Spread& g) {
  return strf("%.2f x (%.2f to %.2f)", g.median, g.least, g.most);
}

std::string arrow(const Spread& a, const Spread& b, Figure f) {
  return strf("%s %s → %s", figure_info(f).name, figure_text(a.median, f).c_str(),
              figure_text(b.median, f).c_str());
}

std::string ablation_svg(const std::vector<RungResult>& rungs) {
  BarChart chart{"From naive to everything on: requests/s, each bar adds to all above",
                 "requests/s",
                 true,
                 true,
                 {}};
  for (size_t i = 0; i < rungs.size(); ++i) {
    const double rate = rungs[i].rate.median;
    const double first = rungs[0].rate.median, before = i > 0 ? rungs[i - 1].rate.median : rate;
    chart.bars.push_back({strf("%s (%s)", rungs[i].rung->name, rungs[i].rung->row), rate,
                          strf("%.1f  (%.2f x, in all %.1f x)", rate, rate / before, rate / first),
                          rate >= 0.97 * before ? 0 : 7});
  }
  return svg_bars(chart);
}

std::string ablation_markdown(const BenchAblateOptions& o,
                              const std::vector<AblationResult>& results,
                              const std::vector<RungResult>& rungs,
                              const std::string& machine,
                              double elapsed) {
  std::string command = "sluice bench ablate --out docs";
  if (o.pairs != BenchAblateOptions().pairs) command += strf(" --pairs %d", o.pairs);
  if (o.full) command += " --full";
  const LabOptions defaults;
  if (o.lab.model != defaults.model) command += " --model " + o.lab.model;
  if (o.lab.format != defaults.format) command += " --format " + o.lab.format;
  for (size_t i = 0; i < o.only.size(); ++i) command += (i > 0 ? "," : " --only ") + o.only[i];
  std::string out = strf(
      "# What each technique does here\n\nMade by `%s` in %.0f s; do not edit. Machine: %s. Model: "
      "`%s`, %s. Every row is the median of %d pairs of runs, off and on taking turns to go first, "
      "with the least and the most; above 1 is better. The ids are rows of "
      "[techniques.md](techniques.md).\n\n",
      command.c_str(), elapsed, machine.c_str(), o.lab.model.c_str(), o.lab.format.c_str(),
      o.pairs);
  out +=
      "| Technique | Claim | Conditions | Off → on | Effect | Beside it | Expected | Verdict "
      "|\n|---|---|---|---|---:|---|---|---|\n";
  for (const AblationResult& r : results) {
    const Experiment& e = *r.experiment;
    out += strf("| %s (%s) | %s | %s | `%s` → `%s` | %s: **%s** | %s | %s | %s |\n", e.technique,
                e.row, e.claim, e.conditions, e.off, e.on, arrow(r.off, r.on, e.figure).c_str(),
                gain_text(r.gain).c_str(), arrow(r.beside_off, r.beside_on, e.beside).c_str(),
                e.expectation,
                r.same_output ? r.judged() : strf("%s; tokens differ", r.judged()).c_str());
  }
  if (rungs.empty()) return out;
  out +=
      "\n## From naive to everything on\n\n24 requests with log-normal outputs (median 16, at most "
      "96) and prompts of 80 tokens, 64 of them shared by half of the requests, in 96 KV blocks of "
      "16 with a context of 512. Each line adds to those above it.\n\n"
      "![requests per second by technique](images/ablation.svg)\n\n"
      "| | requests/s (least to most) | of the line above | in all |\n|---|---:|---:|---:|\n";
  for (size_t i = 0; i < rungs.size(); ++i) {
    const Spread& r = rungs[i].rate;
    out += strf("| %s (%s) | %.1f (%.1f to %.1f) | %.2f x | %.1f x |\n", rungs[i].rung->name,
                rungs[i].rung->row, r.median, r.least, r.most,
                i > 0 ? r.median / rungs[i - 1].rate.median : 1.0, r.median / rungs[0].rate.median);
  }
  return out;
}

json::object spread_json(const Spread& s) {
  return {{"median", s.median}, {"least", s.least}, {"most", s.most}};
}

json::object ablation_json(const BenchAblateOptions& o,
                           const std::vector<AblationResult>& results,
                           const std::vector<RungResult>& rungs,
                           const std::string& machine,
                           double elapsed) {
  json::array rows, bars;
  for (const AblationResult& r : results) {
    const Experiment& e = *r.experiment;
    rows.push_back(json::object{{"name", e.name},
                                {"row", e.row},
                                {"technique", e.technique},
                                {"claim", e.claim},
                                {"conditions", e.conditions},
                                {"off", e.off},
                                {"on", e.on},
                                {"figure", figure_info(e.figure).name},
                                {"off_value", spread_json(r.off)},
                                {"on_value", spread_json(r.on)},
                                {"gain", spread_json(r.gain)},
                                {"beside", figure_info(e.beside).name},
                                {"beside_off", spread_json(r.beside_off)},
                                {"beside_on", spread_json(r.beside_on)},
                                {"same_output", r.same_output},
                                {"expected", json::array{e.least, e.most}},
                                {"expectation", e.expectation},
                                {"verdict", r.judged()}});
  }
  for (const RungResult& r : rungs)
    bars.push_back(json::object{
        {"name", r.rung->name}, {"row", r.rung->row}, {"requests_per_s", spread_json(r.rate)}});
  return {{"machine", machine},          {"model", o.lab.model},
          {"format", o.lab.format},      {"pairs", o.pairs},
          {"elapsed_s", elapsed},        {"experiments", std::move(rows)},
          {"waterfall", std::move(bars)}};
}

Result<void> check_only(const std::vector<std::string>& only) {
  for (const std::string& name : only) {
    bool known = name == kWaterfall;
    for (const Experiment& e : experiments()) known = known || name == e.name;
    if (!known)
      return Error{400,
                   strf("--only %s: no such experiment; --list names them", quote(name).c_str())};
  }
  return {};
}

void list_experiments() {
  for (const Experiment& e : experiments())
    std::printf("%-18s %-4s %s%s\n", e.name, e.row, e.technique, e.full ? " (--full)" : "");
  std::printf("%-18s %-4s from naive to everything on\n", kWaterfall, "");
}

}  // namespace

int cmd_bench_ablate(const BenchAblateOptions& o) {
  if (auto ok = check_only(o.only); !ok) return report(ok.error());
  if (o.list) {
    list_experiments();
    return kExitOk;
  }
  auto wanted = [&](const char* name, bool full) {
    if (o.only.empty()) return o.full || !full;
    return std::find(o.only.begin(), o.only.end(), name) != o.only.end();
  };
  const auto begin = std::chrono::steady_clock::now();
  auto so_far = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const std::string machine = machine_line(o.lab.threads);
  StatusLine status(!o.lab.quiet);
  int exit_code = kExitOk;
  std::vector<AblationResult> results;
  for (const Experiment& e : experiments()) {
    if (!wanted(e.name, e.full)) continue;
    status.show(strf("%s: %s", e.name, e.technique), true);
    Result<AblationResult> r = run_pairs(e, o);
    status.clear();
    if (!r) {  // the others are worth having all the same
      exit_code = report(Error{r.error().code, strf("%s: %s", e.name, r.error().message.c_str())});
      continue;
    }
    if (!o.lab.quiet)
      std::fprintf(stderr, "%4.0f s  %-18s %s: %s, %s\n", so_far(), e.name,
                   arrow(r->off, r->on, e.figure).c_str(), gain_text(r->gain).c_str(), r->judged());
    results.push_back(*r);
  }
  std::vector<RungResult> rungs;
  if (wanted(kWaterfall, false)) {
    Result<std::vector<RungResult>> r = run_waterfall(o, status);
    status.clear();
    if (r) {
      rungs = *r;
    } else {
      exit_code = report(r.error());
    }
  }
  const double elapsed = so_far();
  const std::string markdown = ablation_markdown(o, results, rungs, machine, elapsed);
  const std::string json = plain_json(ablation_json(o, results, rungs, machine, elapsed)) + "\n";
  std::fputs((o.lab.json ? json : markdown).c_str(), stdout);
  if (o.lab.out.empty()) return exit_code;
  auto written = write_result(o.lab.out, "ablation.md", markdown);
  if (written) written = write_result(o.lab.out, "ablation.json", json);
  if (written && !rungs.empty())
    written = write_result(o.lab.out, "images/ablation.svg", svg_file(ablation_svg(rungs)));
  return written ? exit_code : report(written.error());
}

}  // namespace sluice
