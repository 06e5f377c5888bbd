#include "tools/cpu_limits.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>

#include "backend/cpu/features.h"
#include "base/check.h"
#include "base/str.h"
#include "tools/bandwidth.h"

namespace sluice {

namespace {

// Every count up to 4, then doubling, and all.
std::vector<int> thread_counts(int cores) {
  std::vector<int> counts;
  for (int n = 1; n < cores; n = n < 4 ? n + 1 : 2 * n) counts.push_back(n);
  counts.push_back(cores);
  return counts;
}

double timed(ThreadPool& pool, const PeakRow& row, int64_t rounds) {
  auto begin = std::chrono::steady_clock::now();
  pool.run([&](int) { row.run(rounds); });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

std::string utc_now() {
  std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  char text[32];
  size_t n = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {text, n};
}

double CpuLimits::read_rate(int threads) const {
  CHECK(!reads.empty());
  for (size_t i = 0; i < reads.size(); ++i) {
    if (reads[i].threads < threads) continue;
    if (reads[i].threads == threads || i == 0) return reads[i].bytes_per_s;
    const ReadRate &lo = reads[i - 1], &hi = reads[i];
    double f = static_cast<double>(threads - lo.threads) / (hi.threads - lo.threads);
    return lo.bytes_per_s + f * (hi.bytes_per_s - lo.bytes_per_s);
  }
  return reads.back().bytes_per_s;
}

double CpuLimits::peak_rate(const PeakRate& peak, int threads) const {
  if (threads >= id.cores) return peak.all;
  if (threads <= 1) return peak.one;
  double f = static_cast<double>(threads - 1) / (id.cores - 1);
  return peak.one + f * (peak.all - peak.one);
}

const PeakRate* CpuLimits::best(PeakType type, int threads) const {
  const PeakRate* found = nullptr;
  for (const PeakRate& p : peaks) {
    if (p.type != peak_type_name(type)) continue;
    if (!found || peak_rate(p, threads) > peak_rate(*found, threads)) found = &p;
  }
  return found;
}

double measure_peak(ThreadPool& pool, const PeakRow& row, double seconds, int times) {
  int64_t rounds = 256;
  double best = 0;
  for (int n = 0; n < times;) {
    double t = timed(pool, row, rounds);
    if (t < seconds / 2) {
      rounds *= 2;
      continue;
    }
    best = std::max(best, static_cast<double>(rounds) * row.ops_per_round * pool.size() / t);
    ++n;
  }
  return best;
}

void with_pool(int threads, const std::function<void(ThreadPool& pool)>& f) {
  std::exception_ptr failure;
  std::thread([&] {
    try {
      ThreadPool pool(threads);
      pool.pin_caller();
      f(pool);
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
}

// Rounds over everything, so that a busy neighbour of half a second does not spoil a figure.
CpuLimits measure_machine(const LimitsProgress& progress) {
  constexpr int kRounds = 3, kReadPasses = 4, kPeakTimes = 3;
  constexpr double kPeakSeconds = 0.01;
  CpuLimits m;
  m.id = this_machine();
  m.measured = utc_now();
  for (int n : thread_counts(m.id.cores)) m.reads.push_back({n, 0});
  std::vector<const PeakRow*> rows;
  for (const PeakRow& r : peak_rows()) {
    if (!cpu_features().has(r.need)) continue;
    rows.push_back(&r);
    m.peaks.push_back({r.name, peak_type_name(r.type), 0, 0});
  }
  size_t steps = kRounds * (m.reads.size() + rows.size()), done = 0;
  auto begin_step = [&](const std::string& what) {
    if (progress) progress(what, static_cast<double>(done++) / static_cast<double>(steps));
  };
  std::unique_ptr<ReadProbe> probe;
  with_pool(m.id.cores, [&](ThreadPool& pool) { probe = std::make_unique<ReadProbe>(pool); });
  for (int round = 0; round < kRounds; ++round) {
    for (ReadRate& r : m.reads) {
      begin_step(strf("reading memory, %d thread%s", r.threads, r.threads == 1 ? "" : "s"));
      with_pool(r.threads, [&](ThreadPool& pool) {
        r.bytes_per_s = std::max(r.bytes_per_s, probe->measure(pool, kReadPasses));
      });
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      begin_step(rows[i]->name);
      auto raise = [&](double& rate, int threads) {
        with_pool(threads, [&](ThreadPool& pool) {
          rate = std::max(rate, measure_peak(pool, *rows[i], kPeakSeconds, kPeakTimes));
        });
      };
      raise(m.peaks[i].one, 1);
      raise(m.peaks[i].all, m.id.cores);
    }
  }
  return m;
}

}  // namespace sluice
