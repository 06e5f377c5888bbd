#include "runtime/placement.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(Placement, SaysWhyThereIsNoGpu) {
  GpuFacts f;
  EXPECT_EQ(why_no_gpu(f), "");  // nobody expects one
  f.expected = true;
  EXPECT_NE(why_no_gpu(f).find("driver is not loaded"), std::string::npos);
  f.driver = true;
  f.driver_version = "470.82.01";
  EXPECT_NE(why_no_gpu(f).find("no CUDA part"), std::string::npos);
  f.has_plugin = true;
  f.plugin_error = "libsluice_cuda.so is of another build of sluice";
  EXPECT_EQ(why_no_gpu(f), f.plugin_error);
  f.plugin_error.clear();
  f.num = -35;
  EXPECT_NE(why_no_gpu(f).find("470.82.01 is too old"), std::string::npos);
  f.num = -999;
  EXPECT_NE(why_no_gpu(f).find("999"), std::string::npos);
  f.num = 0;
  EXPECT_NE(why_no_gpu(f).find("shows no GPU"), std::string::npos);
  f.num = 1;
  EXPECT_NE(why_no_gpu(f).find("no kernels"), std::string::npos);
  f.usable = true;
  EXPECT_EQ(why_no_gpu(f), "");
}

}  // namespace
}  // namespace sluice
