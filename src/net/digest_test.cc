#include "net/digest.h"

#include <gtest/gtest.h>

#include "base/sha.h"

namespace sluice {
namespace {

TEST(FileDigest, AgreesWithBase) {
  std::string text;
  for (int i = 0; i < 70'000; ++i) text += static_cast<char>(i * 31 >> 3);
  for (size_t size : {size_t{0}, size_t{1}, size_t{64}, text.size()}) {
    FileDigest fast;
    Sha256 plain;
    std::string_view part = std::string_view(text).substr(0, size);
    fast.update(part.substr(0, size / 3));
    fast.update(part.substr(size / 3));
    plain.update(part);
    EXPECT_EQ(fast.hex(), plain.hex()) << size;
  }
  FileDigest again;
  again.update("ab");
  again = FileDigest();
  again.update("abc");
  EXPECT_EQ(again.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace sluice
