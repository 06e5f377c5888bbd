#include "core/peak_forecast.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <iterator>

namespace sluice {

namespace {

// Steps from now, each about a quarter further than the last.
constexpr int kHorizons[] = {1,    3,    7,    11,   15,   19,   23,   27,   31,   39,   47,
                             55,   63,   79,   95,   111,  127,  159,  191,  223,  255,  319,
                             383,  447,  511,  639,  767,  895,  1023, 1279, 1535, 1791, 2047,
                             2559, 3071, 3583, 4095, 5119, 6143, 7167, 8191};
// Standard deviations: a normal value is below in 99 of 100.
constexpr double kMargin = 2.33;

}  // namespace

void PeakForecast::add(const Growth& growth) {
  Growth& g = growths_.emplace_back(growth);
  if (!g.ended) return;
  auto known = std::ranges::find(curves_, g.ended, &Known::ended);
  if (known == curves_.end()) known = curves_.insert(known, {g.ended, {}});
  known->curve.add_running(g.num_output, g.num);
  g.curve = static_cast<int>(known - curves_.begin());
}

// Steps that it runs at most.
int PeakForecast::left(const Growth& g) {
  const int end = g.curve < 0 ? std::max(g.predicted, g.num_output + 1) : g.max_new;
  return std::max(1, std::min(end, g.max_new) - g.num_output);
}

// That it runs for so many steps more.
double PeakForecast::chance(const Growth& g, int steps) const {
  if (steps == 1) return 1;
  if (g.num_output + steps > g.max_new) return 0;
  if (g.curve < 0) return g.num_output + steps <= std::max(g.predicted, g.num_output + 1) ? 1 : 0;
  const SurvivalCurve& curve = curves_[static_cast<size_t>(g.curve)].curve;
  return g.reached > 1e-9 ? curve.longer_than(g.num_output + steps - 1) / g.reached : 1;
}

bool PeakForecast::fits(int64_t usable, int64_t groups, int block_size) {
  for (Known& k : curves_) k.curve.fit(*k.ended);
  for (Growth& g : growths_) {
    if (g.curve >= 0)
      g.reached = curves_[static_cast<size_t>(g.curve)].curve.longer_than(g.num_output - 1);
  }
  const double half = (block_size - 1) / 2.0;  // of the last block
  for (size_t i = 0; i < std::size(kHorizons); ++i) {
    const int steps = kHorizons[i];
    const int next = i + 1 < std::size(kHorizons) ? kHorizons[i + 1] : INT_MAX;
    double blocks = 0, variance = 0;
    bool any = false;
    for (const Growth& g : growths_) {
      const double p = chance(g, steps);
      if (p <= 0) continue;
      any = true;
      // A sequence that must end before the next horizon is counted at its largest, when it ends.
      const int grown = left(g) < next ? left(g) : steps;
      const double size = static_cast<double>(groups) *
                              (static_cast<double>(g.positions + grown) + half) / block_size +
                          static_cast<double>(g.windows);
      blocks += p * size * g.num;
      variance += p * (1 - p) * size * size * g.num;
    }
    if (blocks + kMargin * std::sqrt(variance) > static_cast<double>(usable)) return false;
    if (!any) break;
  }
  return true;
}

}  // namespace sluice
