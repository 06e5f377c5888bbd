// Several engines in virtual time behind a conductor: every worker is a scheduler with a cost of
// steps, and the conductor knows of them only what it sent and what came back by then. With roles,
// K and V move at the end of a prompt, with RoutingConfig::fetch those of cached prefixes before
// it, over one link of each worker, one prompt after the other. Pure: the same arguments give the
// same run. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/routing_policy.h"
#include "core/simulation.h"

namespace sluice {

struct ClusterSetup {
  SimSetup worker;  // all are alike
  int num_workers = 1;
  std::vector<WorkerRole> roles;  // by worker; empty: each does whole requests
  RoutingConfig routing;          // its `transfer`: seconds on a link for the KV of a token;
                                  // with `balance` no roles are given
  uint64_t seed = 1;              // of Routing::random
};

struct ClusterRun {
  // A request whose prompt another worker computed is in the run of the worker that decoded it,
  // timed from its arrival in the cluster.
  std::vector<SimRun> workers;
  std::vector<int> placed;  // by request: the worker that it was sent to first; -1: rejected
  uint64_t num_handed_over = 0;
  uint64_t num_fetches = 0;         // requests that had a prefix fetched
  uint64_t num_fetched_tokens = 0;  // that came; hits of their worker, too
  uint64_t num_role_changes = 0;
  uint64_t num_rejected = 0;
  std::vector<double> retry_after;  // of the rejected ones, seconds
};

// Requests with a longer prompt than the context go to a worker, which refuses them.
ClusterRun simulate_cluster(const ClusterSetup& setup, std::span<const SimRequest> workload);

// The same worker with places in host memory for four prompts of the longest kind, as those have
// that fetch.
SimSetup with_places(SimSetup worker);

// Hash of each block of a request's prompt and all before it.
std::vector<uint64_t> sim_block_hashes(const SimRequest& request);

}  // namespace sluice
