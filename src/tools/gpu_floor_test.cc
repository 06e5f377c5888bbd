// The floor of a step by given limits, and the rows of a profile.
#include "tools/gpu_floor.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

ModelShape shape() {
  ModelShape m;
  m.arch = "qwen2";
  m.vocab = 5000;
  m.hidden = 1024;
  m.ffn = 4096;
  m.num_layers = 3;
  m.num_heads = 8;
  m.num_kv_heads = 2;
  m.head_dim = 128;
  return m;
}

GpuFloor floor_of(const ModelShape& m, DType weights) {
  DeviceLimits limits;
  limits.copy = 4e12;
  limits.read = 5e12;
  limits.gemm = 800e12;
  limits.gemm_f8 = 1600e12;
  limits.gemm_i8 = 1200e12;
  return {limits, &m, 6144, weights, limits.copy};
}

Product product_named(const ModelShape& m, const std::string& name) {
  for (const Product& p : products(m))
    if (name == p.name) return p;
  return {};
}

TEST(GpuFloor, Fp8HalvesBytesAndTakesItsOwnRate) {
  ModelShape m = shape();
  Product down = product_named(m, "down"), head = product_named(m, "lm_head");
  double elems = 1024.0 * 4096;
  EXPECT_DOUBLE_EQ(floor_of(m, DType::bf16).product(down, 1), elems * 2 / 4e12);
  EXPECT_DOUBLE_EQ(floor_of(m, DType::f8).product(down, 1), elems / 4e12);
  EXPECT_DOUBLE_EQ(floor_of(m, DType::bf16).product(down, 2048), elems * 2 * 2048 / 800e12);
  EXPECT_DOUBLE_EQ(floor_of(m, DType::f8).product(down, 2048), elems * 2 * 2048 / 1600e12);
  // The output matrix stays as it is.
  EXPECT_DOUBLE_EQ(floor_of(m, DType::f8).product(head, 2048),
                   floor_of(m, DType::bf16).product(head, 2048));
  EXPECT_LT(floor_of(m, DType::f8).prefill(8, 1024),
            0.75 * floor_of(m, DType::bf16).prefill(8, 1024));
}

TEST(GpuFloor, Int8HasARateOfItsOwn) {
  ModelShape m = shape();
  Product down = product_named(m, "down"), head = product_named(m, "lm_head");
  const GpuFloor int8 = floor_of(m, DType::i8);
  EXPECT_DOUBLE_EQ(int8.product(down, 1), 1024.0 * 4096 / 4e12);
  EXPECT_DOUBLE_EQ(int8.product(down, 2048), 1024.0 * 4096 * 2 * 2048 / 1200e12);
  EXPECT_DOUBLE_EQ(int8.product(head, 2048), floor_of(m, DType::bf16).product(head, 2048));
}

TEST(GpuFloor, ReadingIsFasterThanCopying) {
  ModelShape m = shape();
  GpuFloor copy = floor_of(m, DType::bf16), read = copy.at(copy.limits.read);
  EXPECT_DOUBLE_EQ(read.decode(1, 1000), copy.decode(1, 1000) * 4 / 5);
  EXPECT_DOUBLE_EQ(copy.attention(1000), 1000 * 6144 / 4e12);
}

TEST(GpuFloor, OpsHaveTheirOwnNamesAndGaps) {
  ModelShape m = shape();
  GpuFloor f = floor_of(m, DType::bf16);
  StepProfile p;
  p.step = 1e-3;
  auto add = [&](const char* op, const char* product, double in_step, double alone) {
    OpProfile o;
    o.op = op;
    if (product) o.rows = product_named(m, product).rows, o.cols = product_named(m, product).cols;
    o.calls = 3, o.in_step = in_step, o.alone = alone;
    p.ops.push_back(o);
  };
  add("matmul", "qkv", 40e-6, 50e-6);
  add("rope_kv", nullptr, 12e-6, 20e-6);
  add("attention", nullptr, 30e-6, 40e-6);
  std::vector<OpRow> rows = op_rows(p, f, 4, 100);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].name, "qkv");
  EXPECT_DOUBLE_EQ(rows[0].gap(), 40e-6 - 3 * f.product(product_named(m, "qkv"), 4));
  EXPECT_EQ(rows[1].name, "attention");
  EXPECT_DOUBLE_EQ(rows[1].gap(), 30e-6 - f.attention(400));
  EXPECT_EQ(rows[2].name, "rope_kv");
  EXPECT_DOUBLE_EQ(rows[2].gap(), 12e-6);
  p.step = 0;  // steps are not captured
  EXPECT_DOUBLE_EQ(op_rows(p, f, 4, 100)[0].seconds, 50e-6);
}

}  // namespace
}  // namespace sluice
