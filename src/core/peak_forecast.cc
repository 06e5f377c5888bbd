#include "core/peak_forecast.h"

#include <algorithm>
#include <cmath>

namespace sluice {

namespace {

// Steps from now; what is held between two of them differs little from either.
constexpr int kHorizons[] = {1,   8,   16,  32,  48,   64,   96,   128,  192,
                             256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192};
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

// That it runs for so many steps more.
double PeakForecast::chance(const Growth& g, int steps) const {
  if (steps == 1) return 1;
  if (g.num_output + steps > g.max_new) return 0;
  if (g.curve < 0) return g.num_output + steps <= std::max(g.predicted, g.num_output + 1) ? 1 : 0;
  const SurvivalCurve& curve = curves_[static_cast<size_t>(g.curve)].curve;
  double now = curve.longer_than(g.num_output - 1);
  return now > 1e-9 ? curve.longer_than(g.num_output + steps - 1) / now : 1;
}

bool PeakForecast::fits(int64_t usable, int64_t groups, int block_size) {
  for (Known& k : curves_) k.curve.fit(*k.ended);
  const double half = (block_size - 1) / 2.0;  // of the last block
  for (int steps : kHorizons) {
    double blocks = 0, variance = 0;
    bool any = false;
    for (const Growth& g : growths_) {
      const double p = chance(g, steps);
      if (p <= 0) continue;
      any = true;
      const double size = static_cast<double>(groups) *
                              (static_cast<double>(g.positions + steps) + half) / block_size +
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
