// The values that a command will use for options nobody gave, for `config show`. A value that
// depends on the model's file is a phrase in parentheses: the file is not opened.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tools/commands.h"

namespace sluice {

using ResolvedValues = std::map<std::string, std::string>;  // by the option's long name

ResolvedValues resolved_values(const EngineOptions& options);
ResolvedValues resolved_values(const ServeOptions& options);
ResolvedValues resolved_values(const PerplexityOptions& options);
ResolvedValues resolved_values(const BenchServeOptions& options);
ResolvedValues resolved_values();  // of a command without an engine

// Sequences that may wait for their first token; 0: no limit.
int64_t queue_limit(const ServeOptions& options);
// Names that clients may call the model by, at least one.
std::vector<std::string> served_names(const ServeOptions& options);

}  // namespace sluice
