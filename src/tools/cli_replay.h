// Options of `sluice replay`. For cli_commands.cc.
#pragma once

#include "tools/cli_commands.h"

namespace sluice {

void add_replay(CLI::App& app, CommandLine& c);

}  // namespace sluice
