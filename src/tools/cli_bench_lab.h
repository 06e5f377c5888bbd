// Options of bench ablate, curve and ladder. For cli_commands.cc.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/lab/lab.h"

namespace sluice {

void add_bench_ablate_options(CLI::App* app, BenchAblateOptions& o);
void add_bench_curve_options(CLI::App* app, BenchCurveOptions& o);
void add_bench_ladder_options(CLI::App* app, BenchLadderOptions& o);

}  // namespace sluice
