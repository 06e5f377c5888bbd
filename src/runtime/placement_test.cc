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
  f.why_not = "Tesla T4 has compute capability 7.5; 8.0 is needed";
  EXPECT_EQ(why_no_gpu(f), f.why_not);
  f.usable = true;
  EXPECT_EQ(why_no_gpu(f), "");
}

TEST(Device, Names) {
  for (const char* name : {"auto", "cpu", "cuda", "cuda:0", "cuda:3", "ref"})
    EXPECT_EQ(parse_device(name)->name(), name);
  EXPECT_FALSE(parse_device("cuda")->index);  // the one with the most free memory
  for (const char* name : {"", "tpu", "cuda:", "cuda:x", "cuda:1x", "cuda:-1"})
    EXPECT_FALSE(parse_device(name)) << name;
}

TEST(GpuLayers, Names) {
  for (const char* name : {"auto", "0", "12"}) EXPECT_EQ(parse_gpu_layers(name)->name(), name);
  for (const char* name : {"", "all", "-1", "1x", "99999999999"})
    EXPECT_FALSE(parse_gpu_layers(name)) << name;
}

TEST(GpuLayers, NoneIsTheCpuAlone) {
  ModelShape shape;
  shape.num_layers = 4, shape.head_dim = 64;
  EngineOptions o;
  o.gpu_layers = GpuLayers{0};
  ASSERT_TRUE(choose_device(o, shape));
  EXPECT_TRUE(o.device.is_cpu());
  EXPECT_FALSE(o.gpu_layers);
  o.gpu_layers = GpuLayers{1};
  EXPECT_EQ(choose_device(o, shape).error().message,
            "--gpu-layers 1 needs a GPU, and --device comes to 'cpu'");
  o.device.kind = DeviceChoice::Kind::any;
  ASSERT_TRUE(choose_gpu(o, shape));
  EXPECT_EQ(num_host_layers(o, shape), 3);
  o.gpu_layers = GpuLayers{4};
  ASSERT_TRUE(choose_gpu(o, shape));
  EXPECT_EQ(num_host_layers(o, shape), 0);
  EXPECT_FALSE(o.gpu_layers);
}

struct Sizes {
  int budget, chunk, mixed_budget;
  bool operator==(const Sizes&) const = default;
};

Sizes sizes_on(DeviceChoice::Kind kind, const StepSizes& asked) {
  EngineOptions o;
  o.device.kind = kind;
  o.threads = 4;
  o.step_sizes = asked;
  ModelShape shape;  // 8 G weights in the layers: kGpuMixedBudgets has a limit for that
  shape.num_layers = 32, shape.hidden = 4096, shape.ffn = 16384;
  shape.num_heads = shape.num_kv_heads = 32, shape.head_dim = 128;
  resolve_step_sizes(o, &shape);
  return {o.scheduler.budget, o.scheduler.chunk, o.scheduler.mixed_budget};
}

TEST(StepSizes, DefaultsDependOnTheDeviceAndOnWhetherItServes) {
  using Kind = DeviceChoice::Kind;
  EXPECT_EQ(sizes_on(Kind::cpu, {}), (Sizes{512, 0, 0}));
  EXPECT_EQ(sizes_on(Kind::cuda, {}), (Sizes{8192, 0, 0}));
  EXPECT_EQ(sizes_on(Kind::cpu, {.serves = true}), (Sizes{512, 64, 0}));
  EXPECT_EQ(sizes_on(Kind::cuda, {.serves = true}), (Sizes{8192, 0, 1024}));
  StepSizes asked{.budget = 100, .chunk = 7, .mixed_budget = 50, .serves = true};
  EXPECT_EQ(sizes_on(Kind::cpu, asked), (Sizes{100, 7, 50}));
  EXPECT_EQ(sizes_on(Kind::cuda, asked), (Sizes{100, 7, 50}));
  asked = {.chunk = 0, .serves = true};  // a chunk that was chosen leaves mixed steps alone
  EXPECT_EQ(sizes_on(Kind::cuda, asked), (Sizes{8192, 0, 0}));
}

}  // namespace
}  // namespace sluice
