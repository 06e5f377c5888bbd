// sluice bench curve: throughput against latency, a point per token budget.
#include <algorithm>
#include <cstdio>

#include "base/json.h"
#include "base/metrics.h"
#include "base/str.h"
#include "core/policy.h"
#include "core/step_time_model.h"
#include "tools/commands.h"
#include "tools/lab/files.h"
#include "tools/lab/lab.h"
#include "tools/lab/run.h"
#include "tools/plot.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

struct CurvePoint {
  std::string line;
  int budget = 0;
  double rate = 0;                             // requests/s
  double latency = 0, inference = 0, itl = 0;  // seconds; means over steps, ITL p50
  double itl_p99 = 0, ttft_p50 = 0;
  LimitShares shares;
  std::string wde;
};

// "Step time depends only on the budget": a fit by tokens alone, and one by all terms.
struct StepFit {
  std::string line;
  StepTimeModel by_tokens, by_all;
};

Result<LabSetup> curve_setup(const BenchCurveOptions& o, const std::string& line, int budget) {
  LabSetup s = lab_setup(o.lab.model, o.lab.format, o.lab.threads);
  SchedulerConfig& c = s.engine.scheduler;
  c.budget = budget;
  c.max_seqs = std::max(budget, 1);
  c.prefix_cache = false;
  if (std::optional<Pipeline> p = value_named(kPipelines, line)) {
    c.pipeline = *p;
  } else if (auto ok = apply_preset(line, c); !ok) {
    return Error{400, strf("--lines %s: name a --pipeline or a --preset", quote(line).c_str())};
  }
  return s;
}

double chosen_latency(const CurvePoint& p, CurveLatency which) {
  switch (which) {
    case CurveLatency::inference:
      return p.inference;
    case CurveLatency::itl:
      return p.itl;
    case CurveLatency::latency:
      break;
  }
  return p.latency;
}

const char* latency_words(CurveLatency which) {
  switch (which) {
    case CurveLatency::inference:
      return "inference time (end - begin of a step), mean";
    case CurveLatency::itl:
      return "time between a request's tokens, median";
    case CurveLatency::latency:
      break;
  }
  return "latency (finish - scheduled of a step), mean";
}

const char* latency_title(CurveLatency which) {
  switch (which) {
    case CurveLatency::inference:
      return "Inference time of a step";
    case CurveLatency::itl:
      return "Time between tokens";
    case CurveLatency::latency:
      break;
  }
  return "Latency of a step";
}

CurvePoint reduce_point(const LabRun& run,
                        const std::string& line,
                        int budget,
                        const BenchLimits& limits) {
  CurvePoint p;
  p.shares = shares_of(run, limits);
  p.line = line;
  p.budget = budget;
  p.rate = figure_of(run, Figure::requests_per_s);
  const StepMeans means = step_means(run.steps);
  p.latency = means.latency;
  p.inference = means.inference;
  p.itl = figure_of(run, Figure::itl_p50) / 1e3;
  p.itl_p99 = figure_of(run, Figure::itl_p99) / 1e3;
  p.ttft_p50 = figure_of(run, Figure::ttft_p50) / 1e3;
  p.wde = wde_line(budget, run.num_requests, run.elapsed, means);
  return p;
}

std::string curve_csv(const std::vector<CurvePoint>& points) {
  std::string out =
      "line,budget,requests_per_s,latency_ms,inference_ms,itl_p50_ms,itl_p99_ms,ttft_p50_ms,"
      "mfu_percent,sol_percent\n";
  for (const CurvePoint& p : points)
    out += strf("%s,%d,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f,%s,%s\n", p.line.c_str(), p.budget, p.rate,
                p.latency * 1e3, p.inference * 1e3, p.itl * 1e3, p.itl_p99 * 1e3, p.ttft_p50 * 1e3,
                p.shares.percent(p.shares.mfu).c_str(), p.shares.percent(p.shares.sol).c_str());
  return out;
}

std::string fit_text(const StepFit& f) {
  const StepTimeModel::Terms &t = f.by_tokens.coefficients(), &a = f.by_all.coefficients();
  return strf(
      "%-14s step time = %.3f ms + %.2f us x tokens (R2 %.3f); with attention: %.3f ms + %.2f us x "
      "tokens + %.1f ns x context + %.2f ns x pairs (R2 %.3f); %llu steps\n",
      f.line.c_str(), t[0] * 1e3, t[1] * 1e6, f.by_tokens.r_squared(), a[0] * 1e3, a[1] * 1e6,
      a[2] * 1e9, a[3] * 1e9, f.by_all.r_squared(),
      static_cast<unsigned long long>(f.by_all.count()));
}

Plot curve_plot(const BenchCurveOptions& o, const std::vector<CurvePoint>& points) {
  Plot plot{"", "requests/s", "ms", false, true, {}};
  plot.title = strf("%s by throughput; lower right is better", latency_title(o.latency));
  for (size_t i = 0; i < o.lines.size(); ++i) {
    PlotSeries s{o.lines[i], {}, false, static_cast<int>(i), {}};
    for (const CurvePoint& p : points) {
      if (p.line != o.lines[i]) continue;
      s.points.emplace_back(p.rate, chosen_latency(p, o.latency) * 1e3);
      s.labels.push_back(std::to_string(p.budget));
    }
    plot.series.push_back(std::move(s));
  }
  return plot;
}

Plot steps_plot(const std::vector<std::pair<double, double>>& steps) {
  PlotSeries dots{"steps", {}, true, 0, {}};
  const size_t every = steps.size() / 4000 + 1;
  for (size_t i = 0; i < steps.size(); i += every) dots.points.push_back(steps[i]);
  return {"Step time by tokens of the step", "tokens", "ms", false, false, {std::move(dots)}};
}

std::string curve_html(const BenchCurveOptions& o,
                       const std::vector<CurvePoint>& points,
                       const std::vector<StepFit>& fits,
                       const std::vector<std::pair<double, double>>& steps,
                       const std::string& machine) {
  std::string out =
      "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
      "content='width=device-width'><title>Throughput against latency</title><style>" +
      page_style() + "</style><h1>Throughput against latency</h1>";
  out += strf(
      "<p>%s, %s; %d requests at once, %d tokens in, %d out; as many slots as the budget; best of "
      "%d. %s. A point per token budget. Shown: %s. A step of overlap is scheduled while the one "
      "before it "
      "runs, which this latency counts and a request does not see: compare time between "
      "tokens.</p>",
      escape_html(o.lab.model).c_str(), escape_html(o.lab.format).c_str(), o.requests, o.input,
      o.output, o.repeat, escape_html(machine).c_str(), latency_words(o.latency));
  out += "<div style='max-width:860px'>" + svg_plot(curve_plot(o, points)) +
         "</div><h2>Beside it</h2><div class=plots>";
  Plot tail{"99th percentile between tokens", "requests/s", "ms", false, true, {}};
  for (size_t i = 0; i < o.lines.size(); ++i) {
    PlotSeries s{o.lines[i], {}, false, static_cast<int>(i), {}};
    for (const CurvePoint& p : points)
      if (p.line == o.lines[i]) s.points.emplace_back(p.rate, p.itl_p99 * 1e3);
    tail.series.push_back(std::move(s));
  }
  out += svg_plot(tail) + svg_plot(steps_plot(steps)) + "</div>";
  out +=
      "<table><tr><th>line<th>budget<th>requests/s<th>latency, ms<th>inference, ms<th>ITL p50, "
      "ms<th>p99<th>TTFT p50, ms<th>MFU, %<th>SOL, %</tr>";
  for (const CurvePoint& p : points)
    out += strf("<tr><td>%s<td>%d<td>%.2f<td>%.2f<td>%.2f<td>%.2f<td>%.2f<td>%.1f<td>%s<td>%s</tr>",
                escape_html(p.line).c_str(), p.budget, p.rate, p.latency * 1e3, p.inference * 1e3,
                p.itl * 1e3, p.itl_p99 * 1e3, p.ttft_p50 * 1e3,
                p.shares.percent(p.shares.mfu).c_str(), p.shares.percent(p.shares.sol).c_str());
  out += "</table>";
  const std::string peak = points.empty() ? "" : points[0].shares.peak;
  out += strf(
      "<p>MFU: operations, of the peak (%s). SOL, the speed of light: each step at least reads the "
      "weights and its K and V, and computes its operations.</p>",
      peak.empty() ? "not known: others used the machine while it was measured"
                   : escape_html(peak).c_str());
  out += "<h2>Step time</h2>";
  for (const StepFit& f : fits) out += "<p>" + escape_html(fit_text(f)) + "</p>";
  return out + "</html>\n";
}

}  // namespace

int cmd_bench_curve(const BenchCurveOptions& o) {
  for (const std::string& line : o.lines) {
    if (auto ok = curve_setup(o, line, 32); !ok) return report(ok.error());
  }
  const std::string machine = machine_line(o.lab.threads);
  const LabWorkload workload = equal_requests(o.requests, o.input, o.output);
  const BenchLimits limits = run_limits(o.lab.threads, false, o.lab.quiet);
  StatusLine status(!o.lab.quiet);
  std::vector<CurvePoint> points;
  std::vector<StepFit> fits;
  std::vector<std::pair<double, double>> steps;  // tokens, ms
  for (const std::string& line : o.lines) fits.emplace_back().line = line;
  for (int budget : o.budgets) {
    std::vector<CurvePoint> best(o.lines.size());
    for (int pass = 0; pass < o.repeat; ++pass) {
      for (size_t i = 0; i < o.lines.size(); ++i) {
        status.show(strf("budget %d, %s", budget, o.lines[i].c_str()), true);
        Result<LabRun> run =
            run_lab(curve_setup(o, o.lines[i], budget).value(), workload, o.lab.seed);
        if (!run) return report(run.error());
        CurvePoint p = reduce_point(*run, o.lines[i], budget, limits);
        if (p.rate > best[i].rate) best[i] = std::move(p);
        for (const StepSample& s : run->steps) {
          fits[i].by_all.add(s.work, s.inference);
          fits[i].by_tokens.add(
              {.tokens = s.work.tokens, .sampled = 0, .context = 0, .attended = 0}, s.inference);
          steps.emplace_back(s.work.tokens, s.inference * 1e3);
        }
      }
    }
    status.clear();
    for (CurvePoint& p : best) {
      if (!o.lab.quiet) std::fprintf(stderr, "%-14s %s\n", p.line.c_str(), p.wde.c_str());
      points.push_back(std::move(p));
    }
  }
  std::fputs(curve_csv(points).c_str(), stdout);
  for (const StepFit& f : fits) std::printf("# %s", fit_text(f).c_str());
  if (o.lab.out.empty()) return kExitOk;
  auto written = write_result(o.lab.out, "curve.csv", curve_csv(points));
  if (written)
    written = write_result(o.lab.out, "curve.svg", svg_file(svg_plot(curve_plot(o, points))));
  if (written)
    written = write_result(o.lab.out, "curve.html", curve_html(o, points, fits, steps, machine));
  return written ? kExitOk : report(written.error());
}

}  // namespace sluice
