#include "base/random.h"

#include <gtest/gtest.h>

#include <bit>
#include <set>

namespace sluice {
namespace {

using Words = std::array<uint32_t, 4>;

// Known answers published with the generator: zeros, ones, digits of pi.
TEST(Random, PhiloxKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, KeysMapToCounterAndKey) {
  DrawKey k{0x299f31d0a4093822, 0x13198a2e, static_cast<int64_t>(0x85a308d3243f6a88), 0x03707344};
  EXPECT_EQ(draw_bits(k), 0x94fdccebd16cfe09u);
  EXPECT_EQ(draw_u32(k), 0xd16cfe09u);
  EXPECT_EQ(draw_float(k), static_cast<float>(0x94fdcc) / 16777216.0f);
  EXPECT_EQ(draw_double(k), static_cast<double>(0x94fdccebd16cfe09u >> 11) / 9007199254740992.0);
}

TEST(Random, EveryFieldMatters) {
  std::set<uint64_t> seen;
  for (int i = 0; i < 64; ++i) {
    seen.insert(draw_bits({uint64_t{1} << i, 0, 0, 0}));
    seen.insert(draw_bits({0, 0, static_cast<int64_t>(uint64_t{1} << i), 0}));
  }
  for (int i = 0; i < 32; ++i) {
    seen.insert(draw_bits({0, 1u << i, 0, 0}));
    seen.insert(draw_bits({0, 0, 0, 1u << i}));
  }
  EXPECT_EQ(seen.size(), 192u);
}

TEST(Random, UniformInUnitInterval) {
  const int n = 100000;
  double sum = 0, square = 0;
  int bits = 0;
  for (int i = 0; i < n; ++i) {
    DrawKey k{7, 0, i, 0};
    double d = draw_double(k);
    float f = draw_float(k);
    ASSERT_TRUE(d >= 0 && d < 1 && f >= 0 && f < 1);
    sum += d, square += d * d;
    bits += std::popcount(draw_bits(k));
  }
  EXPECT_NEAR(sum / n, 0.5, 0.004);
  EXPECT_NEAR(square / n, 1.0 / 3, 0.004);
  EXPECT_NEAR(bits / (64.0 * n), 0.5, 0.001);
}

}  // namespace
}  // namespace sluice
