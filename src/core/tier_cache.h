// Places for KV blocks outside the pool: host memory for preempted sequences and for prefixes that
// the pool has no room for. Ids only: the memory is exec/host_tier's. Places are numbered from 1:
// those for preempted sequences, then those of the prefix cache, where the least recently used one
// makes room. Owned by the scheduler's BlockCache; copyable; allocates only at construction.
#pragma once

#include <cstddef>
#include <span>

#include "core/block_pool.h"
#include "core/prefix_index.h"
#include "core/step_plan.h"

namespace sluice {

using PlaceId = BlockId;

struct TierSizes {
  int swap = 0;            // places for preempted sequences
  int host = 0;            // places for prefixes
  size_t block_bytes = 0;  // of one place, for figures
  int total() const { return swap + host; }
  bool operator==(const TierSizes&) const = default;
};

class TierCache {
 public:
  TierCache(const TierSizes& sizes, int block_size)
      : sizes_(sizes), swap_(sizes.swap), host_(sizes.host), index_(sizes.host, block_size) {}

  const TierSizes& sizes() const { return sizes_; }
  bool has_prefixes() const { return sizes_.host > 0; }

  // Places for preempted sequences; each has one owner.
  int num_swap_free() const { return swap_.num_free(); }
  PlaceId take_swap() {
    BlockId none;
    return swap_.alloc(none);
  }

  // The place that holds this content, or kNullBlock.
  PlaceId find(const PrefixKey& key, std::span<const Token> tokens) const {
    if (!has_prefixes()) return kNullBlock;
    BlockId at = index_.find(key, tokens);
    return at == kNullBlock ? kNullBlock : sizes_.swap + at;
  }
  // A place for content that is not here yet, with one reference; kNullBlock: it is here, or all
  // places are in use.
  PlaceId insert(const PrefixKey& key, std::span<const Token> tokens) {
    if (!has_prefixes()) return kNullBlock;
    if (BlockId at = index_.find(key, tokens); at != kNullBlock) {
      host_.retain(at), host_.release(at);  // used now
      return kNullBlock;
    }
    BlockId evicted;
    BlockId at = host_.alloc(evicted);
    if (evicted != kNullBlock) index_.erase(evicted);
    if (at == kNullBlock) return kNullBlock;
    index_.insert(key, tokens, at);
    host_.mark_cached(at);
    return sizes_.swap + at;
  }
  // Content that cannot be read, or was never written.
  void forget(PlaceId place) {
    BlockId at = place - sizes_.swap;
    if (at <= 0 || !host_.cached(at)) return;
    index_.erase(at);
    host_.forget(at);
  }
  bool is_swap(PlaceId place) const { return place <= sizes_.swap; }
  // What a place of the prefix cache holds.
  const PrefixKey& key(PlaceId place) const { return index_.key(place - sizes_.swap); }
  std::span<const Token> tokens(PlaceId place) const { return index_.tokens(place - sizes_.swap); }
  bool cached(PlaceId place) const { return !is_swap(place) && host_.cached(place - sizes_.swap); }

  void retain(PlaceId place) {
    is_swap(place) ? swap_.retain(place) : host_.retain(place - sizes_.swap);
  }
  void release(PlaceId place) {
    is_swap(place) ? swap_.release(place) : host_.release(place - sizes_.swap);
  }
  int num_used() const {  // places that hold something
    return sizes_.total() - swap_.num_free() - host_.num_free();
  }
  int num_held() const {  // of those, places that somebody owns
    return num_used() - host_.num_cached();
  }
  void clear() noexcept {
    swap_.clear(), host_.clear();
    index_.clear();
  }
  bool operator==(const TierCache&) const = default;

 private:
  TierSizes sizes_;
  BlockPool swap_, host_;
  PrefixIndex index_;  // of host_
};

}  // namespace sluice
