#include "net/hmac.h"

#include <string>

#include <gtest/gtest.h>

namespace sluice {
namespace {

std::string hex_of(const Digest256& d) {
  std::string out;
  for (std::byte b : d) {
    out += "0123456789abcdef"[static_cast<int>(b) >> 4];
    out += "0123456789abcdef"[static_cast<int>(b) & 15];
  }
  return out;
}

// RFC 4231, cases 1, 2 and 6.
TEST(Hmac, AgreesWithTheStandard) {
  const std::string_view hi = "Hi There";
  EXPECT_EQ(hex_of(hmac_sha256(std::string(20, '\x0b'), {&hi, 1})),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  const std::string_view what[] = {"what do ya want ", "for nothing?"};
  EXPECT_EQ(hex_of(hmac_sha256("Jefe", what)),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  const std::string_view test = "Test Using Larger Than Block-Size Key - Hash Key First";
  EXPECT_EQ(hex_of(hmac_sha256(std::string(131, '\xaa'), {&test, 1})),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Hmac, ComparesAllBytes) {
  const Digest256 a = sha256("a");
  EXPECT_TRUE(same_digest(a, sha256("a")));
  for (size_t k = 0; k < a.size(); ++k) {
    Digest256 b = a;
    b[k] ^= std::byte{1};
    EXPECT_FALSE(same_digest(a, b));
  }
}

}  // namespace
}  // namespace sluice
