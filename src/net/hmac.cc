#include "net/hmac.h"

#include <string>

#include "net/digest.h"

namespace sluice {

namespace {

constexpr size_t kShaBlock = 64;

Digest256 from_hex(const std::string& hex) {
  auto value = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  Digest256 out;
  for (size_t k = 0; k < out.size(); ++k)
    out[k] = static_cast<std::byte>(value(hex[2 * k]) << 4 | value(hex[2 * k + 1]));
  return out;
}

std::string padded(std::string_view key, char with) {
  std::string out(kShaBlock, with);
  for (size_t k = 0; k < key.size(); ++k) out[k] = static_cast<char>(key[k] ^ with);
  return out;
}

}  // namespace

Digest256 sha256(std::string_view bytes) {
  FileDigest digest;
  digest.update(bytes);
  return from_hex(digest.hex());
}

Digest256 hmac_sha256(std::string_view key, std::span<const std::string_view> parts) {
  Digest256 short_key;
  if (key.size() > kShaBlock) {
    short_key = sha256(key);
    key = as_text(short_key);
  }
  FileDigest inner, outer;
  inner.update(padded(key, 0x36));
  for (std::string_view part : parts) inner.update(part);
  const Digest256 digest = from_hex(inner.hex());
  outer.update(padded(key, 0x5c));
  outer.update(as_text(digest));
  return from_hex(outer.hex());
}

bool same_digest(const Digest256& a, const Digest256& b) {
  std::byte different{0};
  for (size_t k = 0; k < a.size(); ++k) different |= a[k] ^ b[k];
  return different == std::byte{0};
}

}  // namespace sluice
