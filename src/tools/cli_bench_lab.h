// Options of bench ablate, curve, ladder and slo. For cli_commands.cc.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/lab/lab.h"

namespace sluice {

void add_bench_ablate_options(CLI::App* app, BenchAblateOptions& o);
void add_bench_curve_options(CLI::App* app, BenchCurveOptions& o);
void add_bench_ladder_options(CLI::App* app, BenchLadderOptions& o);
// Those of the load; the engine's come beside them.
void add_bench_slo_options(CLI::App* app, BenchSloOptions& o);

}  // namespace sluice
