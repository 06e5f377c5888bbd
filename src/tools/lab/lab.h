// Commands that turn claims into measurements: ablate, curve, ladder, slo. For cli_bench_lab.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/named.h"
#include "runtime/options.h"

namespace sluice {

struct LabOptions {
  std::string model = "random:lab-16m", format = "q8_0";
  std::string out;  // folder for files; empty: none
  int threads = 0;  // 0: one per core
  uint64_t seed = 1;
  bool quiet = false, json = false;
};

struct BenchAblateOptions {
  LabOptions lab;
  std::vector<std::string> only;
  int pairs = 3;
  bool full = false, list = false;
};

// Which latency a curve shows, by wde's definitions (step_means.h), or users' own.
enum class CurveLatency : uint8_t { latency, inference, itl };
inline constexpr NamedValue<CurveLatency> kCurveLatencies[] = {
    {"latency", CurveLatency::latency},
    {"inference-time", CurveLatency::inference},
    {"itl", CurveLatency::itl}};

struct BenchCurveOptions {
  LabOptions lab;
  std::vector<int> budgets = {32, 64, 128, 256, 384, 512, 768, 1024, 1536};
  std::vector<std::string> lines = {"sync", "interleave", "overlap"};  // pipelines or presets
  int requests = 64, input = 128, output = 16, repeat = 2;
  CurveLatency latency = CurveLatency::latency;
};

struct BenchLadderOptions {
  LabOptions lab;
  int long_output = 40, short_output = 8, repeat = 1;
  bool full = false;
  BenchLadderOptions() { lab.model = "random:gpt2", lab.format = "bf16"; }
};

// `users` decode all the time, and a long prompt comes every so many seconds.
struct BenchSloOptions {
  EngineOptions engine;  // with its target
  std::vector<int> budgets = {64, 128, 256, 512, 1024, 2048};
  int users = 32, input = 64, output = 512, prompt = 2000, prompt_output = 16;
  double every = 5, duration = 30, warmup = 6;  // seconds
  int repeat = 1;                               // rounds; every other one backwards
  uint64_t seed = 1;
  bool json = false;
};

int cmd_bench_ablate(const BenchAblateOptions& options);
int cmd_bench_curve(const BenchCurveOptions& options);
int cmd_bench_ladder(const BenchLadderOptions& options);
int cmd_bench_slo(const BenchSloOptions& options);

}  // namespace sluice
