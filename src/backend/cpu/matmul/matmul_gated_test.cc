// Products with the activation inside against the product and the activation one after the other:
// the same bits, for every row of the kernel table that this CPU can run.
#include "backend/cpu/matmul/matmul_gated.h"

#include <gtest/gtest.h>

#include "backend/cpu/matmul/matmul_cases.h"
#include "base/test_slice.h"

namespace sluice {
namespace {

// m rows of f columns quantised by blocks of 32 or 256, and a row behind them that nobody may
// write.
struct Codes {
  Codes(int64_t m, int64_t f, int64_t block)
      : q(static_cast<size_t>((m + 1) * f), 99),
        scale(q.size() / static_cast<size_t>(block), kPoison),
        sum(q.size() / kActBlock, 9999),
        sum16(q.size() / kActSum, 9999) {
    if (block == kActSuper) {
      act.s = {q.data(), scale.data(), sum16.data(), m, f};
    } else {
      act.q = {q.data(), scale.data(), sum.data(), m, f};
    }
  }
  bool operator==(const Codes& o) const {
    return q == o.q && scale == o.scale && sum == o.sum && sum16 == o.sum16;
  }

  std::vector<int8_t> q;
  std::vector<float> scale;
  std::vector<int32_t> sum;
  std::vector<int16_t> sum16;
  Act act;
};

// Rows [0, f) of `from` as gate and rows [32, f + 32) as up.
PackedWeight gate_and_up(ThreadPool& pool, const MatmulRow* row, const Source& from, int64_t f) {
  TensorInfo info = from.info;
  const size_t one = row_bytes(info.format, info.cols);
  info.rows = f;
  info.bytes = one * static_cast<size_t>(f);
  const std::span<const std::byte> bytes = from.bytes;
  const WeightSegment segments[] = {{&info, bytes.first(info.bytes)},
                                    {&info, bytes.subspan(32 * one, info.bytes)}};
  return pack_weight(pool, segments, make_bias(2 * f), only(row));
}

// The product first, then row by row the activation and its codes.
Codes one_after_the_other(
    ThreadPool& pool, const PackedWeight& w, Input& in, Activation a, int64_t block) {
  const int64_t f = w.rows / 2, stride = w.rows + 3;
  std::vector<float> inner = multiply(pool, w, in.act());
  std::vector<float> y(static_cast<size_t>(f));
  Codes out(in.m, f, block);
  for (int64_t r = 0; r < in.m; ++r) {
    const float* gate = inner.data() + r * stride;
    vector_kernels(cpu_features()).activate(a, gate, gate + f, f, y.data());
    quantize_blocks(out.act, r, 0, y.data(), f);
  }
  return out;
}

class MatmulGatedKernel : public MatmulRowTest {};
INSTANTIATE_TEST_SUITE_P(Rows, MatmulGatedKernel, testing::ValuesIn(usable_rows()), row_test_name);

TEST_P(MatmulGatedKernel, HasTheBitsOfProductAndActivation) {
  TestSlice slice(row_index());
  const int64_t cols = format_info(GetParam()->fmt).block_elems == 256 ? 256 : 96;
  const Source source = random_source(*GetParam(), 12 * kActSuper + 2 * kActBlock, cols, 5);
  MatmulScratch scratch;
  GatedScratch own;
  const std::pair<int, int64_t> threads_and_m[] = {{1, 64}, {1, 300}, {2, 65}, {3, 130}, {4, 64}};
  for (const auto& [threads, m] : threads_and_m) {
    ThreadPool pool(threads, false);
    for (int64_t block : {kActBlock, kActSuper}) {
      if (!slice.take()) continue;
      const int64_t f = 3 * kActSuper * threads + (block == kActBlock ? kActBlock : 0);
      const PackedWeight w = gate_and_up(pool, GetParam(), source, f);
      const Activation a = block == kActBlock ? Activation::silu : Activation::gelu_tanh;
      Input in = make_input(m, cols, 21);
      Codes got(m, f, block);
      ASSERT_TRUE(matmul_gated(pool, {got.act, in.act(), w, a}, vector_kernels(cpu_features()),
                               scratch, own));
      ASSERT_TRUE(got == one_after_the_other(pool, w, in, a, block))
          << GetParam()->name << " M " << m << " blocks of " << block << ", threads " << threads;
    }
  }
}

// It returns false and writes nothing for few rows, for output in f32, and for one tensor.
TEST(MatmulGated, LeavesTheRestToTheOpsApart) {
  ThreadPool pool(2, false);
  constexpr int64_t kF = 1568, kCols = 96;
  const MatmulRow* row = &choose_matmul(Format::q8_0, kF, kCols);
  const Source source = random_source(*row, kF + kActBlock, kCols, 5);
  const PackedWeight w = gate_and_up(pool, row, source, kF);
  const VectorKernels& kernels = vector_kernels(cpu_features());
  MatmulScratch scratch;
  GatedScratch own;
  const auto takes = [&](int64_t m, const PackedWeight& product, Act out) {
    Input in = make_input(m, kCols, 21);
    return matmul_gated(pool, {out, in.act(), product, Activation::silu}, kernels, scratch, own);
  };
  for (int64_t m : {1, 7, 63}) {
    Codes few(m, kF, kActBlock);
    EXPECT_FALSE(takes(m, w, few.act));
    EXPECT_TRUE(few == Codes(m, kF, kActBlock));
  }
  Codes many(64, kF, kActBlock);
  EXPECT_TRUE(takes(64, w, many.act));
  std::vector<float> f(64 * kF, kPoison);
  Act as_floats = many.act;
  as_floats.f = {f.data(), DType::f32, 64, kF, kF};
  EXPECT_FALSE(takes(64, w, as_floats));
  EXPECT_EQ(std::count(f.begin(), f.end(), kPoison), std::ssize(f));
  const WeightSegment one = source.segment();
  Codes half(64, (kF + kActBlock) / 2, kActBlock);
  EXPECT_FALSE(takes(64, pack_weight(pool, {&one, 1}, {}, only(row)), half.act));  // one tensor
}

}  // namespace
}  // namespace sluice
