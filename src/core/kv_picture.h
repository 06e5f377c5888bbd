// What workers have cached, as they tell it themselves (docs/kv-events.md), and which part of a
// prompt that is. A conductor does not tokenise: it knows prompts by hashes of their text. A worker
// that answers names the last full block of the prompt, whose ancestors its events have told: from
// then on each block of text stands for a block of tokens, at every worker. Tokens are hashed
// again here, since each worker has hashes of its own. Pure. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/keyed_hash.h"
#include "core/lru_map.h"
#include "core/request.h"

namespace sluice {

// One event. Hashes are the worker's.
struct KvUpdate {
  enum Kind : uint8_t { stored, removed, cleared } kind = cleared;
  uint8_t tier = 0;  // a bit
  std::vector<uint64_t> hashes;
  uint64_t parent = 0;        // stored: of the first; 0: a prompt begins
  std::vector<Token> tokens;  // stored: of all
};

class KvPicture {
 public:
  static constexpr size_t kTextBlocks = size_t{1} << 18;  // whose tokens are known
  static constexpr size_t kMostBlocks = size_t{1} << 20;  // of a worker; more are not kept
  static constexpr size_t kUnplaced = 64;                 // prompts whose blocks are not told yet

  KvPicture(size_t num_workers, const HashKey& key);

  void apply(size_t worker, const KvUpdate& update);
  // Nothing is known of the worker from now on, or something again.
  void set_known(size_t worker, bool known);
  bool known(size_t worker) const { return workers_[worker].known; }

  // The worker says that `kv_block` is the last full block of a prompt.
  struct Prompt {
    std::vector<uint64_t> text;  // hashes of its blocks of text
    double text_share = 0;       // of the prompt that one of them is
    uint64_t kv_block = 0;
  };
  void place(size_t worker, Prompt prompt);
  // Whether the tokens of a block of text are known, and whether the worker has them.
  bool placed(uint64_t text) const { return places_.find(text) != nullptr; }
  bool cached(size_t worker, uint64_t text) const;
  size_t num_blocks(size_t worker) const { return workers_[worker].blocks.size(); }

 private:
  struct Block {
    uint64_t parent = 0, name = 0;
    uint8_t tiers = 0;
  };
  struct Worker {
    bool known = false;
    std::unordered_map<uint64_t, Block> blocks;  // by the worker's hash
    std::unordered_map<uint64_t, int> names;     // how many blocks have it: tenants share none
    LruMap<Prompt> unplaced{kUnplaced};          // by their last block
  };
  void store(Worker& w, const KvUpdate& update);
  void remove(Worker& w, uint64_t hash, uint8_t tier);
  bool try_place(Worker& w, const Prompt& prompt);

  HashKey key_;
  std::vector<Worker> workers_;
  LruMap<uint64_t> places_{kTextBlocks};  // names of blocks, by text
};

}  // namespace sluice
