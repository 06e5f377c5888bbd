// Line and dot plots as inline SVG, coloured by the page's style sheet. Pure functions.
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
};

struct Plot {
  std::string title, x_label, y_label;
  bool log_x = false;
  bool mark_points = false;  // a dot on every point of a line
  std::vector<PlotSeries> series;
};

std::string svg_plot(const Plot& plot);

// Steps of 1, 2 or 5 times a power of ten that cover [lo, hi], about `count` of them.
std::vector<double> nice_ticks(double lo, double hi, int count);

std::string escape_html(std::string_view text);

}  // namespace sluice
