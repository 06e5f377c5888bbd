// What this machine can do at best, measured: read bandwidth by threads, and peak arithmetic. Kept
// in the user's cache folder; the denominators of all benchmarks on a CPU. Measuring takes seconds
// and all cores; one thread at a time.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cpu/peak.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "tools/kernel_rates.h"

namespace sluice {

struct MachineId {
  std::string cpu;  // "Intel(R) Xeon(R) Processor 6-207"
  int cores = 0;    // that this process may use
  std::string isa;  // isa_name() of the features in use
  bool operator==(const MachineId&) const = default;
  std::string file_stem() const;  // its letters and digits: "intel-r-xeon-r-processor-6-207-2-amx"
};
MachineId this_machine();
// The CPU's name from the text of /proc/cpuinfo, "unknown" where that has none.
std::string cpu_name(std::string_view cpuinfo);

struct ReadRate {
  int threads = 0;
  double bytes_per_s = 0;
};

struct PeakRate {
  std::string name, type;   // of PeakRow
  double one = 0, all = 0;  // operations per second of one thread, of one per core
};

struct CpuLimits {
  MachineId id;
  std::string measured;         // when: "2026-01-31T12:00:00Z"
  std::vector<ReadRate> reads;  // ascending threads, from 1 to all
  std::vector<PeakRate> peaks;
  std::string build;                // build_id() of the program whose kernels were measured
  std::vector<KernelRate> kernels;  // those that somebody asked for

  // Between what was measured, linear in threads.
  double read_rate(int threads) const;
  double peak_rate(const PeakRate& peak, int threads) const;
  // The fastest for factors of that type, or null.
  const PeakRate* best(PeakType type, int threads) const;
};

// The time as CpuLimits::measured has it.
std::string utc_now();

using LimitsProgress = std::function<void(const std::string& what, double fraction)>;

// Seconds: every rate is the best of several runs.
CpuLimits measure_machine(const LimitsProgress& progress);

// Operations per second on all of the pool's threads: best of `times` runs of about `seconds`.
double measure_peak(ThreadPool& pool, const PeakRow& row, double seconds, int times);

// Runs f on a thread of its own, bound like a device thread, with a pool of so many threads.
void with_pool(int threads, const std::function<void(ThreadPool& pool)>& f);

std::string limits_to_json(const CpuLimits& limits);
// A file's text back; whatever is not as limits_to_json writes it is an error.
Result<CpuLimits> parse_limits(std::string_view json);

// Where they are kept; empty without a home.
std::string limits_path(const MachineId& id);
// Without rates of another build's kernels. 404: there is no such file.
Result<CpuLimits> load_limits(const std::string& path, const MachineId& id);
Result<void> save_limits(const std::string& path, const CpuLimits& limits);

// Those kept at `path` (which may be empty), or else what `measure` gives, kept from then on. `say`
// gets a line where a file was bad or could not be written.
CpuLimits cached_limits(const std::string& path,
                        const MachineId& id,
                        const std::function<CpuLimits()>& measure,
                        const std::function<void(const std::string&)>& say);

}  // namespace sluice
