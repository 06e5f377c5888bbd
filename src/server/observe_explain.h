// Why a request took the time it took, from what the recorder knows of it: numbers that add up to
// its time, and sentences. Io threads.
#pragma once

#include <optional>

#include "base/json.h"
#include "server/observe.h"

namespace sluice {

const char* state_name(const RequestRecord& r);

// Nothing where the request is not known (any more). `now` ends the time of one that still runs.
std::optional<json::object> explain_request(const Recorder& recorder, RequestId id, Time now);
std::optional<json::object> explain_step(const Recorder& recorder, uint64_t step);

}  // namespace sluice
