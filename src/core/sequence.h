// A sequence's progress: one choice of one request. Owned by the scheduler.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/block_table.h"
#include "core/events.h"
#include "core/request.h"
#include "core/step_plan.h"
#include "core/stop.h"

namespace sluice {

enum class Phase : uint8_t {
  free,     // the record is unused
  forking,  // a further choice, waiting for the first one to compute the prompt
  waiting,  // in the queue, holds nothing
  running,  // has a slot and blocks
  done,     // finished; the record stays while a launched step still names it
};

// What every step reads and writes comes first, in few cache lines: thousands of these are walked
// per step. 256 bytes: their place in a list is a shift away.
struct alignas(64) Sequence {
  Phase phase = Phase::free;
  bool fetching : 1 = false;  // waits for blocks that come in
  bool fork_pending : 1 =
      false;  // choice 0 of n > 1: stops one short of the prompt's end, then forks
  bool constrained : 1 = false;     // the request has a constraint: samples obey a mask
  bool beam : 1 = false;            // one of a search: waits for the others after each token
  bool parked : 1 = false;          // waits for its search to choose the next beams, or is no beam
  bool forced : 1 = false;          // decodes may be of several tokens: append() gave it some
  Pooling pooling = Pooling::none;  // of the request
  uint8_t in_flight = 0;            // launched steps that name it
  Slot slot = 0;
  uint32_t epoch = 0;         // bumped when it leaves its slot; results of older epochs are dropped
  int planned = 0;            // positions launched
  int computed = 0;           // positions whose K and V are known to be in the cache
  int unknown = 0;            // sampled, still on the device
  int num_prompt = 0;         // of the request
  int max_new = 0;            // of the request
  int min_tokens = 0;         // of the request
  int predicted_output = 0;   // tokens expected in all, at most max_new; grows when it gets there
  int num_scored = 0;         // prompt positions whose log-probabilities went out
  int num_registered = 0;     // leading blocks offered to the prefix index
  uint64_t planned_step = 0;  // the last step with a slice of it
  SeqId id;
  std::vector<Token> output;  // known output tokens
  BlockTable table;
  const Request* request = nullptr;  // its Choices keep it
  SeqTiming timing;
  BlockHash last_hash;   // of block num_registered - 1
  uint32_t choices = 0;  // its request's, in the scheduler's list
  int reserved = 0;      // blocks set aside under admission=reserve-max
  StopMatcher stop{{}};

  // Nothing of it is computed or on its way any more, and it has given its blocks back; its tokens
  // stay.
  void reset_progress() {
    planned = computed = unknown = num_registered = 0;
    fetching = forced = false;
  }
  bool operator==(const Sequence&) const = default;
};

static_assert(sizeof(Sequence) == 256);  // indexing is a shift: 2 % of a step's instructions

// A sequence's place in the order of service, beside its record.
struct Standing {
  int64_t rank = 0;      // lower is served first, ties by id
  uint32_t account = 0;  // of the request, in FairShare
  int num_charged = 0;   // positions that the account has paid for
  bool operator==(const Standing&) const = default;
};

// A request and its choices.
struct Choices {
  std::shared_ptr<const Request> request;
  std::vector<uint32_t> seqs;  // indices of its sequences, by choice
  int num_live = 0;            // choices that have not finished
  int num_records = 0;         // sequences not yet recycled
  uint32_t account = 0;        // in FairShare, under order=fair
  int num_exported = 0;        // leading blocks offered to the exporter, with a lease
  bool operator==(const Choices&) const = default;
};

}  // namespace sluice
