// Line, dot and bar plots as inline SVG, coloured by the page's style sheet, or as files of their
// own. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice {

struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;
  bool dots = false;  // else a line
  int colour = 0;
  std::vector<std::string> labels = {};  // of the points
};

struct Plot {
  std::string title, x_label, y_label;
  bool log_x = false;
  bool mark_points = false;  // a dot on every point of a line
  std::vector<PlotSeries> series;
};

std::string svg_plot(const Plot& plot);

struct Bar {
  std::string name;
  double value = 0;
  std::string label;  // behind the bar
  int colour = 0;
};

// Horizontal bars. cumulative: each shows in grey what the one before it had reached.
struct BarChart {
  std::string title, x_label;
  bool log_x = false, cumulative = false;
  std::vector<Bar> bars;
};
std::string svg_bars(const BarChart& chart);

// A plot as a file of its own: with its style, light and dark.
std::string svg_file(const std::string& svg);
// The style sheet of a page with plots and tables.
std::string page_style();

// Steps of 1, 2 or 5 times a power of ten that cover [lo, hi], about `count` of them.
std::vector<double> nice_ticks(double lo, double hi, int count);

std::string escape_html(std::string_view text);

}  // namespace sluice
