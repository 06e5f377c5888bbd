// sluice bench ladder: GPT-2 from the naive loop to a quantised server, as a course would teach it.
#include <cstdio>

#include "base/json.h"
#include "base/str.h"
#include "core/policy.h"
#include "tools/commands.h"
#include "tools/lab/files.h"
#include "tools/lab/lab.h"
#include "tools/lab/run.h"
#include "tools/plot.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

constexpr int kLadderRequests = 32, kLadderSlots = 8, kLadderPrompt = 8;

struct LadderStep {
  const char* name;
  const char* what;
  void (*apply)(LabSetup&);
};

// Each changes what those before it have set up.
constexpr LadderStep kLadder[] = {
    {"no cache", "one request at a time, the whole text again for every token",
     [](LabSetup& s) {
       s.kv_cache = false;
       s.engine.scheduler.max_seqs = 1;
       s.engine.scheduler.prefix_cache = false;
       apply_preset("static", s.engine.scheduler).value();
     }},
    {"KV cache", "one request at a time, one token per step",
     [](LabSetup& s) { s.kv_cache = true; }},
    {"static batch", "eight at a time, until the longest has ended",
     [](LabSetup& s) { s.engine.scheduler.max_seqs = kLadderSlots; }},
    {"continuous", "who ends makes room for the next",
     [](LabSetup& s) { apply_preset("orca", s.engine.scheduler).value(); }},
    {"quantised", "int8 weights and activations, made at load",
     [](LabSetup& s) { s.engine.quantize = Quantize::w8a8; }},
};

struct LadderResult {
  const LadderStep* step = nullptr;
  Spread tokens_per_s, latency;  // ms
  double num_steps = 0;
  LimitShares shares;
};

// Milliseconds of each token after the first, of one request.
Result<std::vector<std::pair<double, double>>> gaps_of_one(const LabSetup& setup,
                                                           int output,
                                                           uint64_t seed) {
  Result<LabRun> run = run_lab(setup, equal_requests(1, kLadderPrompt, output), seed);
  if (!run) return run.error();
  const std::vector<double>& t = run->times[0].tokens;
  std::vector<std::pair<double, double>> out;
  for (size_t i = 1; i < t.size(); ++i)
    out.emplace_back(static_cast<double>(kLadderPrompt) + static_cast<double>(i),
                     (t[i] - t[i - 1]) * 1e3);
  return out;
}

struct LadderPlots {
  Plot growth{
      "Time per token: the cache keeps it flat", "tokens of context", "ms", false, false, {}};
  Plot batch{
      "Batch size: throughput against latency", "output tokens/s", "ms per token", false, true, {}};
};

Result<LadderPlots> measure_plots(const BenchLadderOptions& o, StatusLine& status) {
  LadderPlots plots;
  LabSetup setup = lab_setup(o.lab.model, o.lab.format, o.lab.threads);
  for (size_t i = 0; i < 2; ++i) {
    kLadder[i].apply(setup);
    status.show(strf("time per token, %s", kLadder[i].name), true);
    auto gaps = gaps_of_one(setup, o.full ? 192 : 96, o.lab.seed);
    if (!gaps) return gaps.error();
    plots.growth.series.push_back({kLadder[i].name, *gaps, false, static_cast<int>(i), {}});
  }
  PlotSeries sizes{"batch size", {}, false, 2, {}};
  apply_preset("orca", setup.engine.scheduler).value();
  for (int batch : {1, 2, 4, 8, 16, 32}) {
    status.show(strf("batch of %d", batch), true);
    setup.engine.scheduler.max_seqs = batch;
    Result<LabRun> run = run_lab(setup, equal_requests(batch, kLadderPrompt, 24), o.lab.seed);
    if (!run) return run.error();
    sizes.points.emplace_back(figure_of(*run, Figure::tokens_per_s),
                              figure_of(*run, Figure::itl_p50));
    sizes.labels.push_back(std::to_string(batch));
  }
  plots.batch.series.push_back(std::move(sizes));
  return plots;
}

BarChart ladder_chart(const BenchLadderOptions& o, const std::vector<LadderResult>& results) {
  BarChart chart{
      strf("%s, %s: output tokens/s, rung by rung", o.lab.model.c_str(), o.lab.format.c_str()),
      "output tokens/s",
      true,
      true,
      {}};
  for (size_t i = 0; i < results.size(); ++i) {
    const double rate = results[i].tokens_per_s.median;
    const double before = i > 0 ? results[i - 1].tokens_per_s.median : rate;
    chart.bars.push_back({results[i].step->name, rate, strf("%.1f  (%.2f x)", rate, rate / before),
                          rate >= 0.97 * before ? 0 : 7});
  }
  return chart;
}

std::string ladder_table(const std::vector<LadderResult>& results) {
  std::string out = strf("%-14s %12s %8s %10s %8s %7s %7s  %s\n", "rung", "tokens/s", "gain",
                         "latency", "steps", "MFU", "of SOL", "");
  for (size_t i = 0; i < results.size(); ++i) {
    const LadderResult& r = results[i];
    const double before = results[i > 0 ? i - 1 : 0].tokens_per_s.median;
    out += strf("%-14s %12.1f %7.2fx %7.0f ms %8.0f %7s %7s  %s\n", r.step->name,
                r.tokens_per_s.median, r.tokens_per_s.median / before, r.latency.median,
                r.num_steps, r.shares.percent(r.shares.mfu).c_str(),
                r.shares.percent(r.shares.sol).c_str(), r.step->what);
  }
  if (!results.empty())
    out += strf("MFU: of %s. SOL, the speed of light: weights, K and V read once per step.\n",
                results[0].shares.peak.empty() ? "a peak that was not measured"
                                               : results[0].shares.peak.c_str());
  return out;
}

std::string ladder_html(const BenchLadderOptions& o,
                        const std::vector<LadderResult>& results,
                        const LadderPlots& plots,
                        const std::string& machine) {
  std::string out =
      "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
      "content='width=device-width'><title>Serving GPT-2, rung by rung</title><style>" +
      page_style() + "</style><h1>Serving GPT-2, rung by rung</h1>";
  out += strf(
      "<p>%s, %s, random weights; %d requests in %d slots, one in eight of %d tokens and the "
      "others "
      "of %d. %s.</p>",
      escape_html(o.lab.model).c_str(), escape_html(o.lab.format).c_str(), kLadderRequests,
      kLadderSlots, o.long_output, o.short_output, escape_html(machine).c_str());
  out += svg_bars(ladder_chart(o, results)) + "<h2>Beside it</h2><div class=plots>" +
         svg_plot(plots.growth) + svg_plot(plots.batch) +
         "</div><table><tr><th>rung<th>tokens/s"
         "<th>mean latency, ms<th>steps<th>MFU, %<th>SOL, %<th class='x'>what</tr>";
  for (const LadderResult& r : results)
    out += strf("<tr><td>%s<td>%.1f<td>%.0f<td>%.0f<td>%s<td>%s<td class='x'>%s</tr>", r.step->name,
                r.tokens_per_s.median, r.latency.median, r.num_steps,
                r.shares.percent(r.shares.mfu).c_str(), r.shares.percent(r.shares.sol).c_str(),
                r.step->what);
  return out + "</table></html>\n";
}

json::object ladder_json(const std::vector<LadderResult>& results, const std::string& machine) {
  json::array rungs;
  for (const LadderResult& r : results) {
    json::object rung{{"name", r.step->name},
                      {"output_tokens_per_s", r.tokens_per_s.median},
                      {"latency_mean_ms", r.latency.median},
                      {"steps", r.num_steps}};
    for (const auto& pair : limit_shares_json(r.shares)) rung[pair.key()] = pair.value();
    rungs.push_back(std::move(rung));
  }
  return {{"machine", machine}, {"rungs", std::move(rungs)}};
}

}  // namespace

int cmd_bench_ladder(const BenchLadderOptions& given) {
  BenchLadderOptions o = given;
  if (o.full) o.long_output = 100, o.short_output = 10;
  const std::string machine = machine_line(o.lab.threads);
  const LabWorkload workload =
      few_long_outputs(kLadderRequests, kLadderPrompt, kLadderSlots, o.long_output, o.short_output);
  const BenchLimits limits = run_limits(o.lab.threads, false, o.lab.quiet);
  StatusLine status(!o.lab.quiet);
  std::vector<LadderResult> results;
  LabSetup setup = lab_setup(o.lab.model, o.lab.format, o.lab.threads);
  for (const LadderStep& step : kLadder) {
    step.apply(setup);
    LadderResult& r = results.emplace_back();
    r.step = &step;
    std::vector<double> rates, latencies;
    for (int i = 0; i < o.repeat; ++i) {
      status.show(strf("%s: %s", step.name, step.what), true);
      Result<LabRun> run = run_lab(setup, workload, o.lab.seed);
      if (!run) return report(run.error());
      rates.push_back(figure_of(*run, Figure::tokens_per_s));
      latencies.push_back(figure_of(*run, Figure::latency_mean));
      r.num_steps = figure_of(*run, Figure::steps);
      r.shares = shares_of(*run, limits);
    }
    r.tokens_per_s = spread_of(rates);
    r.latency = spread_of(latencies);
  }
  status.clear();
  std::fputs(o.lab.json ? (plain_json(ladder_json(results, machine)) + "\n").c_str()
                        : ladder_table(results).c_str(),
             stdout);
  if (o.lab.out.empty()) return kExitOk;
  Result<LadderPlots> plots = measure_plots(o, status);
  if (!plots) return report(plots.error());
  status.clear();
  auto written =
      write_result(o.lab.out, "ladder.svg", svg_file(svg_bars(ladder_chart(o, results))));
  if (written)
    written = write_result(o.lab.out, "ladder.html", ladder_html(o, results, *plots, machine));
  return written ? kExitOk : report(written.error());
}

}  // namespace sluice
