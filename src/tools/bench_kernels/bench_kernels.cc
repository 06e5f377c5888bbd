// sluice bench kernels: every kernel of the CPU alone, on real shapes, against the machine's
// limits.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <optional>

#include "backend/cpu/cpu_backend.h"
#include "base/str.h"
#include "tools/bench_limits.h"
#include "tools/commands.h"
#include "tools/bench_kernels/bench.h"
#include "tools/bench_kernels/plan.h"
#include "tools/bench_kernels/report.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

std::string duration(double s) {
  return s < 1e-3 ? strf("%.1f us", s * 1e6) : strf("%.2f ms", s * 1e3);
}

// How far times are from never falling as M grows: a batch of M should not wait longer than one of
// M + 1.
std::string stairs(const std::vector<StepTime>& times) {
  constexpr int kLeast = 4;  // neighbours to compare
  double worst = 0, nine = 0, sixteen = 0;
  int at = 0, pairs = 0;
  for (size_t i = 0; i < times.size(); ++i) {
    if (times[i].m == 9) nine = times[i].seconds;
    if (times[i].m == 16) sixteen = times[i].seconds;
    if (i + 1 == times.size() || times[i + 1].m != times[i].m + 1) continue;
    ++pairs;
    double ratio = times[i].seconds / times[i + 1].seconds;
    if (ratio <= worst) continue;
    worst = ratio;
    at = times[i].m;
  }
  if (pairs < kLeast) return {};
  std::string text = strf("       t(M) / t(M + 1) at most %.2f, at M = %d", worst, at);
  if (nine > 0 && sixteen > 0) text += strf("; t(9) / t(16) = %.2f", nine / sixteen);
  return text + "\n";
}

void print_case(const KernelCaseId& id,
                const RoundLimits& l,
                const std::vector<KernelTiming>& rows) {
  std::printf("%s  %s %s", id.kernel.c_str(), id.shape_name.c_str(), id.product.c_str());
  if (id.row)
    std::printf(" %lld x %lld, %s", static_cast<long long>(id.rows),
                static_cast<long long>(id.cols),
                human_bytes(static_cast<uint64_t>(rows[0].bytes)).c_str());
  std::printf("  (memory %.1f GB/s", l.read / 1e9);
  if (l.own < kNoPeak) std::printf(", peak %.0f Gop/s", l.own / 1e9);
  if (l.best > l.own * 1.05) std::printf(", best %.0f", l.best / 1e9);
  std::printf(")\n");
  std::printf("%6s %11s %11s %9s %9s %9s %9s %7s\n", "M", "best", "median", "GB/s", "Gop/s",
              "of limit", "of best", "noise");
  for (const KernelTiming& t : rows) {
    std::printf("%6d %11s %11s %9.1f %9.1f %7.1f %% %7.1f %% %5.1f %%  %s\n", t.m,
                duration(t.best).c_str(), duration(t.median).c_str(), t.bytes / t.best / 1e9,
                t.ops / t.best / 1e9, t.of_limit * 100, t.of_best * 100, t.noise * 100,
                t.by_memory ? "memory" : "compute");
  }
  std::vector<StepTime> times;
  for (const KernelTiming& t : rows) times.push_back({t.m, t.best, t.best * t.of_limit});
  std::printf("%s\n", stairs(times).c_str());
  std::fflush(stdout);
}

// After the last case of a kernel and a shape: what its matmuls make of a step.
void print_step(const std::vector<KernelCaseId>& cases, const std::vector<KernelTiming>& rows) {
  std::vector<StepTime> steps = step_times(cases, rows);
  if (steps.empty()) return;
  std::printf("%s  %s: all matmuls of a step\n", cases[0].kernel.c_str(),
              cases[0].shape_name.c_str());
  std::printf("%6s %11s %11s %9s\n", "M", "best", "tokens/s", "of limit");
  for (const StepTime& s : steps)
    std::printf("%6d %11s %11.0f %7.1f %%\n", s.m, duration(s.seconds).c_str(), s.m / s.seconds,
                s.limit / s.seconds * 100);
  std::printf("%s\n", stairs(steps).c_str());
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

// Slower rows are measured again, as more passes: a neighbour's burst is not a regression.
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
      KernelReport more;
      more.rows = bench.measure(c);
      more.measured = report.measured;
      add_pass(report, more);
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
    if (o.shapes == BenchKernelsOptions().shapes) o.shapes.resize(1);
    if (o.m == BenchKernelsOptions().m) o.m = "1,16,512";
    o.rounds = std::min(o.rounds, 2);
  }
  if (!o.compare.empty()) o.rows = KernelRows::all;  // the baseline says which
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
  // Here, because they look for cores, and the thread below is bound to one.
  std::optional<CpuLimits> kept;
  if (o.limits == LimitsFrom::cache) kept = kept_limits(o.quiet);
  CpuOptions cpu;
  cpu.threads = o.threads;
  std::unique_ptr<Backend> backend = make_cpu_backend(cpu);
  with_pool(o.threads, [&](ThreadPool& pool) {
    KernelBench bench(pool, *backend, o, kept);
    StatusLine status(!o.quiet);
    std::vector<KernelCaseId> step;  // the cases of this kernel and shape so far
    for (size_t i = 0; i < cases->size(); ++i) {
      const KernelCaseId& c = (*cases)[i];
      if (!step.empty() && (step[0].kernel != c.kernel || step[0].shape_name != c.shape_name))
        step.clear();
      step.push_back(c);
      double done = static_cast<double>(i) / static_cast<double>(cases->size());
      status.show(strf("%s %s %s %s", progress_bar(done).c_str(), c.kernel.c_str(),
                       c.shape_name.c_str(), c.product.c_str()),
                  true);
      std::vector<KernelTiming> rows = bench.measure(c);
      status.clear();
      if (table) print_case(c, bench.limits(), rows);
      result.rows.insert(result.rows.end(), rows.begin(), rows.end());
      if (table && c.row) print_step(step, result.rows);
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
