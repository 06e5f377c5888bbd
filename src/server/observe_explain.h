// Why a request took the time it took, from what the recorder knows of it: numbers that add up to
// its time, and sentences. Io threads.
#pragma once

#include <optional>

#include "base/json.h"
#include "server/observe.h"

namespace sluice {

const char* state_name(const RequestRecord& r);

// A request's story, the same for the page, for GET /v1/requests/ID/story and for `sluice explain`.
// Nothing where the request is not known (any more). `now` ends the time of one that still runs.
// `reader`: only if that key made the request, and without the numbers of other keys' requests.
std::optional<json::object> explain_request(const Recorder& recorder,
                                            RequestId id,
                                            Time now,
                                            std::optional<int> reader = {});
// One line of a list of requests.
json::object summarize_request(const RequestRecord& r, Time now);
std::optional<json::object> explain_step(const Recorder& recorder, uint64_t step);

}  // namespace sluice
