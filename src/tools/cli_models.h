// Options of list, pull and rm, which manage stored models. For cli_commands.cc.
#pragma once

#include "tools/cli_commands.h"

namespace sluice {

void add_list(CLI::App& app, CommandLine& c);
void add_pull(CLI::App& app, CommandLine& c);
void add_rm(CLI::App& app, CommandLine& c);

}  // namespace sluice
