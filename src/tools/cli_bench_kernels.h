// Options of `bench kernels`. For cli_commands.cc.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/commands.h"

namespace sluice {

void add_bench_kernels_options(CLI::App* app, BenchKernelsOptions& o);

}  // namespace sluice
