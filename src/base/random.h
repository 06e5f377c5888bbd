// Random numbers as pure functions of a key: Philox4x32-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). No state, so a draw does not depend on what was drawn
// before, on which thread, or on what shares the batch.
#pragma once

#include <array>
#include <cstdint>

namespace sluice {

// Ten rounds over a 128-bit counter under a 64-bit key.
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                             std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    uint64_t a = uint64_t{0xD2511F53} * counter[0];
    uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Mixes 64 bits; a bijection. For data that is to be random and no more: draws use the above.
constexpr uint64_t mix_bits(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  return x ^ x >> 32;
}

// Names one draw: the request's seed, which of its choices, the token's position, and which draw at
// that position.
struct DrawKey {
  uint64_t seed = 0;
  uint32_t choice = 0;
  int64_t position = 0;
  uint32_t draw = 0;
};

// 64 uniform bits.
constexpr uint64_t draw_bits(const DrawKey& k) {
  auto position = static_cast<uint64_t>(k.position);
  auto out = philox4x32(
      {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), k.choice, k.draw},
      {static_cast<uint32_t>(k.seed), static_cast<uint32_t>(k.seed >> 32)});
  return uint64_t{out[1]} << 32 | out[0];
}

constexpr uint32_t draw_u32(const DrawKey& k) { return static_cast<uint32_t>(draw_bits(k)); }

// Uniform in [0, 1): every multiple of 2^-24.
constexpr float draw_float(const DrawKey& k) {
  return static_cast<float>(draw_bits(k) >> 40) * 0x1p-24f;
}

// Uniform in [0, 1): every multiple of 2^-53.
constexpr double draw_double(const DrawKey& k) {
  return static_cast<double>(draw_bits(k) >> 11) * 0x1p-53;
}

}  // namespace sluice
