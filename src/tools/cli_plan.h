// Options of `sluice plan` and its subcommands. For cli_commands.cc.
#pragma once

#include "tools/cli_commands.h"

namespace sluice {

void add_plan(CLI::App& app, CommandLine& c);

}  // namespace sluice
