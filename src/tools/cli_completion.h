// Completion scripts for shells, made from the option table itself. For cli.cc.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "base/named.h"

namespace sluice {

enum class Shell { bash, zsh, fish };
inline constexpr NamedValue<Shell> kShells[] = {
    {"bash", Shell::bash}, {"zsh", Shell::zsh}, {"fish", Shell::fish}};
std::string completion_script(const CLI::App& app, Shell shell);

}  // namespace sluice
