// Parses the command line and runs the subcommand it names.
#pragma once

namespace sluice {

int run_cli(int argc, char** argv);  // the exit code

}  // namespace sluice
