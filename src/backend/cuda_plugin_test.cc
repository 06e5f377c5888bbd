#include "backend/cuda_plugin.h"

#include <vector>

#include <gtest/gtest.h>

namespace sluice {
namespace {

// A shared object with such GPUs.
struct FakeGpu {
  bool usable;
  size_t free;
};
std::vector<FakeGpu> gpus;

constexpr CudaExports kFakes{
    kCudaPluginVersion, [] { return static_cast<int>(gpus.size()); },
    [](int i, char*, size_t) { return gpus[static_cast<size_t>(i)].usable; },
    [](int i) { return gpus[static_cast<size_t>(i)].free; }, nullptr};

TEST(CudaPlugin, TakesTheGpuWithTheMostFreeMemory) {
  gpus = {{true, 5}, {true, 70}, {false, 100}, {true, 7}};
  EXPECT_EQ(freest_gpu(kFakes), 1);
  gpus = {{true, 5}, {true, 5}};
  EXPECT_EQ(freest_gpu(kFakes), 0);
  gpus = {{false, 5}, {true, 0}};  // one that cannot be asked
  EXPECT_EQ(freest_gpu(kFakes), 1);
}

TEST(CudaPlugin, ChoosesAmongSeveralGpusOnly) {
  gpus = {{true, 5}};
  EXPECT_EQ(freest_gpu(kFakes), std::nullopt);
  gpus = {};
  EXPECT_EQ(freest_gpu(kFakes), std::nullopt);
  gpus = {{false, 5}, {false, 7}};
  EXPECT_EQ(freest_gpu(kFakes), std::nullopt);
}

}  // namespace
}  // namespace sluice
