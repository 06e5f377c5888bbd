#include "base/test_slice.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice {
namespace {

TEST(TestSlice, SlicesAreDisjointAndTogetherEverything) {
  std::vector<int> taken(14, 0);
  for (uint64_t seed = 100; seed < 104; ++seed) {
    TestSlice slice(4, seed);
    for (int& n : taken) n += slice.take();
  }
  EXPECT_EQ(taken, std::vector<int>(14, 1));
}

TEST(TestSlice, WithoutSlicesEverythingRuns) {
  TestSlice slice(0, 7);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(slice.take());
}

}  // namespace
}  // namespace sluice
