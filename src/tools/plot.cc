#include "tools/plot.h"

#include <algorithm>
#include <cmath>

#include "base/str.h"

namespace sluice {

namespace {

constexpr double kWidth = 560, kHeight = 300, kLeft = 64, kRight = 16, kTop = 34, kBottom = 46;
constexpr int kColours = 8;

// Colours, and what the plots' classes mean.
constexpr const char* kPlotStyle = R"(
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2128;--dim:#667;--grid:#e4e7ec;--card:#f7f8fa;
--c0:#2563eb;--c1:#d97706;--c2:#059669;--c3:#db2777;--c4:#7c3aed;--c5:#0891b2;--c6:#65a30d;--c7:#dc2626}
@media(prefers-color-scheme:dark){:root{--bg:#14171c;--fg:#e3e6eb;--dim:#98a1b0;--grid:#2c323c;--card:#1c2027;
--c0:#6ea0ff;--c1:#f5a742;--c2:#34d399;--c3:#f472b6;--c4:#a78bfa;--c5:#22d3ee;--c6:#a3e635;--c7:#f87171}}
.g{stroke:var(--grid)}.t{fill:var(--dim);font:11px system-ui,sans-serif}.h{fill:var(--fg);font:600 13px system-ui,sans-serif}
.l{fill:none;stroke-width:2}
.s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}
.s4{stroke:var(--c4)}.s5{stroke:var(--c5)}.s6{stroke:var(--c6)}.s7{stroke:var(--c7)}
.t.f0,.f0{fill:var(--c0)}.t.f1,.f1{fill:var(--c1)}.t.f2,.f2{fill:var(--c2)}.t.f3,.f3{fill:var(--c3)}
.t.f4,.f4{fill:var(--c4)}.t.f5,.f5{fill:var(--c5)}.t.f6,.f6{fill:var(--c6)}.t.f7,.f7{fill:var(--c7)}
.v{fill:var(--fg);font:600 11px system-ui,sans-serif}.o{fill:var(--grid)}
)";

constexpr const char* kPageStyle = R"(
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1240px;padding:0 1rem}
h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.15rem;margin:2rem 0 .6rem}p{color:var(--dim);margin:.2rem 0}
table{border-collapse:collapse;margin:.8rem 0;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .7rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--grid)}th{color:var(--dim);font-weight:600}
th:first-child,td:first-child,.x{text-align:left}.w{color:var(--c1)}.e{color:var(--c7)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(380px,1fr));gap:1rem}
svg{background:var(--card);border-radius:8px;width:100%;height:auto}
)";

// Data to pixels along one axis.
struct Axis {
  double lo = 0, hi = 1, from = 0, to = 1;
  bool log = false;
  double value(double v) const { return log ? std::log10(std::max(v, 1e-9)) : v; }
  double at(double v) const {
    double a = value(lo), b = value(hi);
    return from + (value(v) - a) / (b > a ? b - a : 1) * (to - from);
  }
};

std::string number(double v) {
  if (v != 0 && std::fabs(v) < 0.01) return strf("%.1e", v);
  if (std::fabs(v) >= 1e6) return strf("%gM", v / 1e6);
  if (std::fabs(v) >= 1e4) return strf("%gk", v / 1e3);
  return strf("%g", v);
}

std::vector<double> log_ticks(double lo, double hi) {
  std::vector<double> out;
  bool wide = std::log10(hi / lo) > 3;
  for (int e = static_cast<int>(std::floor(std::log10(lo))); std::pow(10, e) <= hi; ++e) {
    for (double m : {1.0, 2.0, 5.0}) {
      double v = m * std::pow(10, e);
      if (v >= lo && v <= hi && (m == 1.0 || !wide)) out.push_back(v);
    }
  }
  return out;
}

void find_ranges(const Plot& plot, Axis& x, Axis& y) {
  bool any = false;
  double x_lo = 0, x_hi = 1, y_hi = 0;
  for (const PlotSeries& s : plot.series) {
    for (auto [px, py] : s.points) {
      if (plot.log_x) px = std::max(px, 1e-6);
      x_lo = any ? std::min(x_lo, px) : px;
      x_hi = any ? std::max(x_hi, px) : px;
      y_hi = std::max(y_hi, py);
      any = true;
    }
  }
  if (plot.log_x && !any) x_lo = 0.1;
  if (!plot.log_x) x_lo = std::min(x_lo, 0.0);
  if (x_hi <= x_lo) x_hi = plot.log_x ? x_lo * 10 : x_lo + 1;
  x.lo = x_lo;
  x.hi = x_hi + (plot.mark_points && !plot.log_x ? 0.08 * (x_hi - x_lo) : 0);  // room for labels
  y.lo = 0;
  y.hi = y_hi > 0 ? y_hi * 1.05 : 1;
}

void append_grid(std::string& out, const Plot& plot, const Axis& x, const Axis& y) {
  for (double v : plot.log_x ? log_ticks(x.lo, x.hi) : nice_ticks(x.lo, x.hi, 6)) {
    out += strf("<line class='g' x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f'/>", x.at(v), x.at(v), kTop,
                kHeight - kBottom);
    out += strf("<text class='t' x='%.1f' y='%.1f' text-anchor='middle'>%s</text>", x.at(v),
                kHeight - kBottom + 16, number(v).c_str());
  }
  for (double v : nice_ticks(y.lo, y.hi, 5)) {
    out += strf("<line class='g' x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f'/>", kLeft, kWidth - kRight,
                y.at(v), y.at(v));
    out += strf("<text class='t' x='%.1f' y='%.1f' text-anchor='end'>%s</text>", kLeft - 6,
                y.at(v) + 4, number(v).c_str());
  }
  out += strf("<text class='t' x='%.1f' y='%.1f' text-anchor='middle'>%s</text>",
              (kLeft + kWidth - kRight) / 2, kHeight - 10, escape_html(plot.x_label).c_str());
  out += strf(
      "<text class='t' transform='translate(14,%.1f) rotate(-90)' text-anchor='middle'>%s</text>",
      (kTop + kHeight - kBottom) / 2, escape_html(plot.y_label).c_str());
  out += strf("<text class='h' x='%.1f' y='18'>%s</text>", kLeft, escape_html(plot.title).c_str());
}

void append_legend(std::string& out, const Plot& plot) {
  if (plot.series.size() < 2) return;
  double at = kWidth - kRight;
  for (size_t i = plot.series.size(); i-- > 0;) {
    const PlotSeries& s = plot.series[i];
    out += strf("<text class='t f%d' x='%.1f' y='30' text-anchor='end'>%s</text>",
                s.colour % kColours, at, escape_html(s.name).c_str());
    at -= 7.0 * static_cast<double>(s.name.size()) + 14;
    if (at < kLeft + 60) break;
  }
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::vector<double> nice_ticks(double lo, double hi, int count) {
  double span = hi - lo;
  if (!(span > 0) || count < 1) return {lo};
  double raw = span / count, unit = std::pow(10, std::floor(std::log10(raw)));
  double step = unit * (raw / unit <= 1 ? 1 : raw / unit <= 2 ? 2 : raw / unit <= 5 ? 5 : 10);
  std::vector<double> out;
  // By multiples, not by sums: 0.1 added ten times is not 1.
  for (auto i = static_cast<int64_t>(std::ceil(lo / step - 1e-9));
       static_cast<double>(i) * step <= hi + step * 1e-9; ++i)
    out.push_back(static_cast<double>(i) * step);
  return out;
}

std::string page_style() { return std::string(kPlotStyle) + kPageStyle; }

std::string svg_file(const std::string& svg) {
  std::string out = svg;
  const size_t end = out.find('>');
  out.insert(end + 1, std::string("<style>") + kPlotStyle +
                          "</style><rect width='100%' height='100%' rx='8' "
                          "style='fill:var(--card)'/>");
  out.insert(4, " xmlns='http://www.w3.org/2000/svg'");
  return "<?xml version='1.0' encoding='utf-8'?>\n" + out + "\n";
}

std::string svg_bars(const BarChart& chart) {
  constexpr double kNames = 230, kRow = 30, kValues = 200;
  const double width = 800, height = kTop + 14 + kRow * static_cast<double>(chart.bars.size()) + 26;
  Axis x;
  x.log = chart.log_x;
  x.from = kNames;
  x.to = width - kValues;
  double least = 1e300;
  x.hi = 0;
  for (const Bar& b : chart.bars) {
    x.hi = std::max(x.hi, b.value);
    if (b.value > 0) least = std::min(least, b.value);
  }
  if (x.hi <= 0) x.hi = least = 1;
  x.lo = chart.log_x ? std::min(least, x.hi) / 2 : 0;
  std::string out = strf("<svg viewBox='0 0 %.0f %.0f' role='img'>", width, height);
  out += strf("<text class='h' x='16' y='22'>%s</text>", escape_html(chart.title).c_str());
  for (double v : chart.log_x ? log_ticks(x.lo, x.hi) : nice_ticks(x.lo, x.hi, 5)) {
    out += strf("<line class='g' x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f'/>", x.at(v), x.at(v), kTop,
                height - 30);
    out += strf("<text class='t' x='%.1f' y='%.1f' text-anchor='middle'>%s</text>", x.at(v),
                height - 14, number(v).c_str());
  }
  out += strf("<text class='t' x='16' y='%.1f'>%s</text>", height - 14,
              escape_html(chart.x_label).c_str());
  double y = kTop + 8, before = 0;
  for (const Bar& b : chart.bars) {
    const double v = std::max(b.value, x.lo), old = std::max(std::min(before, v), x.lo);
    out += strf("<text class='t' x='%.1f' y='%.1f' text-anchor='end'>%s</text>", kNames - 8, y + 15,
                escape_html(b.name).c_str());
    // What the bar before had reached is grey: the rest is this one's.
    out += strf("<rect class='o' x='%.1f' y='%.1f' width='%.1f' height='20'/>", x.from, y,
                x.at(old) - x.from);
    out += strf("<rect class='f%d' x='%.1f' y='%.1f' width='%.1f' height='20' rx='2'/>",
                b.colour % kColours, x.at(old), y, std::max(x.at(v) - x.at(old), 1.5));
    out += strf("<text class='v' x='%.1f' y='%.1f'>%s</text>", x.at(v) + 6, y + 15,
                escape_html(b.label).c_str());
    before = chart.cumulative ? b.value : 0;
    y += kRow;
  }
  return out + "</svg>";
}

std::string svg_plot(const Plot& plot) {
  Axis x, y;
  x.log = plot.log_x;
  find_ranges(plot, x, y);
  x.from = kLeft;
  x.to = kWidth - kRight;
  y.from = kHeight - kBottom;
  y.to = kTop;
  std::string out = strf("<svg viewBox='0 0 %.0f %.0f' role='img'>", kWidth, kHeight);
  append_grid(out, plot, x, y);
  for (const PlotSeries& s : plot.series) {
    int colour = s.colour % kColours;
    if (!s.dots) {
      out += strf("<polyline class='l s%d' points='", colour);
      for (auto [px, py] : s.points) out += strf("%.1f,%.1f ", x.at(px), y.at(py));
      out += "'/>";
    }
    if (!s.dots && !plot.mark_points) continue;
    for (auto [px, py] : s.points)
      out += strf("<circle class='f%d' cx='%.1f' cy='%.1f' r='%s'/>", colour, x.at(px), y.at(py),
                  s.dots ? "1.6" : "3.5");
    for (size_t i = 0; i < std::min(s.labels.size(), s.points.size()); ++i)
      out += strf("<text class='t' x='%.1f' y='%.1f'>%s</text>", x.at(s.points[i].first) + 6,
                  y.at(s.points[i].second) - 5, escape_html(s.labels[i]).c_str());
  }
  append_legend(out, plot);
  return out + "</svg>";
}

}  // namespace sluice
