// Places for KV blocks outside the pool: host memory for preempted sequences and for prefixes that
// the pool has no room for, and a disk for all prefixes. Ids only: the memory is exec/host_tier's,
// the disk exec/disk_tier's. Places are numbered from 1: those for preempted sequences, then those
// of the prefix cache in memory, then those on disk; of the last two, the least recently used one
// makes room. Owned by the scheduler's BlockCache; copyable; allocates only at construction.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/block_pool.h"
#include "core/prefix_index.h"
#include "core/step_plan.h"

namespace sluice {

using PlaceId = BlockId;

struct TierSizes {
  int swap = 0;            // places for preempted sequences
  int host = 0;            // places for prefixes
  size_t block_bytes = 0;  // of one place, for figures
  int disk = 0;            // places for prefixes on disk
  int memory() const { return swap + host; }
  int total() const { return memory() + disk; }
  bool operator==(const TierSizes&) const = default;
};

// A block that the disk holds from an earlier run.
struct StoredBlock {
  int place = 0;  // on disk, from 1
  PrefixKey key;
  std::vector<Token> tokens;
};

// Places that hold prefixes, numbered from 1.
class PrefixPlaces {
 public:
  PrefixPlaces(int num, int block_size) : places_(num), index_(num, block_size) {}

  // The place that holds this content, or kNullBlock.
  BlockId find(const PrefixKey& key, std::span<const Token> tokens) const {
    return places_.total() > 0 ? index_.find(key, tokens) : kNullBlock;
  }
  // A place for content that is not here yet, with one reference; kNullBlock: it is here, or all
  // places are in use.
  BlockId insert(const PrefixKey& key, std::span<const Token> tokens, BlockHash parent) {
    if (places_.total() == 0) return kNullBlock;
    if (BlockId at = index_.find(key, tokens); at != kNullBlock) {
      index_.set_parent(at, parent);
      places_.retain(at), places_.release(at);  // used now
      return kNullBlock;
    }
    BlockId evicted;
    BlockId at = places_.alloc(evicted);
    if (evicted != kNullBlock) index_.erase(evicted);
    if (at == kNullBlock) return kNullBlock;
    index_.insert(key, tokens, at, parent);
    places_.mark_cached(at);
    return at;
  }
  // A place for content that comes from elsewhere, with one reference, under no key yet;
  // kNullBlock: all places are in use.
  BlockId reserve() {
    BlockId evicted;
    BlockId at = places_.alloc(evicted);
    if (evicted != kNullBlock) index_.erase(evicted);
    return at;
  }
  // The content has come: it is found from now on, unless the same is here already. Gives the
  // reference back.
  void adopt(BlockId at, const PrefixKey& key, std::span<const Token> tokens, BlockHash parent) {
    if (index_.insert(key, tokens, at, parent)) places_.mark_cached(at);
    places_.release(at);
  }
  // Content that is there from an earlier run, while nothing else is.
  void recall(std::span<const StoredBlock> blocks) {
    BlockId none;
    for (int k = 0; k < places_.total(); ++k) places_.alloc(none);
    for (const StoredBlock& b : blocks) {
      if (b.place >= 1 && b.place <= places_.total() && !places_.cached(b.place) &&
          index_.insert(b.key, b.tokens, b.place))
        places_.mark_cached(b.place);
    }
    for (int k = places_.total(); k > 0; --k) places_.release(k);
  }
  // Content that cannot be read, or was never written.
  void forget(BlockId at) {
    if (!places_.cached(at)) return;
    index_.erase(at);
    places_.forget(at);
  }
  // Forgets what no transfer and no sequence needs.
  void flush() {
    while (BlockId at = places_.oldest_cached()) forget(at);
  }
  void listen(KvListener* to, KvTier tier) { index_.listen(to, tier); }
  void list(KvListener& to) const { index_.list(to); }
  void set_parent(BlockId at, BlockHash parent) { index_.set_parent(at, parent); }
  BlockHash parent(BlockId at) const { return index_.parent(at); }
  const PrefixKey& key(BlockId at) const { return index_.key(at); }
  std::span<const Token> tokens(BlockId at) const { return index_.tokens(at); }
  bool cached(BlockId at) const { return places_.cached(at); }
  void retain(BlockId at) { places_.retain(at); }
  void release(BlockId at) { places_.release(at); }
  int num_used() const { return places_.total() - places_.num_free(); }
  int num_idle() const { return places_.num_cached(); }  // of those, places that nobody owns
  void clear() noexcept { places_.clear(), index_.clear(); }
  bool operator==(const PrefixPlaces&) const = default;

 private:
  friend struct SchedulerState;
  BlockPool places_;
  PrefixIndex index_;
};

class TierCache {
 public:
  TierCache(const TierSizes& sizes, int block_size)
      : sizes_(sizes),
        swap_(sizes.swap),
        host_(sizes.host, block_size),
        disk_(sizes.disk, block_size) {}

  const TierSizes& sizes() const { return sizes_; }
  bool has_disk() const { return sizes_.disk > 0; }

  // Places for preempted sequences; each has one owner.
  int num_swap_free() const { return swap_.num_free(); }
  PlaceId take_swap() {
    BlockId none;
    return swap_.alloc(none);
  }

  // The place that holds this content, in memory before disk, or kNullBlock.
  PlaceId find(const PrefixKey& key, std::span<const Token> tokens) const {
    if (BlockId at = host_.find(key, tokens); at != kNullBlock) return sizes_.swap + at;
    BlockId at = disk_.find(key, tokens);
    return at == kNullBlock ? kNullBlock : sizes_.memory() + at;
  }
  // PrefixPlaces::insert, in memory and on disk.
  PlaceId insert(const PrefixKey& key, std::span<const Token> tokens, BlockHash parent = {}) {
    BlockId at = host_.insert(key, tokens, parent);
    return at == kNullBlock ? kNullBlock : sizes_.swap + at;
  }
  PlaceId store(const PrefixKey& key, std::span<const Token> tokens, BlockHash parent = {}) {
    BlockId at = disk_.insert(key, tokens, parent);
    return at == kNullBlock ? kNullBlock : sizes_.memory() + at;
  }
  // The same in memory alone.
  PlaceId find_host(const PrefixKey& key, std::span<const Token> tokens) const {
    BlockId at = host_.find(key, tokens);
    return at == kNullBlock ? kNullBlock : sizes_.swap + at;
  }
  // PrefixPlaces::reserve and adopt, in memory.
  PlaceId reserve() {
    BlockId at = sizes_.host > 0 ? host_.reserve() : kNullBlock;
    return at == kNullBlock ? kNullBlock : sizes_.swap + at;
  }
  void adopt(PlaceId place, const PrefixKey& key, std::span<const Token> tokens, BlockHash parent) {
    host_.adopt(within(place), key, tokens, parent);
  }
  void recall(std::span<const StoredBlock> blocks) { disk_.recall(blocks); }
  // Content of a prefix that cannot be read, or was never written.
  void forget(PlaceId place) {
    if (!is_swap(place)) prefixes(place).forget(within(place));
  }
  void flush() { host_.flush(), disk_.flush(); }
  void listen(KvListener* to) { host_.listen(to, KvTier::host), disk_.listen(to, KvTier::disk); }
  void list(KvListener& to) const { host_.list(to), disk_.list(to); }
  // Of a place of the prefix cache.
  void set_parent(PlaceId place, BlockHash parent) {
    prefixes(place).set_parent(within(place), parent);
  }
  BlockHash parent(PlaceId place) const { return prefixes(place).parent(within(place)); }
  bool is_swap(PlaceId place) const { return place <= sizes_.swap; }
  bool is_disk(PlaceId place) const { return place > sizes_.memory(); }
  // What a place of the prefix cache holds.
  const PrefixKey& key(PlaceId place) const { return prefixes(place).key(within(place)); }
  std::span<const Token> tokens(PlaceId place) const {
    return prefixes(place).tokens(within(place));
  }
  bool cached(PlaceId place) const {
    return !is_swap(place) && prefixes(place).cached(within(place));
  }

  void retain(PlaceId place) {
    is_swap(place) ? swap_.retain(place) : prefixes(place).retain(within(place));
  }
  void release(PlaceId place) {
    is_swap(place) ? swap_.release(place) : prefixes(place).release(within(place));
  }
  // Places that hold something.
  int num_used_memory() const { return sizes_.swap - swap_.num_free() + host_.num_used(); }
  int num_used_disk() const { return disk_.num_used(); }
  int num_held() const {  // of all, places that somebody owns
    return num_used_memory() + num_used_disk() - host_.num_idle() - disk_.num_idle();
  }
  void clear() noexcept { swap_.clear(), host_.clear(), disk_.clear(); }
  bool operator==(const TierCache&) const = default;

 private:
  friend struct SchedulerState;
  const PrefixPlaces& prefixes(PlaceId place) const { return is_disk(place) ? disk_ : host_; }
  PrefixPlaces& prefixes(PlaceId place) { return is_disk(place) ? disk_ : host_; }
  BlockId within(PlaceId place) const {
    return place - (is_disk(place) ? sizes_.memory() : sizes_.swap);
  }

  TierSizes sizes_;
  BlockPool swap_;
  PrefixPlaces host_, disk_;
};

}  // namespace sluice
