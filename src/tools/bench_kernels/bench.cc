#include "tools/bench_kernels/bench.h"

#include <algorithm>
#include <chrono>

namespace sluice {

namespace {

constexpr double kLongest = 0.3;  // seconds: M that would take longer are left out
constexpr double kSampleSeconds = 1e-3, kCaseSeconds = 0.01;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

KernelTiming summary(const KernelCaseId& id,
                     const KernelCase& kernel,
                     int m,
                     const std::vector<KernelPass>& rounds,
                     const RoundLimits& limits,
                     Percentiles& times) {
  KernelTiming t;
  t.kernel = id.kernel;
  t.shape = id.shape_name;
  t.product = id.product;
  t.m = m;
  t.median = times.at(0.5);
  t.bytes = kernel.bytes(m);
  t.ops = kernel.ops(m);
  t.by_memory = t.bytes / limits.read > t.ops / limits.own;
  t.passes = rounds;
  summarise_passes(t);
  t.passes = {{t.best, t.of_limit * t.best, t.of_best * t.best}};  // the rounds are one pass
  return t;
}

// Adds samples of about a millisecond to `all` (a long call is one), and gives the best: seconds
// per call.
double sample(KernelCase& kernel, int m, Percentiles& all) {
  double begin = now();
  kernel.run(m);
  double first = now() - begin, best = first;
  int calls = first > kCaseSeconds ? 0 : static_cast<int>(kSampleSeconds / first) + 1;
  if (calls == 0) all.add(first);
  for (double end = now() + kCaseSeconds; calls > 0 && now() < end;) {
    begin = now();
    for (int i = 0; i < calls; ++i) kernel.run(m);
    double each = (now() - begin) / calls;
    best = std::min(best, each);
    all.add(each);
  }
  return best;
}

}  // namespace

KernelBench::KernelBench(ThreadPool& pool,
                         Backend& backend,
                         const BenchKernelsOptions& o,
                         std::optional<CpuLimits> kept)
    : pool_(pool),
      backend_(backend),
      o_(o),
      rotation_(static_cast<size_t>(o.rotate_mb) * 1'000'000),
      kept_(std::move(kept)) {
  if (!kept_) probe_ = std::make_unique<ReadProbe>(pool, rotation_.bytes());
}

std::vector<KernelTiming> KernelBench::measure(const KernelCaseId& id) {
  std::unique_ptr<KernelCase> kernel = make(id);
  std::vector<std::vector<KernelPass>> rounds(id.ms.size());
  std::vector<Percentiles> times(id.ms.size());
  size_t num = id.ms.size();
  shown_ = {};
  for (int n = 0; n < o_.rounds; ++n) {
    RoundLimits limits = limits_of(id);
    shown_.read = std::max(shown_.read, limits.read);
    shown_.own = std::max(shown_.own, limits.own);
    shown_.best = std::max(shown_.best, limits.best);
    for (size_t i = 0; i < num; ++i) {
      int m = id.ms[i];
      double best = sample(*kernel, m, times[i]);
      double read = kernel->bytes(m) / limits.read, ops = kernel->ops(m);
      rounds[i].push_back(
          {best, std::max(read, ops / limits.own), std::max(read, ops / limits.best)});
      if (i + 1 < num && best / m * id.ms[i + 1] > kLongest) num = i + 1;
    }
  }
  std::vector<KernelTiming> rows;
  for (size_t i = 0; i < num; ++i)
    rows.push_back(summary(id, *kernel, id.ms[i], rounds[i], shown_, times[i]));
  return rows;
}

std::unique_ptr<KernelCase> KernelBench::make(const KernelCaseId& id) {
  if (id.row) return make_matmul_case(pool_, rotation_, {id.row, id.rows, id.cols, id.ms.back()});
  return make_attention_case(backend_, rotation_.bytes(),
                             {id.shape, id.kv, id.decode, id.ms.back()});
}

double KernelBench::peak(const PeakRow& row) {
  constexpr double kSeconds = 0.002;
  if (probe_) return measure_peak(pool_, row, kSeconds, 2);
  for (const PeakRate& p : kept_->peaks) {
    if (p.name == row.name) return kept_->peak_rate(p, pool_.size());
  }
  return 0;
}

RoundLimits KernelBench::limits_of(const KernelCaseId& id) {
  RoundLimits l;
  l.read = probe_ ? probe_->measure(pool_, 2) : kept_->read_rate(pool_.size());
  std::vector<const PeakRow*> peaks = usable_peaks(id.row ? row_type(*id.row) : PeakType::f32);
  const PeakRow* own = id.row ? own_peak(*id.row) : nullptr;
  if (!peaks.empty()) l.best = peak(*peaks[0]);
  l.own = own && own != peaks[0] ? peak(*own) : l.best;
  if (l.best <= 0) l.best = l.own = kNoPeak;
  return l;
}

}  // namespace sluice
