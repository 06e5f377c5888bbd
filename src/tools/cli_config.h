// Options that come from elsewhere than the command line: flags win over SLUICE_* variables, these
// over the file of --config, that over defaults. For cli.cc.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "base/result.h"
#include "tools/resolved_options.h"

namespace sluice {

struct OptionOrigin {
  std::string option;  // "max-seqs"
  std::string origin;  // "SLUICE_MAX_SEQS", "serve.yaml, line 3"
};

// "SLUICE_MAX_SEQS" for "max-seqs".
std::string variable_name(const std::string& option);

// Appends to `args`, the words after `command`'s name, what the environment and the file say of
// options that they do not name. An option of the file that the command does not have is an error;
// a variable is only looked up for options it has.
Result<std::vector<OptionOrigin>> add_outside_options(const CLI::App& command,
                                                      std::vector<std::string>& args);

// `command` as parsed, one line per option: name, value, where that is from. `resolved` are the
// values of options that nobody gave.
std::string describe_options(const CLI::App& command,
                             const std::vector<OptionOrigin>& outside,
                             const ResolvedValues& resolved);

}  // namespace sluice
