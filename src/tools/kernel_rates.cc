#include "tools/kernel_rates.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>

#include "backend/cpu/cpu_backend.h"
#include "base/check.h"
#include "base/str.h"
#include "tools/bench_kernels/cases.h"
#include "tools/cpu_limits.h"

namespace sluice {

namespace {

// Rows of activations, and outputs of the weight: calls of about a millisecond, so that some of
// them meet no other program. Few rows read weights that are larger than caches together.
constexpr int kFewRows[] = {1, 2, 3, 4, 6, 8, 12, 16}, kManyRows[] = {16, 32, 64, 128, 256};
constexpr int64_t kOutputs = 4096, kInputs = 1024;
constexpr int64_t kOutputsOfMany = 512, kOutputsPerThread = 128;
constexpr size_t kRotated = size_t{320} << 20;  // bytes of weights, or of K and V
constexpr double kSampleWindow = 0.5e-3;        // seconds of a sample, at least
constexpr double kLongestCall = 0.1;            // of a call: more rows are not tried
constexpr int kRateRounds = 4, kCallSamples = 7;
constexpr int kDecodePositions = 512, kDecodeRows = 4, kPromptRows = 128;
constexpr int64_t kOutputsOfCall = 256;  // a small product's
constexpr int kCallRows[] = {1, 4, 8, 16}, kRowOpsRows[] = {1, 4, 8, 16, 64};
constexpr int kShortPositions = 31, kShortRows = 8;

// Seconds of a call, the median of several samples: a step has no luck either.
double typical_call(KernelCase& kernel, int m) {
  using Clock = std::chrono::steady_clock;
  const auto timed = [&](int calls) {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < calls; ++i) kernel.run(m);
    return std::chrono::duration<double>(Clock::now() - begin).count() / calls;
  };
  const int calls = static_cast<int>(kSampleWindow / timed(1)) + 1;
  std::array<double, kCallSamples> samples;
  for (double& s : samples) s = timed(calls);
  std::ranges::nth_element(samples, samples.begin() + kCallSamples / 2);
  return samples[kCallSamples / 2];
}

// Seconds per weight for so many rows of activations; the best of rounds over all of them, since
// other programs come and go.
std::vector<KernelRate::Point> measure_by_rows(ThreadPool& pool,
                                               const MatmulRow& row,
                                               int64_t outputs,
                                               std::span<const int> rows) {
  Rotation rotation(kRotated);
  const std::unique_ptr<KernelCase> kernel =
      make_matmul_case(pool, rotation, {&row, outputs, kInputs, rows.back()});
  std::vector<KernelRate::Point> out;
  for (int m : rows) out.push_back({static_cast<double>(m), kLongestCall});
  size_t num = rows.size();
  for (int round = 0; round < kRateRounds; ++round) {
    for (size_t k = 0; k < num; ++k) {
      out[k].seconds = std::min(out[k].seconds, typical_call(*kernel, rows[k]));
      if (out[k].seconds >= kLongestCall) num = k + 1;
    }
  }
  out.resize(num);
  for (KernelRate::Point& p : out) p.seconds /= kernel->ops(1) / 2;
  return out;
}

std::string heads_of(const ModelShape& s) {
  return strf("%dx%dx%d", s.num_heads, s.num_kv_heads, s.head_dim);
}

double best_of_rounds(KernelCase& kernel, int m) {
  double best = typical_call(kernel, m);
  for (int round = 1; round < kRateRounds; ++round) best = std::min(best, typical_call(kernel, m));
  return best;
}

std::unique_ptr<Backend> backend_with(int threads) {
  CpuOptions cpu;
  cpu.threads = threads;
  return make_cpu_backend(cpu);
}

double num_pairs(int decode, int rows) {
  return decode > 0 ? rows * (decode + 1.0) : 0.5 * rows * (rows + 1.0);
}

// Seconds of attention over all pairs of a query and a key.
double time_attention(const ModelShape& shape, int threads, int decode, int rows) {
  double seconds = 0;
  const std::unique_ptr<Backend> backend = backend_with(threads);
  with_pool(threads, [&](ThreadPool&) {
    const std::unique_ptr<KernelCase> kernel =
        make_attention_case(*backend, kRotated, {shape, KvType(DType::f16), decode, rows});
    seconds = best_of_rounds(*kernel, rows);
  });
  return seconds;
}

KernelRate measure_attention(const ModelShape& shape, int threads, int decode, int rows) {
  const double seconds = time_attention(shape, threads, decode, rows);
  return {"", threads, {{static_cast<double>(rows), seconds / num_pairs(decode, rows)}}};
}

}  // namespace

double KernelRate::seconds(double rows) const {
  CHECK(!points.empty());
  const auto above = std::ranges::find_if(points, [&](const Point& p) { return p.rows >= rows; });
  if (above == points.begin()) return points.front().seconds;
  if (above == points.end()) return points.back().seconds * rows / points.back().rows;
  const Point &lo = *(above - 1), &hi = *above;
  return lo.seconds + (rows - lo.rows) / (hi.rows - lo.rows) * (hi.seconds - lo.seconds);
}

std::string decode_attention_name(const ModelShape& shape) {
  return "decode-attention-" + heads_of(shape);
}

std::string decode_row_name(const ModelShape& shape) { return "decode-row-" + heads_of(shape); }

std::string prompt_attention_name(const ModelShape& shape) {
  return "prompt-attention-" + heads_of(shape);
}

std::string product_call_name(const MatmulRow& row) { return std::string(row.name) + "-call"; }

std::string row_ops_name(const ModelShape& shape, uint8_t acts) {
  return strf("row-ops-%dx%d-%s-%d", shape.hidden, shape.ffn, heads_of(shape).c_str(), acts);
}

KernelRate measure_product(const MatmulRow& row, int threads) {
  KernelRate rate{row.name, threads, {}};
  with_pool(threads, [&](ThreadPool& pool) {
    rate.points = measure_by_rows(pool, row, kOutputs, kFewRows);
    if (rate.points.back().rows < kManyRows[0]) return;  // too slow for more
    const int64_t outputs = std::max(kOutputsOfMany, threads * kOutputsPerThread);
    const std::vector<KernelRate::Point> many = measure_by_rows(pool, row, outputs, kManyRows);
    rate.points.insert(rate.points.end(), many.begin() + 1, many.end());
  });
  // Fewer rows never take longer.
  for (size_t k = rate.points.size() - 1; k > 0; --k)
    rate.points[k - 1].seconds = std::min(rate.points[k - 1].seconds, rate.points[k].seconds);
  return rate;
}

KernelRate measure_decode_attention(const ModelShape& shape, int threads) {
  KernelRate rate = measure_attention(shape, threads, kDecodePositions, kDecodeRows);
  rate.kernel = decode_attention_name(shape);
  return rate;
}

KernelRate measure_prompt_attention(const ModelShape& shape, int threads) {
  KernelRate rate = measure_attention(shape, threads, 0, kPromptRows);
  rate.kernel = prompt_attention_name(shape);
  return rate;
}

KernelRate measure_product_call(const MatmulRow& row, int threads, const KernelRate& product) {
  KernelRate rate{product_call_name(row), threads, {}};
  with_pool(threads, [&](ThreadPool& pool) {
    Rotation rotation(kRotated);
    const std::unique_ptr<KernelCase> kernel = make_matmul_case(
        pool, rotation, {&row, kOutputsOfCall, kInputs, kCallRows[std::size(kCallRows) - 1]});
    const double weights = kernel->ops(1) / 2;
    for (int m : kCallRows) {
      const double beyond = best_of_rounds(*kernel, m) - weights * product.seconds(m);
      rate.points.push_back({static_cast<double>(m), std::max(0.0, beyond)});
    }
  });
  return rate;
}

KernelRate measure_decode_row(const ModelShape& shape, int threads, const KernelRate& decode) {
  const double all = time_attention(shape, threads, kShortPositions, kShortRows);
  const double pairs = num_pairs(kShortPositions, kShortRows) * decode.seconds(1);
  return {decode_row_name(shape),
          threads,
          {{static_cast<double>(kShortRows), std::max(0.0, all - pairs) / kShortRows}}};
}

KernelRate measure_row_ops(const ModelShape& shape, uint8_t acts, int threads) {
  KernelRate rate{row_ops_name(shape, acts), threads, {}};
  const std::unique_ptr<Backend> backend = backend_with(threads);
  with_pool(threads, [&](ThreadPool&) {
    const std::unique_ptr<KernelCase> kernel =
        make_row_ops_case(*backend, {shape, acts, kRowOpsRows[std::size(kRowOpsRows) - 1]});
    for (int m : kRowOpsRows)
      rate.points.push_back({static_cast<double>(m), best_of_rounds(*kernel, m)});
  });
  return rate;
}

}  // namespace sluice
