// Chooses a worker for each request (routing_policy.h). It learns loads, cached prefixes, sessions
// and how far predictions are off from what it sent to the workers and what came back. For the
// cluster simulation and `sluice route`. Pure: same calls, same choices. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/clock.h"
#include "core/kv_picture.h"
#include "core/lru_map.h"
#include "core/role_balance.h"
#include "core/routing_policy.h"

namespace sluice {

struct ConductorWorker {
  StepCost cost;
  WorkerRole role = WorkerRole::both;
  bool fetches = false;  // of role both: takes K and V that another worker computed
  bool lends = false;    // others may fetch what it has cached
  uint64_t rank = 0;     // workers of the lowest rank are the first to compute prompts alone
  int budget = 2048;
  int64_t kv_tokens = 0;         // positions of its pool; 0: unknown
  size_t prefix_blocks = 65536;  // hashes remembered of what it caches
};

class Conductor {
 public:
  static constexpr size_t kSessions = 65536;

  Conductor(RoutingConfig config, std::vector<ConductorWorker> workers, const HashKey& key = {});

  struct Ask {
    int64_t tokens = 1;                // of the prompt
    std::span<const uint64_t> blocks;  // hash of each full block of it and all before it
    int block_tokens = 512;
    uint64_t session = 0;  // hash; 0: none
    int attempts = 0;
    uint64_t draw = 0;
    uint64_t avoid = 0;        // workers that have failed this request, a bit each
    bool whole = false;        // one worker computes all of it
    bool handed_over = false;  // a prefill worker has computed the prompt
    bool again = false;        // and another worker was to go on with it, but failed
    bool fetches = false;      // its worker may be told to fetch a prefix
    int fetch_from = -1;       // worker whose prefix is fetched, as choose() said
    int64_t fetch_tokens = 0;  // of it
    double fetch_wait = 0;     // seconds, likewise
  };
  // Decides; nothing is counted until sent().
  RoutingChoice choose(const Ask& ask, Time now);
  // Who goes on with a prompt that a prefill worker has computed; -1: nobody can.
  int choose_decoder(const Ask& ask, Time now);

  using Ticket = uint32_t;
  // The request goes to this worker. It stays counted until ended().
  Ticket sent(int worker, const Ask& ask, Time now);
  // So many more tokens came; the first one teaches the worker's pace, or how long handing over
  // a prompt takes.
  void tokens(Ticket ticket, int num, Time now);
  // Its worker says which share of the prompt it has fetched, and how long that took.
  void fetched(Ticket ticket, double share, double seconds);
  // `whole`: it ended as it should, so its length says something of others'.
  void ended(Ticket ticket, bool whole, Time now);

  // The workers' caches, by their KV events. A worker whose events are not known, or a text whose
  // tokens are not known yet, counts as before: the worker has what it was sent.
  KvPicture& kv() { return kv_; }
  const KvPicture& kv() const { return kv_; }
  // The worker says which of its blocks ends the prompt of a request.
  void prompt_ends(int worker, const Ask& ask, uint64_t kv_block);

  // A worker that is not alive gets nothing, and has lost its cache.
  void set_alive(int worker, bool alive);
  void set_draining(int worker, bool draining);
  // A worker that may be dead gets nothing while others take requests. It keeps its cache.
  void set_suspect(int worker, bool suspect) { at(worker).suspect = suspect; }
  void set_role(int worker, WorkerRole role, bool fetches, bool lends);
  void set_rank(int worker, uint64_t rank) { at(worker).config.rank = rank; }
  void set_kv_tokens(int worker, int64_t tokens) { at(worker).config.kv_tokens = tokens; }

  WorkerView view(int worker, const Ask& ask, Time now) const;
  size_t num_workers() const { return workers_.size(); }
  int num_requests(int worker) const { return at(worker).num_requests; }
  bool alive(int worker) const { return at(worker).alive; }
  bool draining(int worker) const { return at(worker).draining; }
  bool suspect(int worker) const { return at(worker).suspect; }
  // Its present role; with RoutingConfig::balance a worker of role both may have another one.
  WorkerRole role(int worker) const { return at(worker).role; }
  uint64_t num_role_changes() const { return num_role_changes_; }
  double transfer() const { return config_.transfer; }  // seconds for the KV of a token
  double pace(int worker) const { return at(worker).pace; }
  double expected_output() const { return output_; }
  bool rejecting() const { return state_.rejecting; }

 private:
  // The request by which a block came to a worker.
  struct Cause {
    Ticket ticket = 0;
    Time at{0};
  };
  struct Worker {
    explicit Worker(ConductorWorker c) : config(std::move(c)), prefixes(config.prefix_blocks) {}
    ConductorWorker config;
    WorkerRole role = config.role;  // at present
    // Its role once the requests of the present one have ended. Until then it gets no others.
    WorkerRole next_role = config.role;
    LruMap<Cause> prefixes;
    bool alive = true, draining = false, suspect = false;
    int num_requests = 0, num_lending = 0;
    StepLoad queued, decode;
    int64_t held = 0;            // KV positions, those of a shared prefix once
    std::deque<Ticket> prompts;  // without a first token, in their order
    Time front_since{0};
    double pace = 1;
    double measured = 0, predicted = 0;  // seconds to first tokens, of late
  };
  struct Sent {
    int worker = -1;  // -1: free
    StepLoad prompt;
    int64_t tokens = 0;   // of the prompt
    int64_t fetched = 0;  // of those, from the worker that computed them
    int64_t held = 0;     // positions that it takes beside what was there
    int output = 0;
    bool decodes = false;
    bool timed = true;          // its first token teaches something
    int lender = -1;            // who is busy with its prefix
    Time lent_until{0};         // at the latest, as far as others are concerned
    double moved = -1;          // seconds that fetching took; -1: not told
    double fetch_wait = 0;      // of those, what is predicted for any length
    double ttft = 0, tpot = 0;  // predicted, at pace 1
    Time at{0}, first{0};
  };
  Worker& at(int worker) { return workers_[static_cast<size_t>(worker)]; }
  const Worker& at(int worker) const { return workers_[static_cast<size_t>(worker)]; }
  // How much a worker has of a block of text.
  enum class Has : uint8_t { no, soon, now };
  Has has_block(int worker, uint64_t block) const;
  Cause cause_of(int worker, uint64_t block, const Cause& request) const;
  void count_cached(int worker, const Ask& ask, WorkerView& out) const;
  void end_lending(Sent& s);
  void forget_lenders(Time now);
  void leave_queue(Worker& w, Ticket ticket, Time now);
  void first_token(Ticket ticket, Time now);
  void learn_pace(Worker& w, double measured, double predicted);
  void update_paces();
  void learn_transfer(double seconds, int64_t tokens);
  void forget_transfer();
  RoutedRequest fill_views(const Ask& ask, Time now);
  // Roles of workers that can do both (conductor_roles.cc).
  void learn_mix(WorkerView alone, int64_t tokens);
  void balance_roles();
  SplitWorkers count_split(std::vector<int>& movable) const;
  SplitSetup split_setup(std::span<const int> movable) const;
  void give_role(Worker& w, WorkerRole role);
  void change_roles();

  RoutingConfig config_;
  RoutingState state_;
  std::vector<Worker> workers_;
  KvPicture kv_;
  LruMap<int> sessions_{kSessions};
  std::vector<Sent> sent_;    // by ticket
  std::vector<Ticket> free_;  // tickets
  std::vector<Ticket> lent_;  // that have a lender, or had one
  double output_ = 128;       // expected tokens of an output
  // Of decode steps, measured over predicted: of all workers, since one step hardly differs from
  // another, and noise would outweigh what does differ.
  double decode_pace_ = 1;
  double num_timed_ = 0;                         // first tokens, of late
  double moved_seconds_ = 0, moved_tokens_ = 0;  // from worker to worker, of late
  double assumed_transfer_ = 0;                  // before anything was learned
  RequestMix mix_;
  uint64_t num_sent_ = 0, num_role_changes_ = 0;
  std::vector<WorkerView> views_;
};

}  // namespace sluice
