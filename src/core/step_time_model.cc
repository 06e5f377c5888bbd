#include "core/step_time_model.h"

#include <algorithm>
#include <cmath>

namespace sluice {

StepTimeModel::Terms StepTimeModel::terms(const StepLoad& load) {
  // Of one magnitude, so that the sums solve well.
  return {1, load.tokens * 1e-2, static_cast<double>(load.context) * 1e-4,
          static_cast<double>(load.attended) * 1e-6};
}

void StepTimeModel::add(const StepLoad& load, double seconds, double weight) {
  const Terms x = terms(load);
  for (int i = 0; i < kTerms; ++i) {
    for (int j = 0; j < kTerms; ++j) xx_[i][j] = xx_[i][j] * keep_ + weight * x[i] * x[j];
    xy_[i] = xy_[i] * keep_ + weight * x[i] * seconds;
  }
  yy_ = yy_ * keep_ + weight * seconds * seconds;
  y_ = y_ * keep_ + weight * seconds;
  weight_ = weight_ * keep_ + weight;
  ++count_;
  solve();
}

// A term that would be negative (noise, or terms that nearly follow from each other) is left out
// and the others are fitted again, the most negative first. The constant may be anything.
void StepTimeModel::solve() {
  std::array<bool, kTerms> left_out{};
  for (;;) {
    const Terms f = solve(left_out);
    int worst = 0;
    for (int i = 1; i < kTerms; ++i) {
      if (f[i] < 0 && (worst == 0 || f[i] < f[worst])) worst = i;
    }
    if (worst == 0) {
      const Terms unit = terms({.tokens = 1, .sampled = 0, .context = 1, .attended = 1});
      for (int i = 0; i < kTerms; ++i) fit_[i] = f[i] * unit[i];
      return;
    }
    left_out[worst] = true;
  }
}

// Gaussian elimination over the terms that vary, with pivots by size. A term without a pivot of
// its own follows from the others: it gets 0.
StepTimeModel::Terms StepTimeModel::solve(const std::array<bool, kTerms>& left_out) const {
  constexpr double kSame = 1e-9;  // of its diagonal, below which a term adds nothing
  std::array<Terms, kTerms> a = xx_;
  Terms b = xy_;
  std::array<int, kTerms> row_of;  // which row solved a column; -1: none
  row_of.fill(-1);
  std::array<bool, kTerms> used = left_out;
  for (int column = 0; column < kTerms; ++column) {
    if (left_out[column]) continue;
    int best = -1;
    for (int r = 0; r < kTerms; ++r) {
      if (!used[r] && (best < 0 || std::fabs(a[r][column]) > std::fabs(a[best][column]))) best = r;
    }
    if (best < 0 || std::fabs(a[best][column]) <= kSame * xx_[column][column]) continue;
    used[best] = true;
    row_of[column] = best;
    for (int r = 0; r < kTerms; ++r) {
      if (r == best || left_out[r]) continue;
      const double factor = a[r][column] / a[best][column];
      if (factor == 0) continue;
      for (int c = 0; c < kTerms; ++c) a[r][c] -= factor * a[best][c];
      b[r] -= factor * b[best];
    }
  }
  Terms f{};
  for (int i = 0; i < kTerms; ++i)
    if (row_of[i] >= 0) f[i] = b[row_of[i]] / a[row_of[i]][i];
  return f;
}

double StepTimeModel::predict(const StepLoad& load) const {
  return std::max(0.0, fit_[0] + fit_[1] * load.tokens +
                           fit_[2] * static_cast<double>(load.context) +
                           fit_[3] * static_cast<double>(load.attended));
}

double StepTimeModel::r_squared() const {
  const double all = weight_ > 0 ? yy_ - y_ * y_ / weight_ : 0;
  if (all <= 0) return 0;
  // Sum of squared errors: y'y - 2 f'x'y + f'x'x f.
  const Terms unit = terms({.tokens = 1, .sampled = 0, .context = 1, .attended = 1});
  Terms f;
  for (int i = 0; i < kTerms; ++i) f[i] = fit_[i] / unit[i];
  double left = yy_;
  for (int i = 0; i < kTerms; ++i) {
    left -= 2 * f[i] * xy_[i];
    for (int j = 0; j < kTerms; ++j) left += f[i] * xx_[i][j] * f[j];
  }
  return std::clamp(1 - left / all, 0.0, 1.0);
}

int StepTimeModel::prompt_tokens_within(const StepLoad& base,
                                        int64_t pos,
                                        double target,
                                        int most) const {
  auto fits = [&](int n) {
    StepLoad load = base;
    load += {.tokens = n,
             .sampled = 1,
             .context = pos + n,
             .attended = n * pos + static_cast<int64_t>(n) * (n + 1) / 2};
    return predict(load) <= target;
  };
  int lo = 0, hi = most;  // lo fits, or is 0
  while (lo < hi) {
    const int mid = lo + (hi - lo + 1) / 2;
    if (fits(mid)) {
      lo = mid;
    } else {
      hi = mid - 1;
    }
  }
  return lo;
}

}  // namespace sluice
