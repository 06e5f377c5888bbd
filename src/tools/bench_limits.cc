#include "tools/bench_limits.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "backend/cpu/features.h"
#include "backend/cuda_plugin.h"
#include "base/str.h"
#include "runtime/placement.h"
#include "tools/bandwidth.h"
#include "tools/terminal.h"

namespace sluice {

CpuLimits measure_with_status(bool quiet) {
  StatusLine status(!quiet);
  return measure_machine([&](const std::string& what, double fraction) {
    status.show(strf("%s %s", progress_bar(fraction).c_str(), what.c_str()), true);
  });
}

CpuLimits kept_limits(bool quiet) {
  MachineId id = this_machine();
  return cached_limits(
      limits_path(id), id, [&] { return measure_with_status(quiet); },
      [](const std::string& line) { std::fprintf(stderr, "sluice: %s\n", line.c_str()); });
}

const BenchLimits::Peak* BenchLimits::best(PeakType type) const {
  const Peak* found = nullptr;
  for (const Peak& p : peaks) {
    if (p.type == type && (!found || p.ops_per_s > found->ops_per_s)) found = &p;
  }
  return found;
}

BenchLimits run_limits(int threads, bool cached, bool quiet) {
  constexpr double kPeakSeconds = 0.01;
  constexpr int kPeakTimes = 4;
  if (threads <= 0) threads = static_cast<int>(usable_cores().size());
  BenchLimits limits;
  CpuLimits kept;
  if (cached) kept = kept_limits(quiet);
  limits.read = cached ? kept.read_rate(threads) : measure_read_bandwidth(threads);
  with_pool(threads, [&](ThreadPool& pool) {
    for (const PeakRow& row : peak_rows()) {
      if (!cpu_features().has(row.need)) continue;
      if (!cached) {
        limits.peaks.push_back(
            {row.name, row.type, measure_peak(pool, row, kPeakSeconds, kPeakTimes)});
        continue;
      }
      for (const PeakRate& p : kept.peaks) {
        if (p.name == row.name)
          limits.peaks.push_back({row.name, row.type, kept.peak_rate(p, threads)});
      }
    }
  });
  return limits;
}

// The type is that of most models: both have the same limits.
Result<DeviceLimits> gpu_limits(const EngineOptions& o) {
  CudaOptions options;
  options.index = o.device.index.value_or(0);
  if (o.dtype == DType::f16) options.activations = DType::f16;
  auto device = open_cuda(options);
  if (!device) return device.error();
  (*device)->attach();
  return (*device)->measure_limits();
}

BenchLimits engine_limits(const EngineOptions& o) {
  const DeviceChoice device = resolve_device(o.device);
  if (device.is_cpu()) return run_limits(o.threads.value_or(0), false, o.quiet);
  BenchLimits limits;
  if (!device.is_gpu()) return limits;
  EngineOptions there = o;
  there.device = device;
  const Result<DeviceLimits> gpu = gpu_limits(there);
  if (!gpu) return limits;
  const bool f8 = o.quantize == Quantize::fp8 && gpu->gemm_f8 > 0;
  const bool i8 = o.quantize == Quantize::w8a8 && gpu->gemm_i8 > 0;
  limits.read = gpu->read;
  limits.peaks.push_back({f8   ? "matrix product in e4m3"
                          : i8 ? "matrix product in int8"
                               : "matrix product",
                          PeakType::bf16,
                          f8   ? gpu->gemm_f8
                          : i8 ? gpu->gemm_i8
                               : gpu->gemm});
  return limits;
}

std::vector<Product> products(const ModelShape& m) {
  int64_t head = m.head_dim, q = m.num_heads * head, kv = m.num_kv_heads * head;
  int64_t gates = m.arch == "gpt2" ? 1 : 2;
  return {{"qkv", q + 2 * kv, m.hidden, m.num_layers},
          {"o", m.hidden, q, m.num_layers},
          {gates == 2 ? "gate_up" : "up", gates * m.ffn, m.hidden, m.num_layers},
          {"down", m.hidden, m.ffn, m.num_layers},
          {"lm_head", m.vocab, m.hidden, 1}};
}

double prefill_ops(const ModelShape& m, int tokens) {
  double ops = 0;
  for (const Product& p : products(m)) {
    double rows = std::string_view(p.name) == "lm_head" ? 1 : tokens;
    ops += 2.0 * static_cast<double>(p.rows) * static_cast<double>(p.cols) * p.times * rows;
  }
  double seen = 0.5 * tokens * (tokens + 1.0);
  return ops + 4.0 * seen * m.num_heads * m.head_dim * m.num_layers;
}

}  // namespace sluice
