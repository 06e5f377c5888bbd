#include "backend/cpu/features.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(Features, OverrideOnlyLowers) {
  constexpr uint64_t kAvx512 = kCpuAvx2 | kCpuAvx512 | kCpuAvx512Vnni | kCpuAvx512Bf16;
  constexpr uint64_t kAmx = kAvx512 | kCpuAmxInt8 | kCpuAmxBf16;
  constexpr uint64_t kAvxVnni = kCpuAvx2 | kCpuAvxVnni;
  const CpuFeatures all{kAmx | kCpuAvxVnni | kCpuNeonDot | kCpuI8mm | kCpuBf16};
  EXPECT_EQ(limit_features(all, "").bits, all.bits);
  EXPECT_EQ(limit_features(all, "scalar").bits, 0u);
  EXPECT_EQ(limit_features(all, "avx2").bits, uint64_t{kCpuAvx2});
  EXPECT_EQ(limit_features(all, "avxvnni").bits, kAvxVnni);
  EXPECT_EQ(limit_features(all, "avx512").bits, kAvx512);
  EXPECT_EQ(limit_features(all, "amx").bits, kAmx);
  EXPECT_EQ(limit_features(all, "neon").bits, uint64_t{kCpuNeonDot});
  EXPECT_EQ(limit_features({kCpuAvx2}, "avx512").bits, uint64_t{kCpuAvx2});
  EXPECT_STREQ(isa_name({kCpuAvx2}), "avx2");
  EXPECT_STREQ(isa_name({kAvxVnni}), "avx-vnni");
  EXPECT_STREQ(isa_name({kAvx512 | kCpuAvxVnni}), "avx512-vnni");
  EXPECT_STREQ(isa_name({kAmx}), "amx");
}

}  // namespace
}  // namespace sluice
