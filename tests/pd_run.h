// Runs a workload on two engines of real models that are connected as servers are: a port and
// leases on the one side, a fetcher on the other.
#pragma once

#include <cstdint>
#include <vector>

#include "pd_workload.h"
#include "property_run.h"

namespace sluice {

struct PdTally {
  Tally outputs;
  uint64_t handed_over = 0;
  // Requests that began behind blocks which had come: of prompts that were computed by then, or
  // while they were computed, block by block or layer by layer.
  uint64_t fetched_at_end = 0, fetched_by_steps = 0, fetched_by_layers = 0;
  uint64_t fetched_tcp = 0, fetched_shm = 0, fetched_keyed = 0, fetched_windowed = 0;
  uint64_t prefixes = 0;                   // requests that began behind a prefix which had come
  uint64_t sent_by_layers = 0;             // blocks
  uint64_t lost = 0;                       // requests whose fetch failed
  uint64_t lost_in_middle = 0;             // of those, after some of the blocks had come
  uint64_t expired = 0;                    // leases
  uint64_t preempted = 0;                  // sequences of requests whose prompts were fetched
  uint64_t preemptions = 0, restored = 0;  // of both engines
  uint64_t fetched() const { return fetched_at_end + fetched_by_steps + fetched_by_layers; }
};

// The outputs, in the order of the requests. All that both sides held has been given back.
std::vector<Output> run_pd(Subject& subject, const PdWorkload& w, PdTally* tally);

}  // namespace sluice
