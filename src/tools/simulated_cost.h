// What steps cost on the device that `serve --simulate` pretends to have.
#pragma once

#include <string>

#include "core/step_cost.h"
#include "runtime/options.h"

namespace sluice {

// `what`: a file of `plan calibrate` (*.json), of whatever model; or a device of `plan`, for which
// the cost is derived from the model's headers.
Result<StepCost> simulated_cost(const EngineOptions& engine, const std::string& what);

}  // namespace sluice
