// smollm2, the default model: fetched into the cache folder on first use.
#pragma once

#include <string>

#include "base/result.h"

namespace sluice {

// default_model_path() of open.h, after the file was fetched where it is not there.
Result<std::string> fetch_default_model();

}  // namespace sluice
