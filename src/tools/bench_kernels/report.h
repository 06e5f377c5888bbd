// What `bench kernels` measured, as a file, and two such reports side by side. Plain data.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tools/cpu_limits.h"

namespace sluice {

// One run's best: seconds of a call, and of its limits. A limit is the larger of bytes / read rate
// and ops / peak, both measured beside the call: with the instruction that the kernel uses, and
// with this CPU's fastest for that type.
struct KernelPass {
  double time = 0, limit = 0, best_limit = 0;
};

// One kernel on one shape with M rows. Times in seconds.
struct KernelTiming {
  std::string kernel;   // row of the matmul table, or "attention-f16"
  std::string shape;    // "qwen2.5-0.5b"
  std::string product;  // "gate_up", or "decode@512": one query each behind that many positions
  int m = 0;
  double best = 0, median = 0;
  double bytes = 0, ops = 0;         // that the call must read and compute at least
  double of_limit = 0, of_best = 0;  // shares of the two limits
  double noise = 0;                  // of of_limit: how far it moves without one of the passes
  bool by_memory = false;            // which of the two rates is the limit
  std::vector<KernelPass> passes;    // the runs that are in it

  std::string key() const;  // "kernel shape product M"
};

// Sets best, of_limit, of_best and noise from the passes: the best time against the best limits,
// for a neighbour's burst only ever makes slower.
void summarise_passes(KernelTiming& timing);

struct KernelReport {
  MachineId id;
  int threads = 0;
  std::string measured;  // when
  std::vector<KernelTiming> rows;

  const KernelTiming* find(const std::string& key) const;
};

// One line per row.
std::string report_to_json(const KernelReport& report);
Result<KernelReport> parse_report(std::string_view json);

// Another run of the same: rows that both have become one, with both passes; the others are added.
void add_pass(KernelReport& report, const KernelReport& more);

struct KernelChange {
  std::string key;
  double before = 0, after = 0;  // of_limit
  double tolerance = 0;          // relative
  bool slower() const { return after < before * (1 - tolerance); }
  bool faster() const { return after * (1 - tolerance) > before; }
};

// Rows that both have. A row's tolerance is twice the noise that both reports saw in it, summed,
// at most a half, and at least `least`. (Twice: of 330 rows measured again on a shared machine,
// once found 7 slower.)
std::vector<KernelChange> compare_reports(const KernelReport& before,
                                          const KernelReport& after,
                                          double least);

}  // namespace sluice
