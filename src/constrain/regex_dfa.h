// The deterministic automaton of a constraint's regular expressions, made state by state as texts
// reach them, and for each state the tokens that stay inside. Shared by all matchers of a
// constraint on any thread: known transitions are read without a lock, new ones are made under one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <unordered_map>
#include <vector>

#include "constrain/mask_store.h"
#include "constrain/regex_pool.h"
#include "constrain/vocab_trie.h"

namespace sluice::constrain {

using DfaState = uint32_t;

class RegexDfa {
 public:
  static constexpr DfaState kDead = 0;
  static constexpr DfaState kFailed = UINT32_MAX;  // out of budget, states or nodes
  static constexpr int kManyBytes = -1;

  RegexDfa(const ConstraintLimits& limits, WorkBudget& compile_budget);
  ~RegexDfa();
  RegexDfa(const RegexDfa&) = delete;
  RegexDfa& operator=(const RegexDfa&) = delete;

  RegexPool& pool() { return pool_; }  // while compiling
  DfaState start(RegexId r, WorkBudget& budget);
  DfaState step(DfaState s, uint8_t byte, WorkBudget& budget) {
    uint32_t next = row(s).next[byte].load(std::memory_order_acquire);
    return next != 0 ? next - 1 : make_step(s, byte, budget);
  }
  // Whether it is known that nothing follows this byte.
  bool known_dead(DfaState s, uint8_t byte) const {
    return row(s).next[byte].load(std::memory_order_acquire) == kDead + 1;
  }
  bool nullable(DfaState s) const { return row(s).nullable; }
  // False when nothing but the end can follow.
  bool continues(DfaState s) const { return row(s).continues; }
  // The only byte that can follow, kManyBytes if there are several.
  int only_byte(DfaState s, WorkBudget& budget);
  // More than `n` strings can follow.
  bool more_than(DfaState s, uint32_t n, WorkBudget& budget);
  // Null when the budget runs out.
  std::shared_ptr<const StateMask> mask(DfaState s, const VocabTrie& trie, WorkBudget& budget);
  // Grows as texts reach new states.
  size_t memory_bytes();

 private:
  struct Row {
    RegexId node;
    bool nullable, continues;
    std::atomic<int> only{-2};
    std::array<std::atomic<uint32_t>, 256> next{};  // state + 1; 0: not known
    std::weak_ptr<const StateMask> mask;            // under masks_mutex_; the store owns it
  };
  // Plain tokens (VocabTrie) seen from a state.
  struct Slice {
    uint32_t chars = 0;    // plain text up to this length goes on
    bool tight = false;    // and longer text does not
    bool quiet = false;    // the expression cannot end in or behind plain text
    bool absorbs = false;  // plain text leads to a superset of the state
  };
  static constexpr uint32_t kChunk = 256;
  struct Chunk {
    std::array<std::atomic<Row*>, kChunk> rows{};
  };

  const Row& row(DfaState s) const {
    return *chunks_[s / kChunk]
                .load(std::memory_order_acquire)
                ->rows[s % kChunk]
                .load(std::memory_order_acquire);
  }
  Row& row(DfaState s) { return const_cast<Row&>(std::as_const(*this).row(s)); }
  DfaState intern(RegexId r);  // under mutex_
  DfaState make_step(DfaState s, uint8_t byte, WorkBudget& budget);
  Slice slice(RegexId r, int depth);
  bool covers_plain(RegexId x);
  bool one_plain(RegexId x);
  bool finite(RegexId r, int depth);
  bool starts_plain(RegexId r);
  std::shared_ptr<const StateMask> make_mask(DfaState s, const VocabTrie&, WorkBudget&);

  uint32_t max_states_;
  std::mutex mutex_;  // pool_, states_, slices
  RegexPool pool_;
  std::unordered_map<RegexId, DfaState> states_;
  std::vector<std::atomic<Chunk*>> chunks_;
  uint32_t num_states_ = 0;
  RegexId plain_char_;
  std::unordered_map<RegexId, bool> covers_, single_, finite_;
  std::mutex masks_mutex_;
};

}  // namespace sluice::constrain
