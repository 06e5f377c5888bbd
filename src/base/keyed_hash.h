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

// 128 bits under a key drawn once per process: equal for equal texts, and for no others that
// anybody could find.
struct Fingerprint {
  uint64_t a = 0, b = 0;
  bool operator==(const Fingerprint&) const = default;
};
Fingerprint fingerprint(std::string_view text);
struct FingerprintHash {
  size_t operator()(const Fingerprint& f) const { return static_cast<size_t>(f.a); }
};

// For unordered containers keyed by request data; lookups take string_views. The key is drawn once
// per process. Iteration order differs between runs: nothing that is visible may depend on it.
struct KeyedHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const;
};

}  // namespace sluice
