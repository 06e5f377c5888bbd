// Times kernels, with the machine's limits measured beside them.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/metrics.h"
#include "tools/bandwidth.h"
#include "tools/commands.h"
#include "tools/bench_kernels/cases.h"
#include "tools/bench_kernels/plan.h"
#include "tools/bench_kernels/report.h"

namespace sluice {

// What a round is held against, in bytes and operations per second.
struct RoundLimits {
  double read = 0, own = 0, best = 0;
};

inline constexpr double kNoPeak = 1e18;  // none is known: memory is the limit

// Driven by the thread that drives the pool.
class KernelBench {
 public:
  // `backend` has as many threads as the pool. Both outlive this, as do the options. Without `kept`
  // limits are measured.
  KernelBench(ThreadPool& pool,
              Backend& backend,
              const BenchKernelsOptions& options,
              std::optional<CpuLimits> kept);

  // One row for each M, but for those that would take too long.
  std::vector<KernelTiming> measure(const KernelCaseId& id);
  // The best of the last case's rounds.
  const RoundLimits& limits() const { return shown_; }

 private:
  std::unique_ptr<KernelCase> make(const KernelCaseId& id);
  double peak(const PeakRow& row);
  RoundLimits limits_of(const KernelCaseId& id);

  ThreadPool& pool_;
  Backend& backend_;
  const BenchKernelsOptions& o_;
  Rotation rotation_;
  std::optional<CpuLimits> kept_;
  std::unique_ptr<ReadProbe> probe_;  // null: limits are kept_
  RoundLimits shown_;
};

}  // namespace sluice
