// Random workloads over two engines, one of which computes prompts for the other: requests and both
// schedulers as property_workload.h draws them, and which engine computes what. The same seed draws
// the same workload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "net/byte_stream.h"
#include "property_workload.h"

namespace sluice {

struct PdRequest {
  enum class Way : uint8_t {
    prefill_side,  // the engine that computes prompts does all of it
    decode_side,   // the other one does
    handed_over,   // its prompt is computed under a lease by the one; the other goes on with it
    prefix,        // the other does all of it, and fetches what the first one has cached
  };
  Request request;
  Way way = Way::decode_side;
  // Handed over: both know the lease's name beforehand, so that blocks leave while the prompt is
  // computed; else they are fetched when it is done.
  bool pending = false;
  bool prefill_cancelled = false;
  int cancel_after = 0;  // events of the engine that answers; 0: never
};

struct PdWorkload {
  // Why blocks do not come.
  enum class Loss : uint8_t {
    none,
    expired,  // leases end with their prompts
    cut,      // each connection ends after `cut_after` bytes, or, by shared memory, all of them end
              // when so many requests have begun
  };
  std::vector<PdRequest> requests;
  Setup from, to;
  bool by_layers = false;
  bool keyed = false;
  Transport transport = Transport::tcp;
  Loss loss = Loss::none;
  size_t cut_after = 0;
  size_t width = 1;  // requests at a time
};

PdWorkload make_pd_workload(uint64_t seed, const Subject& subject);

// What a router asks the engine that computes the prompt for.
Request prefill_request(const Request& r);

}  // namespace sluice
