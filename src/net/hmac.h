// HMAC-SHA256 (RFC 2104) by net/digest.h, and plain SHA-256 as bytes. Any thread, one object at a
// time.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace sluice {

using Digest256 = std::array<std::byte, 32>;

Digest256 sha256(std::string_view bytes);
Digest256 hmac_sha256(std::string_view key, std::span<const std::string_view> parts);
// Takes the same time wherever they differ.
bool same_digest(const Digest256& a, const Digest256& b);

inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace sluice
