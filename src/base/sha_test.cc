#include "base/sha.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace sluice {
namespace {

template <typename Hash>
std::string of(std::string_view text, size_t piece = SIZE_MAX) {
  Hash h;
  for (size_t at = 0; at < text.size(); at += std::min(piece, text.size()))
    h.update(text.substr(at, piece));
  return h.hex();
}

TEST(Sha, KnownAnswers) {  // FIPS 180-4's examples
  EXPECT_EQ(of<Sha1>(""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
  EXPECT_EQ(of<Sha1>("abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
  EXPECT_EQ(of<Sha256>(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(of<Sha256>("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  std::string million(1'000'000, 'a');
  EXPECT_EQ(of<Sha1>(million), "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
  EXPECT_EQ(of<Sha256>(million),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha, PiecesOfAnySize) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
  for (size_t size = 0; size <= text.size(); ++size) {  // every place of the padding
    std::string_view part = std::string_view(text).substr(0, size);
    std::string sha1 = of<Sha1>(part), sha256 = of<Sha256>(part);
    for (size_t piece : {1, 3, 63, 64, 65}) {
      ASSERT_EQ(of<Sha1>(part, piece), sha1) << size;
      ASSERT_EQ(of<Sha256>(part, piece), sha256) << size;
    }
  }
}

}  // namespace
}  // namespace sluice
