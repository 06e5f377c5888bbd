#include "core/step_time_model.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace sluice {

namespace {

// Terms in these units are of one magnitude, so that the sums solve well.
constexpr double kTokens = 1e-2, kContext = 1e-4, kAttended = 1e-6;
constexpr double unit_of(int term) {
  return term == 0 ? 1 : term == 2 ? kContext : term == 3 ? kAttended : kTokens;
}

}  // namespace

StepTimeModel::StepTimeModel(double keep, std::span<const int> knees) : keep_(keep) {
  DCHECK(knees.size() <= kMaxKnees);
  for (int knee : knees) knees_[num_terms_++ - 4] = knee;
}

StepTimeModel::Terms StepTimeModel::terms(const StepLoad& load) const {
  Terms x{1, load.tokens * kTokens, static_cast<double>(load.context) * kContext,
          static_cast<double>(load.attended) * kAttended};
  for (int i = 4; i < num_terms_; ++i) x[i] = std::max(0, load.tokens - knees_[i - 4]) * kTokens;
  return x;
}

void StepTimeModel::add(const StepLoad& load, double seconds, double weight) {
  const Terms x = terms(load);
  for (int i = 0; i < num_terms_; ++i) {
    for (int j = 0; j < num_terms_; ++j) xx_[i][j] = xx_[i][j] * keep_ + weight * x[i] * x[j];
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
    for (int i = 1; i < num_terms_; ++i) {
      if (f[i] < 0 && (worst == 0 || f[i] < f[worst])) worst = i;
    }
    if (worst == 0) {
      for (int i = 0; i < num_terms_; ++i) fit_[i] = f[i] * unit_of(i);
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
  for (int column = 0; column < num_terms_; ++column) {
    if (left_out[column]) continue;
    int best = -1;
    for (int r = 0; r < num_terms_; ++r) {
      if (!used[r] && (best < 0 || std::fabs(a[r][column]) > std::fabs(a[best][column]))) best = r;
    }
    if (best < 0 || std::fabs(a[best][column]) <= kSame * xx_[column][column]) continue;
    used[best] = true;
    row_of[column] = best;
    for (int r = 0; r < num_terms_; ++r) {
      if (r == best || left_out[r]) continue;
      const double factor = a[r][column] / a[best][column];
      if (factor == 0) continue;
      for (int c = 0; c < num_terms_; ++c) a[r][c] -= factor * a[best][c];
      b[r] -= factor * b[best];
    }
  }
  Terms f{};
  for (int i = 0; i < num_terms_; ++i)
    if (row_of[i] >= 0) f[i] = b[row_of[i]] / a[row_of[i]][i];
  return f;
}

double StepTimeModel::predict(const StepLoad& load) const {
  double sum = fit_[0] + fit_[1] * load.tokens + fit_[2] * static_cast<double>(load.context) +
               fit_[3] * static_cast<double>(load.attended);
  for (int i = 4; i < num_terms_; ++i) sum += fit_[i] * std::max(0, load.tokens - knees_[i - 4]);
  return std::max(0.0, sum);
}

double StepTimeModel::r_squared() const {
  const double all = weight_ > 0 ? yy_ - y_ * y_ / weight_ : 0;
  if (all <= 0) return 0;
  // Sum of squared errors: y'y - 2 f'x'y + f'x'x f.
  Terms f;
  for (int i = 0; i < num_terms_; ++i) f[i] = fit_[i] / unit_of(i);
  double left = yy_;
  for (int i = 0; i < num_terms_; ++i) {
    left -= 2 * f[i] * xy_[i];
    for (int j = 0; j < num_terms_; ++j) left += f[i] * xx_[i][j] * f[j];
  }
  return std::clamp(1 - left / all, 0.0, 1.0);
}

int StepTimeModel::prompt_tokens_within(const StepLoad& base,
                                        int64_t pos,
                                        double target,
                                        int most) const {
  auto fits = [&](int n) {
    StepLoad load = base;
    load += chunk_load(pos, n);
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
