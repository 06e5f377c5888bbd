// The merge loop that byte-level BPE and SentencePiece share: of all adjacent pairs that the table
// knows, the one of lowest rank (leftmost among equals) becomes one symbol, until none is left.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/token.h"

namespace sluice {

// (left, right) -> (rank, merged). Open addressing; immutable once a tokenizer is made.
class PairTable {
 public:
  struct Entry {
    Token left = kNoToken, right = kNoToken;
    uint32_t rank = 0;
    Token merged = kNoToken;
  };

  explicit PairTable(size_t num_pairs = 0);
  // At most num_pairs calls. The first entry of a pair stays.
  void insert(const Entry& e);
  // nullptr when the pair does not merge; negative symbols never do.
  const Entry* find(Token left, Token right) const;

 private:
  size_t slot_of(Token left, Token right) const;

  std::vector<Entry> slots_;
  size_t mask_ = 0;
  size_t free_ = 0;
};

// Room reused between calls; one per encode, not shared.
struct MergeScratch {
  std::vector<uint32_t> ranks;             // of the pair (i, next(i))
  std::vector<int32_t> prev, next;         // linked list over the symbols
  std::vector<uint64_t> heap;              // rank << 32 | left
  uint64_t num_lookups = 0, num_pops = 0;  // work done, for tests of its growth
};

// Merges in place; `symbols` shrinks to what is left. `sources`, where not null, is parallel to
// symbols and keeps for every symbol left the value of its first part.
// O(n log n); up to kSmallMerge symbols by scanning, which is faster there.
inline constexpr size_t kSmallMerge = 48;
void merge_pairs(const PairTable& table,
                 std::vector<Token>& symbols,
                 std::vector<uint32_t>* sources,
                 MergeScratch& scratch);

}  // namespace sluice
