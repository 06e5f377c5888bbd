#include "tools/plan/derive.h"

#include <algorithm>
#include <cmath>

#include "tools/run_report.h"

namespace sluice {

namespace {

// Near where memory and arithmetic take equal time, a step takes longer than either.
double soft_max(double a, double b) { return std::cbrt(a * a * a + b * b * b); }

constexpr double kSumLatency = 8e-6;  // seconds of a sum over devices, however small
constexpr int kMostRows = 16384;

// Seconds of a CPU's step beside its kernels: inputs, sampling.
constexpr double kCpuPerStep = 100e-6;
constexpr double kCpuHostStep = 20e-6, kCpuHostSlice = 0.3e-6;
constexpr int kSampledRows = 16;  // whose logits give the cost of one more

}  // namespace

StepCost derive_cost(const SolModel& m, const SolDevice& d, const Reached& r, WeightUse use) {
  const bool stored = use == WeightUse::stored;
  const bool bits8 = use == WeightUse::bits8 && d.peak8 > 0;
  const double peak = bits8 ? d.peak8 * r.products8 : d.peak * r.products;
  const double speed = d.bandwidth * r.weights;
  const double fixed = m.shape.num_layers * r.per_layer + r.per_step;
  StepCost c;
  const auto ops = [&](int n) {
    return step_ops(m.shape, {.tokens = n, .sampled = 0, .context = 0, .attended = 0});
  };
  for (int n = 1; n <= kMostRows; n *= 2) {
    // Two operations per weight, and two bytes where it is decoded.
    const double bytes = stored ? ops(1) : m.step;
    double step = soft_max(bytes / speed + fixed, ops(n) / peak);
    if (stored) {
      step += (m.step + bytes) / speed;  // decoding
      step = std::min(
          step, m.step / (d.bandwidth * r.stored) + fixed + ops(n) / (d.peak * r.stored_products));
    }
    c.rows.push_back({static_cast<double>(n), step});
  }
  const StepLoad one{.tokens = 0, .sampled = 1, .context = 0, .attended = 0};
  const StepLoad pair{.tokens = 0, .sampled = 0, .context = 0, .attended = 1};
  c.sampled = step_ops(m.shape, one) / peak;
  c.context = m.kv_token / (d.bandwidth * r.kv);
  c.attended = step_ops(m.shape, pair) / (d.peak * r.attention);
  c.host_step = r.host_step, c.host_slice = r.host_slice;
  return c;
}

double CpuKernels::body(double rows) const {
  double t = 0;
  for (const Product& p : products)
    t += p.body * p.rate.seconds(rows) + p.calls * p.call.seconds(std::min(rows, p.call.most()));
  return t;
}

double CpuKernels::logits(double rows) const {
  double t = 0;
  for (const Product& p : products) t += p.logits * p.rate.seconds(rows);
  return t;
}

StepCost derive_cpu_cost(const ModelShape& m, const CpuKernels& k) {
  StepCost c;
  c.sampled = (k.logits(kSampledRows) - k.logits(1)) / (kSampledRows - 1);
  const double fixed = std::max(0.0, k.logits(1) - c.sampled) + kCpuPerStep;
  // More knots where rates bend.
  for (int n = 1; n <= kMostRows; n = n < 4 ? n + 1 : n < 16 ? n + 2 : 2 * n)
    c.rows.push_back(
        {static_cast<double>(n), fixed + k.body(n) + m.num_layers * k.row_ops.seconds(n)});
  c.sampled += m.num_layers * k.decode_row.seconds(1);  // a row that decodes is sampled
  // A decode reads a position and has a pair of a query and a key for it.
  c.attended = m.num_layers * k.prompt.seconds(1);
  c.context = std::max(0.0, m.num_layers * k.decode.seconds(1) - c.attended);
  c.host_step = kCpuHostStep, c.host_slice = kCpuHostSlice;
  return c;
}

StepCost parallel_cost(const StepCost& one, const ModelShape& shape, int ways, double link) {
  if (ways <= 1) return one;
  StepCost c = one;
  const double sums = 2.0 * shape.num_layers;
  // A ring: every device sends and gets its share of the activations twice.
  const double bytes = 2.0 * shape.hidden * 2 * (ways - 1) / ways;
  for (StepCost::Knot& k : c.rows)
    k.seconds = k.seconds / ways + sums * (kSumLatency + k.tokens * bytes / link);
  for (double* v : {&c.sampled, &c.context, &c.attended}) *v /= ways;
  return c;
}

double split_rate(double prefill, double decode, int p, int d) {
  return std::min(prefill * p, decode * d) / (p + d);
}

double shared_rate(double prefill, double decode) { return 1 / (1 / prefill + 1 / decode); }

Split best_split(double prefill, double decode, int devices) {
  Split best;
  for (int p = 1; p < devices; ++p) {
    const double rate = split_rate(prefill, decode, p, devices - p);
    if (rate > best.rate) best = {p, devices - p, rate};
  }
  return best;
}

}  // namespace sluice
