// `plan table` beside figures that others have published for hardware that is not here:
// docs/plan.md has the same rows with their sources.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "load/open.h"
#include "tools/plan/table.h"

namespace sluice {
namespace {

struct Published {
  const char* engine;
  const char *device, *model, *format;
  int batch, context;  // of decodes; batch 0: a prompt of `context` tokens alone
  double value;        // tokens/s
  double ratio;        // of the table to it, as docs/plan.md has it
  bool near;           // within 40 %
};

constexpr Published kPublished[] = {
    {"calm", "RTX 4090", "random:llama-2-7b", "bf16", 1, 16, 67, 0.86, true},
    {"calm", "RTX 4090", "random:llama-2-7b", "fp8", 1, 4016, 99, 0.82, true},
    {"calm", "RTX 4090", "random:llama-2-7b", "4-bit", 1, 16, 225, 0.68, true},
    {"MLC-LLM", "RTX 4090", "random:llama-2-7b", "4-bit", 1, 256, 191, 0.77, true},
    {"llama.cpp", "RTX 4090", "random:llama-3.1-8b", "4-bit", 0, 512, 10359, 0.61, true},
    {"vLLM", "A100 80GB", "random:llama-2-7b", "bf16", 1, 256, 90.5, 1.24, true},
    {"TensorRT-LLM", "A100 80GB", "random:llama-2-7b", "bf16", 60, 1152, 1928, 0.82, true},
    {"TensorRT-LLM", "A100 80GB", "random:llama-2-7b", "bf16", 0, 2048, 2048 / 0.133, 1.13, true},
    {"TensorRT-LLM", "L40S", "random:llama-2-7b", "fp8", 0, 2048, 2048 / 0.073, 0.99, true},
    {"TensorRT-LLM", "H100 SXM", "random:llama-2-7b", "fp8", 0, 2048, 2048 / 0.036, 1.33, true},
    {"ExLlamaV2", "A100 80GB", "random:llama-2-7b", "4-bit", 1, 256, 164, 1.71, false},
};

double table_rate(const Published& p) {
  std::unique_ptr<Checkpoint> file = open_model(p.model, "bf16", 1).value();
  const ModelShape shape = read_shape(*file).value();
  const SolDevice& device = *find_sol_device(p.device);
  for (const TableFormat& f : table_formats()) {
    if (std::string_view(f.name) != p.format) continue;
    const SolModel m = sol_model(*file, shape, f.bits);
    const StepCost cost = derive_cost(m, device, kGpuReached, f.use);
    const int batch = std::max(p.batch, 1), prompt = p.batch > 0 ? 512 : p.context;
    const TableCell c = table_cell(m, cost, device.memory * kUsableMemory, 0, batch,
                                   p.batch > 0 ? p.context : 16, prompt);
    EXPECT_TRUE(c.fits) << p.engine;
    return p.batch > 0 ? c.rate : prompt / c.ttft;
  }
  ADD_FAILURE() << p.format;
  return 0;
}

TEST(PlanTable, BesideFiguresOfOthers) {
  int num_near = 0;
  for (const Published& p : kPublished) {
    const double ratio = table_rate(p) / p.value;
    EXPECT_NEAR(ratio, p.ratio, 0.006) << p.engine << " on " << p.device << ", " << p.format;
    EXPECT_EQ(std::abs(ratio - 1) <= 0.4, p.near) << p.engine << " on " << p.device;
    num_near += p.near;
  }
  EXPECT_GE(num_near, 5);
}

}  // namespace
}  // namespace sluice
