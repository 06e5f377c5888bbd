// sluice bench kernels: every kernel of the CPU alone, on real shapes, against the machine's
// limits.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>

#include "backend/cpu/cpu_backend.h"
#include "base/metrics.h"
#include "base/str.h"
#include "runtime/bandwidth.h"
#include "tools/bench_limits.h"
#include "tools/commands.h"
#include "tools/kernel_cases.h"
#include "tools/kernel_plan.h"
#include "tools/kernel_report.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

constexpr double kLongest = 0.3;  // seconds: M that would take longer are left out
constexpr double kSampleSeconds = 1e-3, kCaseSeconds = 0.01;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What a round is held against, in bytes and operations per second.
struct RoundLimits {
  double read = 0, own = 0, best = 0;
};

struct Round {
  RoundLimits limits;
  double best = 0;  // seconds of a call
};

// The best limits and the best time of all rounds but one (-1: of all): a neighbour's burst spoils
// neither.
struct BestRounds {
  double time = 0;
  RoundLimits limits;

  BestRounds(const std::vector<Round>& rounds, int without) {
    for (size_t i = 0; i < rounds.size(); ++i) {
      if (static_cast<int>(i) == without && rounds.size() > 1) continue;
      const Round& r = rounds[i];
      time = time == 0 ? r.best : std::min(time, r.best);
      limits.read = std::max(limits.read, r.limits.read);
      limits.own = std::max(limits.own, r.limits.own);
      limits.best = std::max(limits.best, r.limits.best);
    }
  }
  double of_limit(double bytes, double ops) const {
    return std::max(bytes / limits.read, ops / limits.own) / time;
  }
  double of_best(double bytes, double ops) const {
    return std::max(bytes / limits.read, ops / limits.best) / time;
  }
};

KernelTiming summary(const KernelCaseId& id,
                     const KernelCase& kernel,
                     int m,
                     const std::vector<Round>& rounds,
                     Percentiles& times) {
  BestRounds all(rounds, -1);
  KernelTiming t;
  t.kernel = id.kernel;
  t.shape = id.shape_name;
  t.product = id.product;
  t.m = m;
  t.best = all.time;
  t.median = times.at(0.5);
  t.bytes = kernel.bytes(m);
  t.ops = kernel.ops(m);
  t.of_limit = all.of_limit(t.bytes, t.ops);
  t.of_best = all.of_best(t.bytes, t.ops);
  t.passes = {t.of_limit};
  t.by_memory = t.bytes / all.limits.read > t.ops / all.limits.own;
  double least = t.of_limit, most = t.of_limit;
  for (int i = 0; i < static_cast<int>(rounds.size()); ++i) {
    double f = BestRounds(rounds, i).of_limit(t.bytes, t.ops);
    least = std::min(least, f);
    most = std::max(most, f);
  }
  t.noise = (most - least) / t.of_limit;
  return t;
}

class KernelBench {
 public:
  // `backend` has as many threads; its thread is the one that drives the pool.
  KernelBench(ThreadPool& pool, Backend& backend, const BenchKernelsOptions& o)
      : pool_(pool),
        backend_(backend),
        o_(o),
        rotation_(static_cast<size_t>(o.rotate_mb) * 1'000'000) {
    if (o.limits == "cached") {
      kept_ = kept_limits(o.quiet);
    } else {
      probe_ = std::make_unique<ReadProbe>(pool, rotation_.bytes());
    }
  }

  std::vector<KernelTiming> measure(const KernelCaseId& id) {
    std::unique_ptr<KernelCase> kernel = make(id);
    std::vector<std::vector<Round>> rounds(id.ms.size());
    std::vector<Percentiles> times(id.ms.size());
    size_t num = id.ms.size();
    shown_ = {};
    for (int n = 0; n < o_.rounds; ++n) {
      RoundLimits limits = limits_of(id);
      shown_.read = std::max(shown_.read, limits.read);
      shown_.own = std::max(shown_.own, limits.own);
      shown_.best = std::max(shown_.best, limits.best);
      for (size_t i = 0; i < num; ++i) {
        double best = sample(*kernel, id.ms[i], times[i]);
        rounds[i].push_back({limits, best});
        if (i + 1 < num && best / id.ms[i] * id.ms[i + 1] > kLongest) num = i + 1;
      }
    }
    std::vector<KernelTiming> rows;
    for (size_t i = 0; i < num; ++i)
      rows.push_back(summary(id, *kernel, id.ms[i], rounds[i], times[i]));
    return rows;
  }
  // The best of the last case's rounds.
  const RoundLimits& limits() const { return shown_; }

 private:
  std::unique_ptr<KernelCase> make(const KernelCaseId& id) {
    if (id.row) return make_matmul_case(pool_, rotation_, {id.row, id.rows, id.cols, id.ms.back()});
    return make_attention_case(backend_, rotation_.bytes(),
                               {id.shape, id.kv, id.decode, id.ms.back()});
  }

  double peak(const PeakRow& row) {
    constexpr double kSeconds = 0.002;
    if (probe_) return measure_peak(pool_, row, kSeconds, 2);
    for (const PeakRate& p : kept_.peaks) {
      if (p.name == row.name) return kept_.peak_rate(p, pool_.size());
    }
    return 0;
  }

  RoundLimits limits_of(const KernelCaseId& id) {
    RoundLimits l;
    l.read = probe_ ? probe_->measure(pool_, 2) : kept_.read_rate(pool_.size());
    std::vector<const PeakRow*> peaks = usable_peaks(id.row ? row_type(*id.row) : PeakType::f32);
    const PeakRow* own = id.row ? own_peak(*id.row) : nullptr;
    if (!peaks.empty()) l.best = peak(*peaks[0]);
    l.own = own && own != peaks[0] ? peak(*own) : l.best;
    if (l.best <= 0) l.best = l.own = 1e18;  // no peak is known: memory is the limit
    return l;
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

  ThreadPool& pool_;
  Backend& backend_;
  const BenchKernelsOptions& o_;
  Rotation rotation_;
  std::unique_ptr<ReadProbe> probe_;
  CpuLimits kept_;
  RoundLimits shown_;
};

std::string duration(double s) {
  return s < 1e-3 ? strf("%.1f us", s * 1e6) : strf("%.2f ms", s * 1e3);
}

// How far times are from never falling as M grows: the issue is a batch that waits for no reason.
void print_stairs(const std::vector<KernelTiming>& rows) {
  constexpr int kLeast = 4;  // neighbours to compare
  double worst = 0;
  int at = 0, pairs = 0;
  const KernelTiming *nine = nullptr, *sixteen = nullptr;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].m == 9) nine = &rows[i];
    if (rows[i].m == 16) sixteen = &rows[i];
    if (i + 1 == rows.size() || rows[i + 1].m != rows[i].m + 1) continue;
    ++pairs;
    double ratio = rows[i].best / rows[i + 1].best;
    if (ratio <= worst) continue;
    worst = ratio;
    at = rows[i].m;
  }
  if (pairs < kLeast) return;
  std::printf("       t(M) / t(M + 1) at most %.2f, at M = %d", worst, at);
  if (nine && sixteen) std::printf("; t(9) / t(16) = %.2f", nine->best / sixteen->best);
  std::printf("\n");
}

void print_case(const KernelCaseId& id,
                const RoundLimits& l,
                const std::vector<KernelTiming>& rows) {
  std::printf("%s  %s %s", id.kernel.c_str(), id.shape_name.c_str(), id.product.c_str());
  if (id.row)
    std::printf(" %lld x %lld, %s", static_cast<long long>(id.rows),
                static_cast<long long>(id.cols),
                human_bytes(static_cast<uint64_t>(rows[0].bytes)).c_str());
  std::printf("  (memory %.1f GB/s, peak %.0f Gop/s%s)\n", l.read / 1e9, l.own / 1e9,
              l.best > l.own * 1.05 ? strf(", best %.0f", l.best / 1e9).c_str() : "");
  std::printf("%6s %11s %11s %9s %9s %9s %9s %7s\n", "M", "best", "median", "GB/s", "Gop/s",
              "of limit", "of best", "noise");
  for (const KernelTiming& t : rows) {
    std::printf("%6d %11s %11s %9.1f %9.1f %7.1f %% %7.1f %% %5.1f %%  %s\n", t.m,
                duration(t.best).c_str(), duration(t.median).c_str(), t.bytes / t.best / 1e9,
                t.ops / t.best / 1e9, t.of_limit * 100, t.of_best * 100, t.noise * 100,
                t.by_memory ? "memory" : "compute");
  }
  print_stairs(rows);
  std::printf("\n");
  std::fflush(stdout);
}

// A report of this machine.
Result<KernelReport> read_report(const std::string& path, int threads) {
  Result<std::string> text = read_text(path);
  if (!text) return text.error();
  Result<KernelReport> r = parse_report(*text);
  if (!r) return Error{400, strf("%s: %s", quote(path, 400).c_str(), r.error().message.c_str())};
  MachineId here = this_machine();
  if (r->id != here || r->threads != threads) {
    return Error{400, strf("%s is of %s, %d cores, %s, %d threads; this is %s, %d cores, %s, %d "
                           "threads: write a report of this machine with --json",
                           quote(path, 400).c_str(), quote(r->id.cpu).c_str(), r->id.cores,
                           quote(r->id.isa).c_str(), r->threads, here.cpu.c_str(), here.cores,
                           here.isa.c_str(), threads)};
  }
  return r;
}

// Only what the baseline holds.
void keep_known(std::vector<KernelCaseId>& cases, const KernelReport& baseline) {
  for (KernelCaseId& c : cases) {
    std::erase_if(c.ms, [&](int m) { return baseline.find(c.key(m)) == nullptr; });
  }
  std::erase_if(cases, [](const KernelCaseId& c) { return c.ms.empty(); });
}

// Slower rows are measured again: a neighbour's burst is not a regression. The best run counts.
void measure_suspects(KernelBench& bench,
                      const std::vector<KernelCaseId>& cases,
                      const KernelReport& baseline,
                      double least,
                      KernelReport& report) {
  constexpr int kTimes = 3;
  for (int again = 0; again < kTimes; ++again) {
    std::vector<KernelChange> changes = compare_reports(baseline, report, least);
    auto slower = [&](const std::string& key) {
      return std::ranges::any_of(changes,
                                 [&](const KernelChange& c) { return c.key == key && c.slower(); });
    };
    for (KernelCaseId c : cases) {
      std::erase_if(c.ms, [&](int m) {
        return !slower(
            strf("%s %s %s %d", c.kernel.c_str(), c.shape_name.c_str(), c.product.c_str(), m));
      });
      if (c.ms.empty()) continue;
      for (const KernelTiming& t : bench.measure(c)) {
        for (KernelTiming& old : report.rows) {
          if (old.key() == t.key() && t.of_limit > old.of_limit) old = t;
        }
      }
    }
  }
}

int print_changes(const std::vector<KernelChange>& changes) {
  int slower = 0, faster = 0;
  for (const KernelChange& c : changes) {
    if (!c.slower() && !c.faster()) continue;
    (c.slower() ? slower : faster) += 1;
    std::printf("%-7s %-56s %5.1f %% of the limit, was %5.1f %% (noise %.1f %%)\n",
                c.slower() ? "SLOWER" : "faster", c.key.c_str(), c.after * 100, c.before * 100,
                c.tolerance * 100);
  }
  std::printf("%zu rows compared: %d slower, %d faster\n", changes.size(), slower, faster);
  return slower > 0 ? kExitFailure : kExitOk;
}

Result<void> write_report(const std::string& path, const KernelReport& report) {
  std::string text = report_to_json(report);
  if (path == "-") {
    std::fputs(text.c_str(), stdout);
    return {};
  }
  std::ofstream out(path);
  out << text;
  out.close();
  if (!out) return Error{500, strf("cannot write %s", quote(path, 400).c_str())};
  return {};
}

BenchKernelsOptions with_defaults(BenchKernelsOptions o) {
  if (o.threads <= 0) o.threads = static_cast<int>(usable_cores().size());
  if (o.quick) {
    o.shapes.resize(1);
    if (o.products.empty()) o.products = {"gate_up", "down", "decode@512", "prefill"};
    if (o.m == BenchKernelsOptions().m) o.m = "1,16,512";
    o.rounds = std::min(o.rounds, 2);
  }
  if (!o.compare.empty()) o.rows = "all";  // the baseline says which
  return o;
}

}  // namespace

int cmd_bench_kernels(const BenchKernelsOptions& given) {
  const BenchKernelsOptions o = with_defaults(given);
  Result<std::vector<int>> ms = parse_ms(o.m);
  if (!ms) return report(ms.error());
  Result<std::vector<KernelCaseId>> cases = kernel_cases(o, *ms);
  if (!cases) return report(cases.error());
  KernelReport baseline, result, earlier;
  if (o.add) {
    if (o.json.empty() || o.json == "-")
      return report(Error{400, "--add adds to the report of --json: name its file"});
    Result<KernelReport> r = read_report(o.json, o.threads);
    if (!r) return report(r.error());
    earlier = std::move(*r);
  }
  result.id = this_machine();
  result.threads = o.threads;
  result.measured = utc_now();
  if (!o.compare.empty()) {
    Result<KernelReport> r = read_report(o.compare, o.threads);
    if (!r) return report(r.error());
    baseline = std::move(*r);
    keep_known(*cases, baseline);
    if (cases->empty())
      return report(Error{
          400, strf("%s holds nothing of what the options leave", quote(o.compare, 400).c_str())});
  }
  bool table = o.json != "-" && o.compare.empty();
  // Made here: it looks for cores, and the thread below is bound to one.
  CpuOptions cpu;
  cpu.threads = o.threads;
  std::unique_ptr<Backend> backend = make_cpu_backend(cpu);
  with_pool(o.threads, [&](ThreadPool& pool) {
    KernelBench bench(pool, *backend, o);
    StatusLine status(!o.quiet);
    for (size_t i = 0; i < cases->size(); ++i) {
      const KernelCaseId& c = (*cases)[i];
      double done = static_cast<double>(i) / static_cast<double>(cases->size());
      status.show(strf("%s %s %s %s", progress_bar(done).c_str(), c.kernel.c_str(),
                       c.shape_name.c_str(), c.product.c_str()),
                  true);
      std::vector<KernelTiming> rows = bench.measure(c);
      status.clear();
      if (table) print_case(c, bench.limits(), rows);
      result.rows.insert(result.rows.end(), rows.begin(), rows.end());
    }
    if (!o.compare.empty()) {
      status.show("measuring what was slower again", true);
      measure_suspects(bench, *cases, baseline, o.tolerance, result);
    }
  });
  if (!o.json.empty()) {
    KernelReport whole = result;
    if (o.add) {
      whole = std::move(earlier);
      add_pass(whole, result);
    }
    if (auto ok = write_report(o.json, whole); !ok) return report(ok.error());
  }
  if (o.compare.empty()) return kExitOk;
  return print_changes(compare_reports(baseline, result, o.tolerance));
}

}  // namespace sluice
