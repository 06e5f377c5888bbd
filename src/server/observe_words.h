// A request's time in parts that add up to the whole, and in sentences. Pure functions of a record.
#pragma once

#include "base/json.h"
#include "server/observe.h"

namespace sluice {

struct RequestParts {
  Time total{0}, prepare{0}, compile{0}, fetch{0}, queued{0}, prefill{0}, decode{0}, crowded{0},
      preempted{0}, others{0}, gaps{0}, delivery{0};
};

// When its time begins.
Time begin_of(const RequestRecord& r);
// `device_busy`: the device's busy time at its end, or at `now`, which ends one that still runs.
RequestParts divide(const RequestRecord& r, Time now, Time device_busy);
// By how much its decode steps with prompts of others were longer than those without.
Time prompts_cost(const RequestRecord& r);
json::array story_sentences(const RequestRecord& r, const RequestParts& p);

}  // namespace sluice
