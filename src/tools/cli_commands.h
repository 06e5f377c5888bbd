// The commands and their options: one function each in cli_commands.cc. For cli.cc.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>

#include "tools/cli_completion.h"
#include "tools/cli_options.h"
#include "tools/commands.h"
#include "tools/explain.h"
#include "tools/lab/lab.h"
#include "tools/models.h"
#include "tools/plan/plan.h"
#include "tools/replay/replay.h"
#include "tools/resolved_options.h"
#include "tools/route/route.h"
#include "tools/sol.h"

namespace sluice {

// What the parser fills, and what is then to be done.
struct CommandLine {
  RunOptions run;
  ServeOptions serve;
  TokenizeOptions tokenize;
  ConstrainOptions constrain;
  BenchConstraintsOptions constraints;
  InspectOptions inspect;
  ListOptions list;
  PullCommandOptions pull;
  RmOptions rm;
  TemplateOptions chat;
  QuantizeOptions quantize;
  PerplexityOptions perplexity;
  BenchOptions throughput, latency;
  BenchMachineOptions machine;
  BenchKernelsOptions kernels;
  BenchGpuOptions gpu;
  BenchServeOptions load;
  BatchOptions batch;
  RouteOptions route;
  BenchAblateOptions ablate;
  BenchCurveOptions curve;
  BenchLadderOptions ladder;
  BenchSloOptions slo;
  ExplainOptions explain;
  SolOptions sol;
  PlanOptions plan;
  CalibrateOptions calibrate;
  PlanTableOptions table;
  PlanCompareOptions compare;
  PlanClusterOptions cluster;
  ReplayOptions replay;
  Shell shell = Shell::bash;
  PresetChoice policy;
  std::function<ResolvedValues()> resolved = [] { return resolved_values(); };
  std::function<int()> action;
};

// `c` outlives the app.
void add_commands(CLI::App& app, CommandLine& c);

}  // namespace sluice
