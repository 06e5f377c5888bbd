// Completion scripts for shells, made from the option table itself. For cli.cc.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace sluice {

enum class Shell { bash, zsh, fish };
std::string completion_script(const CLI::App& app, Shell shell);

}  // namespace sluice
