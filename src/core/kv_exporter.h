// Who hands blocks to other processes. Blocks of requests with a lease are copied to places of the
// host tier as they are filled; such a place then has a reference of the exporter's, which it gives
// back with Scheduler::release_places(). Called on the scheduler's thread, while it changes: an
// implementation must not call back. Only written() is the executor's, which calls it from any
// thread. Not recorded: recordings and exporters do not go together.
#pragma once

#include <cstddef>
#include <cstdint>
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
  virtual void lost(LeaseId lease, const PlacedBlock& block) noexcept = 0;
  // Instead of offered(), where the executor sends layers (Transfer::send): this step fills the
  // block, and its place layer by layer. Until exported() or lost() the place may be read as far as
  // written() says, and what was read counts only if lost() has not been called by then.
  virtual void leaving(LeaseId lease, const PlacedBlock& block, uint64_t step) noexcept = 0;
  // The first `num_bytes` of every place that this step sends blocks to are there. Steps come in
  // order; their last bytes are never told of: exported() says that they are there.
  virtual void written(uint64_t step, size_t num_bytes) noexcept = 0;
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
