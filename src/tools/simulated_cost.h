// What steps cost, for servers: on the device that `serve --simulate` pretends to have, and as
// `serve --cost` predicts it.
#pragma once

#include <string>

#include "core/step_cost.h"
#include "runtime/options.h"

namespace sluice {

// `what`: a file of `plan calibrate` (*.json), of whatever model; or a device of `plan`, for which
// the cost is derived from the model's headers.
Result<StepCost> simulated_cost(const EngineOptions& engine, const std::string& what);

// `what` of `serve --cost`: such a file of this very model, options and kind of device; or a
// device.
Result<StepCost> predicted_cost(const EngineOptions& engine, const std::string& what);

}  // namespace sluice
