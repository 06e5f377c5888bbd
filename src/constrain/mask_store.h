// Token masks by the expression that they belong to: one store for a vocabulary, shared by all its
// constraints on any thread. Strings, numbers and white space are the same in most schemas, so that
// their masks, a walk through the vocabulary each, are made once and not once per schema.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/keyed_hash.h"
#include "base/token.h"

namespace sluice::constrain {

// The ends of tokens behind the bytes that an expression takes: by their first byte, ascending, the
// nodes of the vocabulary's trie where they go on.
struct Tails {
  struct First {
    uint8_t byte;
    uint32_t node;
  };
  std::vector<First> firsts;
};

// For one state: tokens whose bytes all lie inside the expression, and the tails of tokens within
// which the expression may end; null where there are none.
struct StateMask {
  std::vector<uint32_t> bits;
  std::shared_ptr<const Tails> tails;
};

class MaskStore {
 public:
  using Mask = std::shared_ptr<const StateMask>;
  using TailsRef = std::shared_ptr<const Tails>;

  explicit MaskStore(size_t max_bytes = size_t{64} << 20) : max_bytes_(max_bytes) {}

  // Null where it is not known.
  Mask find(const Fingerprint& expression) const;
  // Keeps a mask and returns it, or one of equal content that is kept already. A store that is full
  // is emptied first; masks in use live on with their users.
  Mask keep(const Fingerprint& expression, Mask mask);
  // The tails behind these nodes of the vocabulary's trie; null where they are not known. Most
  // masks of strings have the same ones.
  TailsRef find_tails(std::span<const uint32_t> nodes) const;
  void keep_tails(std::span<const uint32_t> nodes, TailsRef tails);
  size_t memory_bytes() const;
  size_t max_bytes() const { return max_bytes_; }

 private:
  const size_t max_bytes_;
  mutable std::mutex mutex_;
  void make_room(size_t bytes);

  std::unordered_map<Fingerprint, Mask, FingerprintHash> by_expression_, by_content_;
  std::unordered_map<Fingerprint, TailsRef, FingerprintHash> tails_;
  size_t bytes_ = 0;
};

}  // namespace sluice::constrain
