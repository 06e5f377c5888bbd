// Options of `sluice route`. For cli_commands.cc.
#pragma once

#include "tools/cli_commands.h"

namespace sluice {

void add_route(CLI::App& app, CommandLine& c);

}  // namespace sluice
