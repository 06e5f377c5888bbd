#include "core/step_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <map>

namespace sluice {

namespace {

constexpr double kRidge = 1e-9;  // of the diagonal: columns that follow from each other share

constexpr size_t kPlainTerms = 4;  // behind the lines

// Only of a decode every token is sampled from.
bool has_prompts(const StepLoad& l) { return l.tokens > l.sampled; }

// Samples of about the same load are one kind. Each kind counts alike, however many there are: a
// few steps with long contexts say as much as hundreds with short ones.
std::vector<double> kind_weights(std::span<const TimedStep> samples) {
  using Kind = std::array<int, 5>;
  const auto kind = [](const StepLoad& l) {
    const auto at = [](double v, double per_octave) {
      return static_cast<int>(std::floor(per_octave * std::log2(1 + v)));
    };
    return Kind{at(l.tokens, 4), at(l.sampled, 2), at(static_cast<double>(l.context), 2),
                at(static_cast<double>(l.attended), 2), has_prompts(l)};
  };
  std::map<Kind, int> count;
  for (const TimedStep& s : samples) ++count[kind(s.load)];
  std::vector<double> out;
  for (const TimedStep& s : samples) out.push_back(1.0 / count[kind(s.load)]);
  return out;
}

// Knots where samples are: the mean of the token counts in each bucket, two buckets an octave.
std::vector<double> knots_of(std::span<const TimedStep> samples) {
  struct Bucket {
    double sum = 0;
    int num = 0;
  };
  std::vector<Bucket> buckets;
  double least = 0, most = 0;
  for (const TimedStep& s : samples) {
    const double n = s.load.tokens;
    const auto at = static_cast<size_t>(std::floor(2 * std::log2(n) + 1e-9));
    if (buckets.size() <= at) buckets.resize(at + 1);
    buckets[at].sum += n;
    ++buckets[at].num;
    least = least == 0 ? n : std::min(least, n);
    most = std::max(most, n);
  }
  std::vector<double> knots;
  if (most > 0) knots.push_back(least);
  for (const Bucket& b : buckets) {
    const double mean = b.num > 0 ? b.sum / b.num : 0;
    if (mean > knots.back() * 1.05 && mean < most / 1.05) knots.push_back(mean);
  }
  if (most > least) knots.push_back(most);
  return knots;
}

// Solves the rows and columns `in` of a symmetric positive system by Cholesky.
std::vector<double> solve_some(std::span<const double> a,
                               std::span<const double> b,
                               const std::vector<size_t>& in) {
  const size_t n = b.size(), m = in.size();
  std::vector<double> l(m * m), x(m);
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = a[in[i] * n + in[j]];
      for (size_t k = 0; k < j; ++k) sum -= l[i * m + k] * l[j * m + k];
      if (i == j) {
        l[i * m + i] = std::sqrt(std::max(sum, 1e-300));
      } else {
        l[i * m + j] = sum / l[j * m + j];
      }
    }
  }
  for (size_t i = 0; i < m; ++i) {
    double sum = b[in[i]];
    for (size_t k = 0; k < i; ++k) sum -= l[i * m + k] * x[k];
    x[i] = sum / l[i * m + i];
  }
  for (size_t i = m; i-- > 0;) {
    for (size_t k = i + 1; k < m; ++k) x[i] -= l[k * m + i] * x[k];
    x[i] /= l[i * m + i];
  }
  return x;
}

// The terms of a step: a constant, how far its tokens reach into each line, then the plain ones.
void cost_terms(const StepLoad& load, const std::vector<double>& knots, std::span<double> out) {
  const size_t lines = knots.size() - 1;
  out[0] = 1;
  for (size_t i = 0; i < lines; ++i)
    out[1 + i] = std::clamp(load.tokens - knots[i], 0.0, knots[i + 1] - knots[i]);
  out[lines + 1] = load.sampled;
  out[lines + 2] = static_cast<double>(load.context);
  out[lines + 3] = static_cast<double>(load.attended);
  out[lines + 4] = has_prompts(load);
}

StepCost cost_of(const std::vector<double>& x, const std::vector<double>& knots) {
  StepCost c;
  const size_t lines = knots.size() - 1;
  double at = x[0];
  c.rows.push_back({knots[0], at});
  for (size_t i = 0; i < lines; ++i) {
    at += x[1 + i] * (knots[i + 1] - knots[i]);
    c.rows.push_back({knots[i + 1], at});
  }
  c.sampled = x[lines + 1];
  c.context = x[lines + 2];
  c.attended = x[lines + 3];
  c.prompts = x[lines + 4];
  return c;
}

double quantile_of(std::vector<double>& v, double q) {
  if (v.empty()) return 0;
  const auto k = static_cast<size_t>(q * static_cast<double>(v.size() - 1));
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(k), v.end());
  return v[k];
}

}  // namespace

double StepCost::seconds(const StepLoad& load) const {
  double t = sampled * load.sampled + context * static_cast<double>(load.context) +
             attended * static_cast<double>(load.attended) + (has_prompts(load) ? prompts : 0);
  if (rows.empty()) return t;
  const double n = load.tokens;
  if (n <= rows.front().tokens) return t + rows.front().seconds;
  const auto above = std::ranges::find_if(rows, [&](const Knot& k) { return k.tokens >= n; });
  if (above == rows.end() && rows.size() == 1) return t + rows[0].seconds / rows[0].tokens * n;
  const Knot& hi = above == rows.end() ? rows.back() : *above;
  const Knot& lo = above == rows.end() ? rows[rows.size() - 2] : *(above - 1);
  return t + lo.seconds + (n - lo.tokens) * (hi.seconds - lo.seconds) / (hi.tokens - lo.tokens);
}

bool StepCost::valid() const {
  for (double v : {sampled, context, attended, prompts, host_step, host_slice})
    if (!(v >= 0) || !std::isfinite(v)) return false;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Knot& k = rows[i];
    if (!(k.tokens > 0) || !(k.seconds >= 0) || !std::isfinite(k.tokens + k.seconds)) return false;
    if (k.seconds > 1e6) return false;  // nobody waits for such a step
    if (i > 0 && (k.tokens <= rows[i - 1].tokens || k.seconds < rows[i - 1].seconds)) return false;
  }
  return true;
}

std::vector<double> nonneg_least_squares(std::span<const double> a, std::span<const double> b) {
  const size_t n = b.size();
  std::vector<double> x(n), gradient(n);
  std::vector<size_t> in;
  double scale = 0;
  for (double v : b) scale = std::max(scale, std::fabs(v));
  for (size_t round = 0; round < 3 * n; ++round) {
    size_t best = n;
    for (size_t i = 0; i < n; ++i) {
      gradient[i] = b[i];
      for (size_t j = 0; j < n; ++j) gradient[i] -= a[i * n + j] * x[j];
      if (std::ranges::find(in, i) != in.end() || a[i * n + i] <= 0) continue;
      if (gradient[i] > 1e-12 * scale && (best == n || gradient[i] > gradient[best])) best = i;
    }
    if (best == n) break;
    in.push_back(best);
    // Steps towards the solution over `in`, up to where the first of them would be negative.
    while (!in.empty()) {
      const std::vector<double> s = solve_some(a, b, in);
      double step = 1;
      for (size_t k = 0; k < in.size(); ++k)
        if (s[k] <= 0) step = std::min(step, x[in[k]] / (x[in[k]] - s[k]));
      for (size_t k = 0; k < in.size(); ++k) x[in[k]] += step * (s[k] - x[in[k]]);
      if (step == 1) break;
      std::erase_if(in, [&](size_t i) {
        if (x[i] > 1e-15) return false;
        x[i] = 0;
        return true;
      });
    }
  }
  return x;
}

CostFit fit_step_cost(std::span<const TimedStep> all) {
  std::vector<TimedStep> samples;
  for (const TimedStep& s : all)
    if (s.load.tokens > 0 && s.seconds > 0) samples.push_back(s);
  CostFit fit;
  if (samples.empty()) return fit;
  const std::vector<double> knots = knots_of(samples);
  const size_t n = knots.size() + kPlainTerms;
  const std::vector<double> weights = kind_weights(samples);
  std::vector<double> term(n), errors(samples.size()), ata(n * n), aty(n), norm(n);
  for (size_t k = 0; k < samples.size(); ++k) {
    cost_terms(samples[k].load, knots, term);
    const double w = weights[k] / samples[k].seconds / samples[k].seconds;
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) ata[i * n + j] += w * term[i] * term[j];
      aty[i] += w * term[i] * samples[k].seconds;
    }
  }
  // Columns of one size, so that the sums solve well.
  for (size_t i = 0; i < n; ++i) norm[i] = std::sqrt(ata[i * n + i]);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j)
      if (norm[i] > 0 && norm[j] > 0) ata[i * n + j] /= norm[i] * norm[j];
    if (norm[i] > 0) aty[i] /= norm[i], ata[i * n + i] += kRidge;
  }
  std::vector<double> x = nonneg_least_squares(ata, aty);
  for (size_t i = 0; i < n; ++i) x[i] = norm[i] > 0 ? x[i] / norm[i] : 0;
  fit.cost = cost_of(x, knots);
  for (size_t k = 0; k < samples.size(); ++k)
    errors[k] =
        std::fabs(fit.cost.seconds(samples[k].load) - samples[k].seconds) / samples[k].seconds;
  std::vector<double> sorted = errors;
  fit.error_p50 = quantile_of(sorted, 0.5);
  fit.error_p90 = quantile_of(sorted, 0.9);
  return fit;
}

}  // namespace sluice
