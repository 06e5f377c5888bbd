// From what a user calls a model to the file or directory that open_model() takes: names of the
// cache folder, hf:ORG/REPO[:QUANT], fetched where it is not here yet, and paths. Suggests what a
// mistyped name may have meant.
#pragma once

#include <string>

#include "base/result.h"
#include "hub/pull.h"

namespace sluice {

// A path, or `name` itself where that is smollm2 or random:SHAPE.
Result<std::string> find_model(const std::string& name, const PullOptions& options);

// "; did you mean X?" for a name or path that is not there, or nothing.
std::string did_you_mean(const std::string& name);

}  // namespace sluice
