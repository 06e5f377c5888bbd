#include "tools/plan/page.h"

#include "base/metrics.h"
#include "base/str.h"
#include "tools/plot.h"

namespace sluice {

namespace {

constexpr int kPointsOfCdf = 200;
constexpr double kHopeless = 10;  // times the best setting's latency: not plotted

PlotSeries cdf_of(Percentiles& values, const std::string& name, int colour) {
  PlotSeries s{name, {}, false, colour};
  if (values.count() == 0) return s;
  for (int i = 0; i <= kPointsOfCdf; ++i) {
    const double u = static_cast<double>(i) / kPointsOfCdf, q = 1 - (1 - u) * (1 - u);
    s.points.emplace_back(values.at(q) * 1e3, q);
  }
  return s;
}

// The trials whose runs are plotted: the options' own, and the best where that is another.
std::vector<std::pair<const Trial*, std::string>> shown(std::span<const Trial> trials,
                                                        size_t best) {
  std::vector<std::pair<const Trial*, std::string>> out = {{trials.data(), "as given"}};
  if (best != 0) out.emplace_back(&trials[best], "best");
  return out;
}

// Of answers with at least so many tokens.
template <typename Of>
Plot latency_plot(
    const char* title, std::span<const Trial> trials, size_t best, int tokens, const Of& of) {
  Plot p{title, "ms", "share of requests", true, false, {}};
  int colour = 0;
  for (const auto& [trial, name] : shown(trials, best)) {
    Percentiles values;
    for (const SimRun& run : trial->runs)
      for (const SimAnswer& a : run.answers)
        if (!a.refused && a.num_tokens >= tokens) values.add(of(a));
    p.series.push_back(cdf_of(values, name, colour++));
  }
  return p;
}

template <typename Of>
PlotSeries over_moments(const Trial& t, const std::string& name, int colour, const Of& of) {
  PlotSeries s{name, {}, false, colour};
  if (t.runs.empty()) return s;
  for (const SimMoment& m : t.runs[0].moments) s.points.emplace_back(m.at, of(m));
  return s;
}

std::string settings_text(const Trial& t) {
  std::string out = t.flags.empty() ? "as given" : t.flags;
  if (t.settings.replicas > 1) out += ", " + replica_words(t.settings);
  if (t.settings.ways > 1) out += strf(", tensor parallel %d (estimate)", t.settings.ways);
  return out;
}

void append_trial_row(std::string& out, const Trial& t, const char* mark) {
  const PlanFigures& f = t.figures;
  out += strf(
      "<tr><td>%s%s<td>%.1f<td>%.1f<td>%.2f<td>%.2f<td>%.2f<td>%.0f<td>%.2f<td>%.0f<td>%.0f<td>%llu"
      "<td>%s<td>%s</tr>",
      mark, escape_html(settings_text(t)).c_str(), f.ttft.p50 * 1e3, f.ttft.p99 * 1e3,
      f.tpot.p50 * 1e3, f.tpot.p99 * 1e3, f.e2e.p99, f.output_per_s, f.goodput,
      f.share_good() * 100, f.most_kv * 100, static_cast<unsigned long long>(f.preemptions),
      human_bytes(static_cast<uint64_t>(t.memory)).c_str(),
      t.per_million > 0 ? strf("%.2f", t.per_million).c_str() : "–");
}

}  // namespace

std::string plan_html(const PlanPage& page, std::span<const Trial> trials, size_t best) {
  std::string out =
      "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
      "content='width=device-width'><title>Plan for " +
      escape_html(page.model) + "</title><style>" + page_style() +
      "pre{white-space:pre-wrap}table{font-size:.82em}td,th{padding:3px 7px}</style>";
  out += strf("<h1>Plan for %s on %s</h1>", escape_html(page.model).c_str(),
              escape_html(page.device).c_str());
  out += strf("<p>Workload: %s%s%s. Step costs %s. Simulated with the engine's scheduler.</p>",
              escape_html(page.workload).c_str(), page.slo.empty() ? "" : "; objectives ",
              escape_html(page.slo).c_str(), escape_html(page.cost).c_str());
  out += "<h2>Run this</h2><pre>" + escape_html(page.command) + "</pre>";
  const std::string head =
      "<div style='overflow-x:auto'><table><tr><th>settings<th>TTFT p50, ms<th>p99<th>TPOT p50, ms"
      "<th>p99<th>E2E p99, s<th>tokens/s<th>goodput/s<th>good, %<th>KV, %<th>preempted<th>memory"
      "<th>$/M</tr>";
  out += head;
  append_trial_row(out, trials[0], "");
  if (best != 0) append_trial_row(out, trials[best], "<b>best</b> ");
  out += "</table></div>";
  for (const Trial& t : trials) {
    if (t.commands.empty() || !t.on_front) continue;
    out += "<p>" + escape_html(replica_words(t.settings)) + ":</p><pre>";
    for (const std::string& line : t.commands) out += escape_html(line) + "\n";
    out += "</pre>";
  }
  for (const std::string& note : page.notes) out += "<p>" + escape_html(note) + "</p>";

  out += "<h2>Latency, share of requests up to a time</h2><div class=plots>";
  out += svg_plot(latency_plot("Time to first token", trials, best, 1,
                               [](const SimAnswer& a) { return a.ttft(); }));
  out += svg_plot(latency_plot("Time per output token", trials, best, 2,
                               [](const SimAnswer& a) { return a.tpot(); }));
  out += svg_plot(
      latency_plot("Request latency", trials, best, 1, [](const SimAnswer& a) { return a.e2e(); }));
  out += "</div><h2>Over time</h2><div class=plots>";
  for (const auto& [trial, name] : shown(trials, best)) {
    out += svg_plot(
        {"Requests, " + name,
         "s",
         "requests",
         false,
         false,
         {over_moments(*trial, "running", 0, [](const SimMoment& m) { return m.running; }),
          over_moments(*trial, "waiting", 1, [](const SimMoment& m) { return m.waiting; })}});
    out += svg_plot(
        {"KV blocks in use, " + name,
         "s",
         "% of the pool",
         false,
         false,
         {over_moments(*trial, "in use", 2, [](const SimMoment& m) { return m.kv * 100; })}});
  }
  out += "</div>";
  if (trials.size() > 1) {
    // Settings that are hopeless would press all others into a corner.
    const auto scatter = [&](const char* title, const auto& of) {
      PlotSeries all{"tried", {}, true, 3}, front{"on the front", {}, true, 0},
          chosen{"best", {}, true, 1};
      for (const Trial& t : trials) {
        if (of(t) > kHopeless * of(trials[best])) continue;
        (&t == &trials[best] ? chosen
         : t.on_front        ? front
                             : all)
            .points.emplace_back(t.figures.output_per_s, of(t) * 1e3);
      }
      out += svg_plot({title, "output tokens/s", "ms", false, false, {all, front, chosen}});
    };
    out += "<h2>Every setting tried</h2><div class=plots>";
    scatter("Time to first token, p99", [](const Trial& t) { return t.figures.ttft.p99; });
    scatter("Time per output token, p99", [](const Trial& t) { return t.figures.tpot.p99; });
    out += "</div><h2>The front: no other setting is better in everything</h2>" + head;
    for (const Trial& t : trials)
      if (t.on_front || &t == &trials[best])
        append_trial_row(out, t, &t == &trials[best] ? "<b>best</b> " : "");
    out += "</table></div>";
  }
  return out + "</html>\n";
}

}  // namespace sluice
