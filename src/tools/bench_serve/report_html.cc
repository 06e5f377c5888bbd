#include "tools/bench_serve/report_html.h"

#include <algorithm>

#include "base/str.h"
#include "tools/plot.h"

namespace sluice {

namespace {

constexpr size_t kMaxPoints = 240;  // of a line
constexpr size_t kMaxDots = 2000;   // of a scatter plot

PlotSeries cdf(Percentiles& values, const std::string& name, size_t colour) {
  PlotSeries s{name, {}, false, static_cast<int>(colour)};
  if (values.count() == 0) return s;
  for (size_t i = 0; i <= kMaxPoints; ++i) {
    // Denser towards the end, where tails are.
    double u = static_cast<double>(i) / kMaxPoints, q = 1 - (1 - u) * (1 - u);
    s.points.emplace_back(values.at(q) * 1e3, q);
  }
  return s;
}

Plot cdf_plot(const char* title, std::vector<Summary>& runs, Percentiles Summary::*which) {
  Plot p{title, "ms", "share of all", true, false, {}};
  for (size_t i = 0; i < runs.size(); ++i)
    p.series.push_back(cdf(runs[i].*which, runs[i].point.label(), i));
  return p;
}

// Requests in flight, at up to kMaxPoints times.
PlotSeries in_flight(const RunResult& run) {
  double end = 0;
  for (const LoadRecord& r : run.records) end = std::max(end, r.end);
  std::vector<double> begins, ends;
  for (const LoadRecord& r : run.records) {
    begins.push_back(r.begin);
    ends.push_back(r.end);
  }
  std::sort(begins.begin(), begins.end());
  std::sort(ends.begin(), ends.end());
  PlotSeries s{"in flight", {}, false, 0};
  for (size_t i = 0; i <= kMaxPoints; ++i) {
    double t = end * static_cast<double>(i) / kMaxPoints;
    auto upto = [&](const std::vector<double>& v) {
      return std::upper_bound(v.begin(), v.end(), t) - v.begin();
    };
    s.points.emplace_back(t, static_cast<double>(upto(begins) - upto(ends)));
  }
  return s;
}

PlotSeries token_rate(const RunResult& run) {
  PlotSeries s{"chunks/s", {}, false, 2};
  size_t bins = run.tokens_per_bin.size();
  size_t group = std::max<size_t>((bins + kMaxPoints - 1) / kMaxPoints, std::min<size_t>(bins, 5));
  for (size_t at = 0; at + group <= bins && group > 0; at += group) {
    double sum = 0;
    for (size_t i = at; i < at + group; ++i) sum += run.tokens_per_bin[i];
    double width = kBinSeconds * static_cast<double>(group);
    s.points.emplace_back(kBinSeconds * static_cast<double>(at) + width / 2, sum / width);
  }
  return s;
}

PlotSeries over_time(const RunResult& run, bool failed) {
  PlotSeries s{failed ? "failed" : "answered", {}, true, failed ? 7 : 0};
  size_t every = run.records.size() / kMaxDots + 1;
  for (size_t i = 0; i < run.records.size(); ++i) {
    const LoadRecord& r = run.records[i];
    if (failed ? r.failed() : r.ok() && r.first >= 0 && i % every == 0)
      s.points.emplace_back(r.begin, (failed ? r.e2e() : r.ttft()) * 1e3);
    if (s.points.size() > 2 * kMaxDots) break;
  }
  return s;
}

std::string cell(double v, const char* format) { return strf(format, v); }

void append_tables(std::string& out, std::vector<Summary>& runs) {
  out +=
      "<table><tr><th>load<th>sent<th>answered<th>failed<th>requests/s<th>output tokens/s"
      "<th>goodput/s<th>TTFT p50, ms<th>p99<th>ITL p50, ms<th>p99<th>E2E p50, ms<th>p99</tr>";
  for (Summary& s : runs) {
    out += strf("<tr><td>%s<td>%llu<td>%llu<td%s>%llu<td>%.2f<td>%.1f<td>%s",
                escape_html(s.point.label()).c_str(), static_cast<unsigned long long>(s.sent),
                static_cast<unsigned long long>(s.ok), s.failed ? " class=e" : "",
                static_cast<unsigned long long>(s.failed), s.per_second(s.ok),
                s.per_second(s.output_tokens),
                s.has_slo ? cell(s.per_second(s.good), "%.2f").c_str() : "–");
    for (Percentiles* p : {&s.ttft, &s.itl, &s.e2e}) {
      for (double q : {0.5, 0.99})
        out += p->count() ? "<td>" + cell(p->at(q) * 1e3, "%.1f") : "<td>–";
    }
    out += "</tr>";
  }
  out += "</table>";
  for (const Summary& s : runs) {
    for (const auto& [kind, count] : s.failures) {
      auto first = s.first_message.find(kind);
      out += strf("<p class=e>%s: %llu × %s%s%s</p>", escape_html(s.point.label()).c_str(),
                  static_cast<unsigned long long>(count), escape_html(kind).c_str(),
                  first != s.first_message.end() && !first->second.empty() ? ", first: " : "",
                  first != s.first_message.end() ? escape_html(first->second).c_str() : "");
    }
    for (const std::string& w : s.warnings)
      out += strf("<p class=w>%s: %s</p>", escape_html(s.point.label()).c_str(),
                  escape_html(w).c_str());
  }
}

void append_sweep(std::string& out, std::vector<Summary>& runs) {
  if (runs.size() < 2) return;
  out += "<h2>Throughput against latency</h2><div class=plots>";
  auto curve = [&](const char* title, Percentiles Summary::*which) {
    Plot p{title, "output tokens/s", "ms", false, true, {}};
    PlotSeries half{"p50", {}, false, 0}, tail{"p99", {}, false, 1};
    for (Summary& s : runs) {
      if ((s.*which).count() == 0) continue;
      half.points.emplace_back(s.per_second(s.output_tokens), (s.*which).at(0.5) * 1e3);
      tail.points.emplace_back(s.per_second(s.output_tokens), (s.*which).at(0.99) * 1e3);
    }
    p.series = {half, tail};
    out += svg_plot(p);
  };
  curve("Time to first token", &Summary::ttft);
  curve("Inter-token latency", &Summary::itl);
  curve("Request latency", &Summary::e2e);
  out += "</div>";
}

}  // namespace

std::string html_report(const ReportInfo& info,
                        const std::vector<RunResult>& runs,
                        std::vector<Summary>& summaries) {
  std::string out =
      "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
      "content='width=device-width'><title>Load test of " +
      escape_html(info.model) + "</title><style>" + page_style() + "</style>";
  out += "<h1>Load test of " + escape_html(info.model) + "</h1>";
  out += strf("<p>%s, endpoint %s; prompts %s%s%s</p>", escape_html(info.url).c_str(),
              escape_html(info.endpoint).c_str(), escape_html(info.prompts).c_str(),
              info.slo.empty() ? "" : "; objectives ", escape_html(info.slo).c_str());
  append_tables(out, summaries);
  append_sweep(out, summaries);
  out += "<h2>Latency, share of all up to a time</h2><div class=plots>";
  bool streamed = !summaries.empty() && summaries[0].streamed;
  if (streamed) {
    out += svg_plot(cdf_plot("Time to first token", summaries, &Summary::ttft));
    out += svg_plot(cdf_plot("Inter-token latency", summaries, &Summary::itl));
  }
  out += svg_plot(cdf_plot("Request latency", summaries, &Summary::e2e)) + "</div>";
  for (size_t i = 0; i < runs.size(); ++i) {
    out += "<h2>" + escape_html(runs[i].point.label()) + "</h2><div class=plots>";
    out += svg_plot({"Requests in flight", "s", "requests", false, false, {in_flight(runs[i])}});
    if (streamed) {
      out += svg_plot(
          {"Throughput", "s", "chunks with text per s", false, false, {token_rate(runs[i])}});
      std::vector<PlotSeries> dots = {over_time(runs[i], false)};
      if (PlotSeries bad = over_time(runs[i], true); !bad.points.empty()) dots.push_back(bad);
      out += svg_plot({"Time to first token, by time of sending", "s", "ms", false, false, dots});
    }
    out += "</div>";
  }
  return out + "</html>\n";
}

}  // namespace sluice
