// Which of several workers computes a request, or when to come back: the policy of a
// conductor (conductor.h) and of the cluster simulation. A pure function of what is known of the
// workers: no clock, no random number of its own. One thread.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "base/named.h"
#include "core/step_cost.h"

namespace sluice {

enum class Routing { random, round_robin, least_loaded, cache_aware };
inline constexpr NamedValue<Routing> kRoutings[] = {{"random", Routing::random},
                                                    {"round-robin", Routing::round_robin},
                                                    {"least-loaded", Routing::least_loaded},
                                                    {"cache-aware", Routing::cache_aware}};

// prefill: prompts for decode workers. decode: outputs whose prompts a prefill worker computed, and
// whole requests where that is faster. both: whole requests alone.
enum class WorkerRole { both, prefill, decode };
inline constexpr NamedValue<WorkerRole> kWorkerRoles[] = {
    {"both", WorkerRole::both}, {"prefill", WorkerRole::prefill}, {"decode", WorkerRole::decode}};

// A worker at the time of a decision. Plain data.
struct WorkerView {
  static constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
  bool alive = true, draining = false;
  WorkerRole role = WorkerRole::both;
  bool fetches = false;  // of role both: takes K and V that another worker computed
  bool lends = false;    // others may fetch what it has cached
  int lending = 0;       // that do so now
  // Prompts that have no first token yet; `sampled`: how many, `context`: their positions.
  StepLoad queued;
  StepLoad decode;                 // one step of all sequences that decode
  double progress = 0;             // seconds for which the prompt in front has run
  int64_t free_tokens = kUnknown;  // KV positions that nobody holds
  // Steps until the request finds a slot and blocks, where that is known; then free_tokens does not
  // count.
  int64_t room_steps = kUnknown;
  int64_t cached = 0;    // leading tokens of this request's prompt that it holds, or computes
  int64_t lendable = 0;  // of those, what others could fetch: what is there by now
  double pace = 1, decode_pace = 1;  // measured / predicted seconds of prompts and of decodes
  const StepCost* cost = nullptr;    // never null when asked
  int budget = 2048;                 // tokens of a step
};

struct RoutedRequest {
  int64_t tokens = 1;    // of the prompt
  double output = 128;   // tokens, expected
  int home = -1;         // worker of its session's last request; -1: none
  int attempts = 0;      // how often it was rejected before
  bool whole = false;    // one worker computes all of it
  bool fetches = false;  // it may be told to fetch a prefix
  uint64_t draw = 0;     // random bits, for Routing::random
};

struct RoutingConfig {
  Routing policy = Routing::cache_aware;
  // Objectives in seconds; 0: none. With `reject`, requests that would miss them are rejected.
  double ttft = 0, tpot = 0;
  bool reject = false;
  // Seconds to move the KV of one token from worker to worker.
  double transfer = 0;
  bool fetch = false;  // workers may fetch a prefix that another one has cached
  // Workers that can do both compute prompts or decode, as the mix of requests asks for
  // (role_balance.h); choose_worker() itself takes roles as they are.
  bool balance = false;
  // Once it rejects, it goes on until waits are below this share of the limit.
  double resume = 0.8;
  // A session stays where it is while that costs at most this much more than the best worker.
  double stay_share = 0.1, stay_seconds = 5e-3;
  bool operator==(const RoutingConfig&) const = default;
};

// What one decision tells the next.
struct RoutingState {
  uint64_t turn = 0;
  bool rejecting = false;
  bool operator==(const RoutingState&) const = default;
};

// Predicted for a request at a worker, in seconds.
struct RoutingEstimate {
  double wait = 0;           // until its prompt starts: queue, and memory that others hold
  double own = 0;            // transfer and prefill, on both workers where there are two
  double tpot = 0;           // between its tokens
  int fetch_from = -1;       // worker whose prefix is fetched; -1: none
  int64_t fetch_tokens = 0;  // how much of it
  int64_t fetch_end = 0;     // tokens of the prompt that are cached then
  double fetch_wait = 0;     // of `own`, what fetching takes however little it is
  double ttft() const { return wait + own; }
};
// `best`: the worker with the longest cached prefix that may be fetched; -1: none.
RoutingEstimate estimate_request(const RoutingConfig& config,
                                 const RoutedRequest& request,
                                 std::span<const WorkerView> workers,
                                 size_t worker,
                                 int best);

struct RoutingChoice {
  int worker = -1;         // -1: rejected, or nobody takes requests
  int decoder = -1;        // who goes on, where `worker` computes the prompt only; -1: nobody
  bool rejected = false;   // for load
  double retry_after = 0;  // seconds until it would be taken; where rejected
  RoutingEstimate estimate;
};

RoutingChoice choose_worker(const RoutingConfig& config,
                            const RoutedRequest& request,
                            std::span<const WorkerView> workers,
                            RoutingState& state);

// Who goes on with a prompt that a prefill worker has computed; -1: nobody can.
int choose_decoder(const RoutingConfig& config,
                   const RoutedRequest& request,
                   std::span<const WorkerView> workers);

}  // namespace sluice
