#include "tools/plan/cpu_kernels.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sluice {
namespace {

// Headers of weights, without the weights.
class HeadersOnly final : public Checkpoint {
 public:
  explicit HeadersOnly(std::vector<TensorInfo> tensors) { tensors_ = std::move(tensors); }
  std::span<const std::byte> data(const TensorInfo&) override { return {}; }
  void release(const TensorInfo&) override {}
};

TEST(CpuKernels, WeightsByKernel) {
  const auto uses = [](std::vector<TensorInfo> tensors, WeightQuant quant = WeightQuant::none) {
    LoadQuant q;
    q.kind = quant;
    return kernels_of(HeadersOnly(std::move(tensors)), q);
  };
  const TensorInfo embedding{"token_embd.weight", Format::q8_0, 1000, 64, 68000},
      up{"blk.0.ffn_up.weight", Format::q8_0, 128, 64, 8704},
      down{"blk.0.ffn_down.weight", Format::f16, 64, 128, 16384},
      norm{"blk.0.ffn_norm.weight", Format::f32, 1, 64, 256},
      positions{"position_embd.weight", Format::f32, 32, 64, 8192},
      logits{"output.weight", Format::f16, 1000, 64, 128000};
  const std::vector<KernelUse> tied = uses({embedding, up, norm, down, positions});
  ASSERT_EQ(tied.size(), 2u);
  EXPECT_EQ(tied[0].kernel, &choose_matmul(Format::q8_0, 128, 64));
  EXPECT_EQ(tied[0].body, 128 * 64);
  EXPECT_EQ(tied[0].calls, 1);
  EXPECT_EQ(tied[0].logits, 1000 * 64);
  EXPECT_EQ(tied[1].body, 64 * 128);
  const std::vector<KernelUse> untied = uses({embedding, up, logits});
  ASSERT_EQ(untied.size(), 2u);
  EXPECT_EQ(untied[0].logits, 0);
  EXPECT_EQ(untied[1].logits, 1000 * 64);
  EXPECT_EQ(uses({up, down}, WeightQuant::w8a8).size(), 1u);  // both become int8
  TensorInfo gate = up;
  gate.name = "blk.0.ffn_gate.weight";
  EXPECT_EQ(uses({up, gate})[0].calls, 1);  // one weight
}

// Weights of two kernels and attention, in round figures.
TEST(DeriveCost, OfACpuIsTheSumOfItsKernels) {
  ModelShape shape;
  shape.num_layers = 2, shape.hidden = 64, shape.ffn = 128;
  shape.num_heads = 4, shape.num_kv_heads = 2, shape.head_dim = 16;
  CpuKernels k;
  const KernelRate none{"none", 2, {{1, 0}}};
  k.products = {{{"a", 2, {{1, 1e-9}, {4, 1e-9}, {16, 4e-9}}}, 10e6, 0, none, 0},
                {{"b", 2, {{1, 2e-9}, {16, 17e-9}}}, 1e6, 5e6, none, 0}};
  k.decode_row = k.row_ops = none;
  k.decode = {"decode", 2, {{16, 3e-6}}};
  k.prompt = {"prompt", 2, {{256, 1e-6}}};
  EXPECT_DOUBLE_EQ(k.body(1), 10e-3 + 2e-3);
  EXPECT_DOUBLE_EQ(k.body(10), 10e6 * 2.5e-9 + 1e6 * 11e-9);
  EXPECT_DOUBLE_EQ(k.body(64), 10e6 * 16e-9 + 1e6 * 68e-9);  // proportional behind the last
  const StepCost c = derive_cpu_cost(shape, k);
  ASSERT_TRUE(c.valid());
  EXPECT_DOUBLE_EQ(c.sampled, 5e-3);       // one more row of logits
  EXPECT_DOUBLE_EQ(c.attended, 2 * 1e-6);  // two layers
  EXPECT_DOUBLE_EQ(c.context, 2 * 2e-6);   // with `attended` a decode's 3 us
  const double one = c.seconds({.tokens = 1, .sampled = 1, .context = 0, .attended = 0});
  EXPECT_NEAR(one, k.body(1) + k.logits(1), 0.2e-3);
  const double many = c.seconds({.tokens = 64, .sampled = 1, .context = 0, .attended = 0});
  EXPECT_NEAR(many, k.body(64) + k.logits(1), 0.3e-3);
  // Ten calls, two layers' rows.
  k.products[0].call = {"a-call", 2, {{1, 1e-6}, {16, 4e-6}}}, k.products[0].calls = 10;
  k.decode_row = {"row", 2, {{8, 5e-6}}}, k.row_ops = {"rows", 2, {{1, 3e-6}, {64, 66e-6}}};
  const StepCost more = derive_cpu_cost(shape, k);
  EXPECT_NEAR(more.sampled - c.sampled, 2 * 5e-6, 1e-12);
  const StepLoad one_row{.tokens = 1, .sampled = 0, .context = 0, .attended = 0};
  EXPECT_NEAR(more.seconds(one_row) - c.seconds(one_row), 10 * 1e-6 + 2 * 3e-6, 1e-12);
  const StepLoad rows{.tokens = 64, .sampled = 0, .context = 0, .attended = 0};
  EXPECT_NEAR(more.seconds(rows) - c.seconds(rows), 10 * 4e-6 + 2 * 66e-6, 1e-12);
}

TEST(CpuKernels, MeasuresOnlyWhatIsMissing) {
  ModelShape shape;
  shape.num_heads = 4, shape.num_kv_heads = 2, shape.head_dim = 16;
  shape.hidden = 64, shape.ffn = 96;
  const KernelUse use{&choose_matmul(Format::q8_0, 128, 64), 1e6, 1e5, 2};
  CpuLimits limits;
  limits.kernels = {{use.kernel->name, 2, {{1, 1e-9}}},
                    {decode_attention_name(shape), 2, {{1, 2e-9}}},
                    {prompt_attention_name(shape), 2, {{1, 3e-9}}},
                    {product_call_name(*use.kernel), 2, {{1, 0}}},
                    {decode_row_name(shape), 2, {{1, 0}}},
                    {row_ops_name(shape, use.kernel->act_needs), 2, {{1, 0}}}};
  const auto nothing = [](const std::string& kernel) { ADD_FAILURE() << kernel; };
  EXPECT_FALSE(complete_rates(limits, {&use, 1}, shape, 2, nothing));
  const CpuKernels k = kernels_with_rates(limits, {&use, 1}, shape, 2);
  EXPECT_EQ(k.body(1), 1e6 * 1e-9);
  EXPECT_EQ(k.logits(1), 1e5 * 1e-9);
  EXPECT_EQ(k.prompt.seconds(1), 3e-9);
  limits.kernels.erase(limits.kernels.begin() + 1);  // the rest is there
  std::vector<std::string> measured;
  EXPECT_TRUE(complete_rates(limits, {&use, 1}, shape, 2,
                             [&](const std::string& kernel) { measured.push_back(kernel); }));
  EXPECT_EQ(measured, std::vector<std::string>{decode_attention_name(shape)});
  ASSERT_EQ(limits.kernels.size(), 6u);
  EXPECT_GT(limits.kernels.back().seconds(1), 0);
  limits.kernels.clear();
  EXPECT_TRUE(complete_rates(limits, {&use, 1}, shape, 2, [](const std::string&) {}));
  EXPECT_EQ(limits.kernels.size(), 6u);
  for (const KernelRate& r : limits.kernels) EXPECT_GE(r.seconds(1), 0) << r.kernel;
  EXPECT_GT(limits.kernels.back().seconds(16), 0) << limits.kernels.back().kernel;
}

}  // namespace
}  // namespace sluice
