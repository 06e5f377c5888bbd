// SHA-1 and SHA-256 (FIPS 180-4), fed in pieces: what Git and the model hub name files by. Not for
// secrets. Portable code, 145 MB/s of SHA-256 on a 64-bit ARM core; net/digest.h is for large
// files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

// Collects 64-byte blocks and pads the last one; the two hashes differ in what a block does.
template <typename Rounds>
class ShaStream {
 public:
  void update(std::string_view bytes);
  std::string hex();  // ends it: lower case, once

 private:
  Rounds rounds_;
  std::array<unsigned char, 64> block_{};
  size_t filled_ = 0;
  uint64_t total_ = 0;
};

struct Sha1Rounds {
  std::array<uint32_t, 5> state{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
  void take(const unsigned char* block);
};

struct Sha256Rounds {
  std::array<uint32_t, 8> state{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  void take(const unsigned char* block);
};

using Sha1 = ShaStream<Sha1Rounds>;
using Sha256 = ShaStream<Sha256Rounds>;

}  // namespace sluice
