// Host memory of KV blocks as threads beside the engine's see it: they read and write places that
// they hold a reference to. When the engine loses its state all places are void: those that were
// given out before then are neither read nor written any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <span>

#include "core/tier_cache.h"
#include "exec/host_tier.h"

namespace sluice {

class KvPlaces {
 public:
  // Before anything else is called; `tier` outlives this.
  void attach(const HostTier& tier, size_t block_bytes) {
    tier_ = &tier;
    block_bytes_ = block_bytes;
  }
  size_t block_bytes() const { return block_bytes_; }
  // Which places are meant; engine thread.
  uint64_t generation() const { return generation_; }
  // The bytes from `at` on. False: the place is void.
  bool read(uint64_t generation, PlaceId place, size_t at, std::span<std::byte> to) const {
    std::shared_lock lock(mutex_);
    if (generation != generation_) return false;
    std::memcpy(to.data(), tier_->at(place) + at, to.size());
    return true;
  }
  bool write(uint64_t generation, PlaceId place, size_t at, std::span<const std::byte> from) {
    std::shared_lock lock(mutex_);
    if (generation != generation_) return false;
    std::memcpy(tier_->at(place) + at, from.data(), from.size());
    return true;
  }
  // Engine thread: waits for those that read and write.
  void clear() noexcept {
    std::unique_lock lock(mutex_);
    ++generation_;
  }

 private:
  const HostTier* tier_ = nullptr;
  size_t block_bytes_ = 0;
  mutable std::shared_mutex mutex_;
  uint64_t generation_ = 1;  // changed by the engine thread alone
};

}  // namespace sluice
