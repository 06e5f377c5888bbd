#include "base/keyed_hash.h"

#include <bit>
#include <cstring>
#include <random>

namespace sluice {

uint64_t keyed_hash(const HashKey& key, std::string_view text) {
  uint64_t v0 = key[0] ^ 0x736f6d6570736575, v1 = key[1] ^ 0x646f72616e646f6d;
  uint64_t v2 = key[0] ^ 0x6c7967656e657261, v3 = key[1] ^ 0x7465646279746573;
  auto rounds = [&](int n) {
    for (int i = 0; i < n; ++i) {
      v0 += v1, v1 = std::rotl(v1, 13) ^ v0, v0 = std::rotl(v0, 32);
      v2 += v3, v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3, v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1, v1 = std::rotl(v1, 17) ^ v2, v2 = std::rotl(v2, 32);
    }
  };
  auto word = [&](uint64_t m) { v3 ^= m, rounds(2), v0 ^= m; };
  static_assert(std::endian::native == std::endian::little);
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t m = 0;
    std::memcpy(&m, text.data() + i, 8);
    word(m);
  }
  uint64_t last = uint64_t{text.size() & 0xff} << 56;
  for (size_t k = 0; i + k < text.size(); ++k) {
    last |= uint64_t{static_cast<unsigned char>(text[i + k])} << 8 * k;
  }
  word(last);
  v2 ^= 0xff;
  rounds(4);
  return v0 ^ v1 ^ v2 ^ v3;
}

namespace {

HashKey draw_key() {
  std::random_device random;
  auto draw = [&] { return uint64_t{random()} << 32 | random(); };
  return {draw(), draw()};
}

}  // namespace

Fingerprint fingerprint(std::string_view text) {
  static const HashKey kKeys[] = {draw_key(), draw_key()};
  return {keyed_hash(kKeys[0], text), keyed_hash(kKeys[1], text)};
}

size_t KeyedHash::operator()(std::string_view text) const {
  static const HashKey kKey = draw_key();
  return static_cast<size_t>(keyed_hash(kKey, text));
}

}  // namespace sluice
