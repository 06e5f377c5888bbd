// Random workloads for the property tests: requests of all kinds, and a scheduler and an executor
// to run them on. The same seed draws the same workload.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "core/request.h"
#include "property_run.h"
#include "property_subjects.h"

namespace sluice {

struct Workload {
  std::vector<Request> requests;
  std::map<RequestId, int> cancel_at;
  Setup setup;
  int join_every = 0;
};

Workload make_workload(std::mt19937_64& rng, const Subject& subject);

// What tests change of it.
using WorkloadChange = void(std::mt19937_64& rng, Workload& w);
// A small pool that shares prefixes, with room outside it.
WorkloadChange move_much;
// Half of the requests search with beams, in a pool that holds little more than the largest of
// them.
WorkloadChange search_with_beams;
// Turns off what a model in two parts cannot do.
WorkloadChange keep_in_the_pool;
// Some requests get a budget of thinking, by draws of their own.
void bound_thinking(uint64_t seed, int vocab, Workload& w);

}  // namespace sluice
