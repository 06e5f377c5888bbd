#include "tools/bench_serve/report_html_plot.h"

#include <algorithm>
#include <cmath>

#include "base/str.h"

namespace sluice {

namespace {

constexpr double kWidth = 560, kHeight = 300, kLeft = 64, kRight = 16, kTop = 34, kBottom = 46;
constexpr int kColours = 8;

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
  x.hi = x_hi;
  y.lo = 0;
  y.hi = y_hi > 0 ? y_hi * 1.05 : 1;
}

void append_grid(std::string& out, const Plot& plot, const Axis& x, const Axis& y) {
  for (double v : plot.log_x ? log_ticks(x.lo, x.hi) : nice_ticks(x.lo, x.hi, 6)) {
    out += strf("<line class=g x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f'/>", x.at(v), x.at(v), kTop,
                kHeight - kBottom);
    out += strf("<text class=t x='%.1f' y='%.1f' text-anchor=middle>%s</text>", x.at(v),
                kHeight - kBottom + 16, number(v).c_str());
  }
  for (double v : nice_ticks(y.lo, y.hi, 5)) {
    out += strf("<line class=g x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f'/>", kLeft, kWidth - kRight,
                y.at(v), y.at(v));
    out += strf("<text class=t x='%.1f' y='%.1f' text-anchor=end>%s</text>", kLeft - 6, y.at(v) + 4,
                number(v).c_str());
  }
  out += strf("<text class=t x='%.1f' y='%.1f' text-anchor=middle>%s</text>",
              (kLeft + kWidth - kRight) / 2, kHeight - 10, escape_html(plot.x_label).c_str());
  out +=
      strf("<text class=t transform='translate(14,%.1f) rotate(-90)' text-anchor=middle>%s</text>",
           (kTop + kHeight - kBottom) / 2, escape_html(plot.y_label).c_str());
  out += strf("<text class=h x='%.1f' y='18'>%s</text>", kLeft, escape_html(plot.title).c_str());
}

void append_legend(std::string& out, const Plot& plot) {
  if (plot.series.size() < 2) return;
  double at = kWidth - kRight;
  for (size_t i = plot.series.size(); i-- > 0;) {
    const PlotSeries& s = plot.series[i];
    out += strf("<text class='t f%d' x='%.1f' y='30' text-anchor=end>%s</text>",
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

std::string svg_plot(const Plot& plot) {
  Axis x, y;
  x.log = plot.log_x;
  find_ranges(plot, x, y);
  x.from = kLeft;
  x.to = kWidth - kRight;
  y.from = kHeight - kBottom;
  y.to = kTop;
  std::string out = strf("<svg viewBox='0 0 %.0f %.0f' role=img>", kWidth, kHeight);
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
  }
  append_legend(out, plot);
  return out + "</svg>";
}

}  // namespace sluice
