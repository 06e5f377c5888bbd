// sluice bench machine: what this CPU and its memory can do at best. Kept in the user's cache
// folder.
#include <cstdio>

#include "tools/cpu_limits.h"
#include "tools/bench_limits.h"
#include "tools/commands.h"

namespace sluice {

namespace {

void print_limits(const CpuLimits& m) {
  std::printf("%s, %d core%s, %s\n\n", m.id.cpu.c_str(), m.id.cores, m.id.cores == 1 ? "" : "s",
              m.id.isa.c_str());
  std::printf("%-28s %10s\n", "reading memory, threads", "GB/s");
  for (const ReadRate& r : m.reads) std::printf("%-28d %10.1f\n", r.threads, r.bytes_per_s / 1e9);
  if (m.peaks.empty()) return;
  std::printf("\n%-28s %10s %10s\n", "peak, Gop/s", "1 thread", "all");
  for (const PeakRate& p : m.peaks) {
    std::printf("%-28s %10.0f %10.0f\n", (p.type + " " + p.name).c_str(), p.one / 1e9, p.all / 1e9);
  }
}

}  // namespace

int cmd_bench_machine(const BenchMachineOptions& o) {
  CpuLimits m = measure_with_status(o.quiet);
  if (std::string path = limits_path(m.id); !path.empty()) {
    if (auto ok = save_limits(path, m); !ok) {
      report(ok.error());
    } else if (!o.quiet) {
      std::fprintf(stderr, "kept in %s\n", path.c_str());
    }
  }
  if (o.json) {
    std::printf("%s\n", limits_to_json(m).c_str());
  } else {
    print_limits(m);
  }
  return kExitOk;
}

}  // namespace sluice
