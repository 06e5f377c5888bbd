// smollm2, the model that is fetched where nobody has another one.
#pragma once

#include <string>

#include "base/result.h"

namespace sluice {

// default_model_path() of open.h, after the file was fetched where it is not there.
Result<std::string> fetch_default_model();

}  // namespace sluice
