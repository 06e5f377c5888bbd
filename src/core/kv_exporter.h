// Who hands blocks to other processes. Blocks of requests with a lease are copied to places of the
// host tier as they are filled; such a place then has a reference of the exporter's, which it gives
// back with Scheduler::release_places(). Called on the scheduler's thread, while it changes: an
// implementation must not call back. Not recorded: recordings and exporters do not go together.
#pragma once

#include <memory>
#include <vector>

#include "core/request.h"
#include "core/tier_cache.h"

namespace sluice {

// One block of a prompt, by its number in it and its cache group, and where it lies in host memory.
struct PlacedBlock {
  int index = 0, group = 0;
  PlaceId place = kNullBlock;
  bool operator==(const PlacedBlock&) const = default;
};

class KvExporter {
 public:
  virtual ~KvExporter() = default;
  // A block is on its way; exported() or lost() follows.
  virtual void offered(LeaseId lease) noexcept = 0;
  // It is there. False: nobody wants it any more, and the reference stays the scheduler's.
  virtual bool exported(LeaseId lease, const PlacedBlock& block) noexcept = 0;
  virtual void lost(LeaseId lease) noexcept = 0;
  // All places are gone, with all references. Whoever reads or writes one must be done when this
  // returns.
  virtual void cleared() noexcept = 0;
};

// The full blocks of a prompt, as the prefix cache knows them.
struct PromptBlocks {
  std::shared_ptr<const std::vector<Token>> prompt;
  std::vector<BlockHash> hashes;  // hash_blocks() of it
  TenantId tenant = 0;
};

}  // namespace sluice
