// Host memory for KV blocks that the pool has no room for, one place per block: all planes of a
// block lie behind each other. Owned by an executor, on the thread that moves its blocks.
#pragma once

#include <cstddef>
#include <span>

#include "backend/backend.h"
#include "core/step_plan.h"

namespace sluice {

// Bytes of one block in all planes.
inline size_t block_bytes(std::span<const KvLayer> planes) {
  size_t bytes = 0;
  for (const KvLayer& p : planes) bytes += 2 * p.block_bytes();
  return bytes;
}

class HostTier {
 public:
  HostTier() = default;
  // `memory` holds num_places blocks.
  HostTier(Buffer memory, int num_places, size_t place_bytes)
      : memory_(std::move(memory)), num_places_(num_places), place_bytes_(place_bytes) {}

  int num_places() const { return num_places_; }
  size_t bytes() const { return memory_.bytes(); }
  // Places are numbered from 1.
  std::byte* at(BlockId place) const {
    return static_cast<std::byte*>(memory_.data()) +
           (static_cast<size_t>(place) - 1) * place_bytes_;
  }

 private:
  Buffer memory_;
  int num_places_ = 0;
  size_t place_bytes_ = 0;
};

// Calls `move(piece of the block, piece of `memory`, bytes)` for each piece of a block.
void for_pieces(std::span<const KvLayer> planes, BlockId block, std::byte* memory, auto&& move) {
  for (const KvLayer& p : planes) {
    size_t bytes = p.block_bytes();
    for (void* side : {p.k, p.v}) {
      move(static_cast<std::byte*>(side) + static_cast<size_t>(block) * bytes, memory, bytes);
      memory += bytes;
    }
  }
}

// Calls `run(kind, transfers)` for each run of transfers of one kind, in their order. Within a run
// they are independent of each other.
void for_runs(std::span<const Transfer> transfers, auto&& run) {
  for (size_t at = 0, end = 0; at < transfers.size(); at = end) {
    while (end < transfers.size() && transfers[end].kind == transfers[at].kind) ++end;
    run(transfers[at].kind, transfers.subspan(at, end - at));
  }
}

}  // namespace sluice
