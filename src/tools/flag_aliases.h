// Flags that people know from llama.cpp, vLLM and ollama: those with an equal here are replaced by
// it, the others get an error that names what to use. Pure functions over one table.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice {

// Words of a flag that is ours: 0 for a switch, 1 for an option with a value, -1 for neither.
using FlagWords = std::function<int(std::string_view flag)>;

// The command line behind `command` ("run", "bench latency"), with every foreign flag replaced.
Result<std::vector<std::string>> replace_foreign_flags(std::string_view command,
                                                       const std::vector<std::string>& words,
                                                       const FlagWords& ours);

}  // namespace sluice
