#include "backend/cuda_archs.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(CudaArchs, CodeRunsOnLaterGpusOfItsGeneration) {
  EXPECT_TRUE(arch_runs_on("80", 8, 0));
  EXPECT_TRUE(arch_runs_on("80", 8, 9));
  EXPECT_FALSE(arch_runs_on("86", 8, 0));
  EXPECT_FALSE(arch_runs_on("80", 9, 0));
  EXPECT_TRUE(arch_runs_on("100", 10, 3));
  EXPECT_FALSE(arch_runs_on("100", 12, 0));
  EXPECT_TRUE(arch_runs_on("90a 120", 12, 1));
  EXPECT_FALSE(arch_runs_on("", 9, 0));
}

TEST(CudaArchs, CodeOfOneGpuRunsThereAlone) {
  EXPECT_TRUE(arch_runs_on("90a", 9, 0));
  EXPECT_FALSE(arch_runs_on("90a", 9, 1));
  EXPECT_FALSE(arch_runs_on("90a", 10, 0));
}

TEST(CudaArchs, JetsonRunsItsOwnCode) {
  EXPECT_FALSE(arch_runs_on("80 86", 8, 7));
  EXPECT_TRUE(arch_runs_on("80 87", 8, 7));
  EXPECT_TRUE(arch_runs_on("80-virtual", 8, 7));
  EXPECT_FALSE(arch_runs_on("87", 8, 9));
}

TEST(CudaArchs, PtxRunsOnEverythingLater) {
  EXPECT_FALSE(arch_runs_on("80-virtual", 7, 5));
  EXPECT_TRUE(arch_runs_on("80-virtual", 8, 0));
  EXPECT_TRUE(arch_runs_on("80-virtual", 8, 6));
  EXPECT_TRUE(arch_runs_on("90a 80-virtual", 12, 0));
  EXPECT_FALSE(arch_runs_on("90-virtual", 8, 9));
}

TEST(CudaArchs, Entries) {
  EXPECT_TRUE(has_arch("80-virtual 90a", "90a"));
  EXPECT_FALSE(has_arch("90 90a-virtual", "90a"));
  EXPECT_EQ(arch_of(8, 6), "86");
  EXPECT_EQ(arch_of(9, 0), "90a");
  EXPECT_EQ(arch_of(12, 0), "120");
}

}  // namespace
}  // namespace sluice
