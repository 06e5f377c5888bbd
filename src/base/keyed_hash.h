// Hashing of text that others choose. A fixed hash lets a sender craft keys that all land in one
// bucket; under a secret key nobody can.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

using HashKey = std::array<uint64_t, 2>;

// SipHash-2-4 (Aumasson, Bernstein 2012): without the key nobody can make two texts collide.
uint64_t keyed_hash(const HashKey& key, std::string_view text);

// For unordered containers keyed by request data; lookups take string_views. The key is drawn once
// per process. Iteration order differs between runs: nothing that is visible may depend on it.
struct KeyedHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const;
};

}  // namespace sluice
