#include "tools/bench_kernels/cases.h"

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/features.h"

namespace sluice {
namespace {

constexpr size_t kRotation = 1 << 20;

// Whatever a row reads, a case has it.
TEST(KernelCases, EveryRowRuns) {
  ThreadPool pool(2);
  Rotation rotation(kRotation);
  for (const MatmulRow& row : matmul_rows()) {
    if (!cpu_features().has(row.need)) continue;
    SCOPED_TRACE(row.name);
    auto c = make_matmul_case(pool, rotation, {&row, 40, 200, 5});
    for (int m : {1, 5, 2}) c->run(m);
    EXPECT_GT(c->bytes(1), 40 * 200 / 4);
    EXPECT_EQ(c->bytes(1), c->bytes(5));
    EXPECT_GE(c->ops(5), 2 * 5 * 40 * 200);
    EXPECT_EQ(c->ops(5), 5 * c->ops(1));
  }
}

TEST(KernelCases, RowsHaveTheirPeaks) {
  for (const MatmulRow& row : matmul_rows()) {
    if (!cpu_features().has(row.need)) continue;
    const PeakRow* own = own_peak(row);
    if (row.need == 0) {
      EXPECT_EQ(own, nullptr) << row.name;
      continue;
    }
    ASSERT_NE(own, nullptr) << row.name;
    EXPECT_EQ(own->type, row_type(row)) << row.name;
    EXPECT_EQ(own->type == PeakType::int8, row.act_needs != kActF32) << row.name;
    EXPECT_EQ(own->need & ~row.need, 0u) << row.name << " does not use " << own->name;
  }
}

TEST(KernelCases, CopiesFillTheRotation) {
  Rotation rotation(kRotation);
  EXPECT_EQ(rotation.places(kRotation / 4).size(), 4u);
  EXPECT_EQ(rotation.places(3 * kRotation).size(), 1u);
  std::vector<std::byte*> two = rotation.places(kRotation / 2 - 100);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[1] - two[0], static_cast<ptrdiff_t>(kRotation / 2));
}

TEST(KernelCases, AttentionRuns) {
  std::unique_ptr<Backend> backend = make_cpu_backend({.threads = 2});
  ModelShape shape;
  shape.num_heads = 6;
  shape.num_kv_heads = 2;
  shape.head_dim = 64;
  for (KvType kv : {KvType(DType::f16), KvType(DType::i8, 8), KvType(DType::i8, 64)}) {
    auto decode = make_attention_case(*backend, kRotation, {shape, kv, 99, 3});
    for (int m : {1, 3, 2, 3}) decode->run(m);
    EXPECT_EQ(decode->ops(3), 3 * 4.0 * 100 * 6 * 64);
    EXPECT_EQ(decode->bytes(3), 3 * decode->bytes(1));
    auto prefill = make_attention_case(*backend, kRotation, {shape, kv, 0, 70});
    for (int m : {70, 1, 17}) prefill->run(m);
    EXPECT_EQ(prefill->ops(70), 4.0 * 70 * 71 / 2 * 6 * 64);
    EXPECT_NEAR(prefill->bytes(70) / 70, decode->bytes(1) / 100, 1e-6);
  }
  auto f16 = make_attention_case(*backend, kRotation, {shape, DType::f16, 99, 1});
  EXPECT_NEAR(f16->bytes(1), 100 * 2 * 2 * 64 * 2, 1e-6);
}

// Widths that not every form of activations fits.
TEST(KernelCases, RowOperations) {
  const std::unique_ptr<Backend> backend = make_cpu_backend({.threads = 2, .pin = false});
  ModelShape shape;
  shape.num_heads = 3, shape.num_kv_heads = 1, shape.head_dim = 32;
  for (int hidden : {96, 256, 100}) {
    shape.hidden = hidden, shape.ffn = 2 * hidden;
    for (uint8_t acts : {kActF32, kActQ8, kActRow8, kActSuper8}) {
      auto c = make_row_ops_case(*backend, {shape, acts, 5});
      for (int m : {1, 5, 2}) c->run(m);
      EXPECT_EQ(c->bytes(4), 4 * c->bytes(1));
      EXPECT_EQ(c->bytes(1), 4.0 * (8 * hidden + 5 * 32));
    }
  }
}

}  // namespace
}  // namespace sluice
