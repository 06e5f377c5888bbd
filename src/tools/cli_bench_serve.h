// Options of `bench serve`. For cli_commands.cc.
#pragma once

#include "tools/commands.h"

namespace CLI {
class App;
}

namespace sluice {

void add_bench_serve_options(CLI::App* app, BenchServeOptions& options);

}  // namespace sluice
