// Every row of the kernel table that this CPU can run, bit for bit across M, outputs and threads.
#include "backend/cpu/matmul/matmul.h"

#include <gtest/gtest.h>

#include "backend/cpu/matmul/matmul_cases.h"
#include "base/test_slice.h"
#include "tensor/formats/all.h"

namespace sluice {
namespace {

class MatmulBatchKernel : public MatmulRowTest {};
INSTANTIATE_TEST_SUITE_P(Rows, MatmulBatchKernel, testing::ValuesIn(usable_rows()), row_test_name);

TEST_P(MatmulBatchKernel, RowsOfABatchDoNotDependOnTheBatch) {
  const MatmulRow* row = GetParam();
  TestSlice slice(row_index());
  ThreadPool pool(2, false);
  constexpr int64_t kMost = 40, kMany = 150;
  const int64_t cols = format_info(row->fmt).block_elems == 256 ? 512 : 224;
  const int64_t n = 16 * 7 + 9;
  const Source w = random_source(*row, n, cols, 5);
  const WeightSegment segment = w.segment();
  const PackedWeight packed = pack_weight(pool, {&segment, 1}, make_bias(n), only(row));
  Input in = make_input(kMany, cols, 21);
  std::vector<float> alone;
  for (int64_t m = 0; m < kMany; ++m) {
    const auto one = multiply(pool, packed, in.act(m, 1));
    alone.insert(alone.end(), one.begin(), one.end());
  }
  for (int64_t m = 2; m <= kMany; m += m < kMost ? 1 : 11) {
    if (!slice.take()) continue;
    const auto out = multiply(pool, packed, in.act(0, m));
    ASSERT_TRUE(same_bits(out, {alone.begin(), alone.begin() + static_cast<long>(out.size())}))
        << row->name << " M " << m;
  }
}

// Longer rows than kernels take at once: partial sums are stored and loaded again.
TEST_P(MatmulBatchKernel, LongRowsOfABatchDoNotDependOnTheBatch) {
  const MatmulRow* row = GetParam();
  TestSlice slice(row_index());
  ThreadPool pool(2, false);
  const bool super = format_info(row->fmt).block_elems == 256;
  for (int64_t cols : super ? std::vector<int64_t>{1280, 2304} : std::vector<int64_t>{1056, 2080}) {
    if (!slice.take()) continue;
    const Source w = random_source(*row, 41, cols, 5);
    const WeightSegment segment = w.segment();
    const PackedWeight packed = pack_weight(pool, {&segment, 1}, make_bias(41), only(row));
    Input in = make_input(70, cols, 21);
    std::vector<float> alone;
    for (int64_t m = 0; m < 70; ++m) {
      const auto one = multiply(pool, packed, in.act(m, 1));
      alone.insert(alone.end(), one.begin(), one.end());
    }
    for (int64_t m : {4, 9, 13, 17, 33, 70}) {
      const auto out = multiply(pool, packed, in.act(0, m));
      ASSERT_TRUE(same_bits(out, {alone.begin(), alone.begin() + static_cast<long>(out.size())}))
          << row->name << " K " << cols << " M " << m;
    }
  }
}

// More rows than kernels lay out at once, in one call: matmul() cuts them before.
TEST_P(MatmulBatchKernel, TakesAnyNumberOfRows) {
  const MatmulRow* row = GetParam();
  ThreadPool pool(1, false);
  constexpr int64_t kM = 411, kN = 25;
  const int64_t cols = format_info(row->fmt).block_elems == 256 ? 256 : 96;
  const Source w = random_source(*row, kN, cols, 9);
  const WeightSegment segment = w.segment();
  const PackedWeight packed = pack_weight(pool, {&segment, 1}, {}, only(row));
  Input in = make_input(kM, cols, 23);
  const Act x = in.act();
  std::vector<float> out(kM * kN, kPoison);
  MatmulArgs a;
  a.w = packed.segments[0].data;
  a.rows = kN, a.cols = cols;
  a.group_end = num_groups(*row, kN);
  a.m = a.all_rows = kM;
  a.x = x.f.f32(), a.x_stride = x.f.stride;
  const bool by_row = row->arith == Arith::int_row, by_super = row->arith == Arith::int_super;
  a.q = by_row ? x.r.q : by_super ? x.s.q : x.q.q;
  a.scale = by_row ? x.r.scale : by_super ? x.s.scale : x.q.scale;
  a.sum = by_row ? x.r.sum : by_super ? nullptr : x.q.sum;
  a.sum16 = x.s.sum;
  a.out = out.data(), a.out_stride = kN;
  row->run(a);
  for (int64_t m : {0, 1, 75, 76, 127, 128, 149, 205, 206, 410}) {
    const auto alone = multiply(pool, packed, in.act(m, 1));
    EXPECT_TRUE(same_bits({out.data() + m * kN, out.data() + (m + 1) * kN},
                          {alone.begin(), alone.begin() + kN}))
        << row->name << " row " << m;
  }
}

class MatmulTiledKernel : public MatmulRowTest {};
INSTANTIATE_TEST_SUITE_P(Rows,
                         MatmulTiledKernel,
                         testing::ValuesIn(usable_rows([](const MatmulRow& row) {
                           return row.x_tiles != XTiles::none || row.arith == Arith::int_row;
                         })),
                         row_test_name);

// Kernels may write an output that is larger than the caches past them.
TEST_P(MatmulTiledKernel, LargeOutputs) {
  const MatmulRow* row = GetParam();
  ThreadPool pool(2, false);
  constexpr int64_t kRows = 4119, kStride = 4128, kM = 519;
  const int64_t cols = format_info(row->fmt).block_elems == 256 ? 256 : 96;
  const Buffer memory = allocate_pages(kM * kStride * sizeof(float));
  auto* out = static_cast<float*>(memory.data());
  const Source w = random_source(*row, kRows, cols, 7);
  const WeightSegment segment = w.segment();
  const PackedWeight packed = pack_weight(pool, {&segment, 1}, make_bias(kRows), only(row));
  Input in = make_input(kM, cols, 22);
  std::fill_n(out, kM * kStride, kPoison);
  MatmulScratch scratch;
  matmul(pool, Tensor{out, DType::f32, kM, kRows, kStride}, in.act(), packed, scratch);
  for (int64_t m = 0; m < kM; m += 7) {
    const auto alone = multiply(pool, packed, in.act(m, 1));
    ASSERT_TRUE(same_bits({out + m * kStride, out + m * kStride + kRows},
                          {alone.begin(), alone.begin() + kRows}))
        << row->name << " row " << m;
    EXPECT_EQ(out[m * kStride + kRows], kPoison) << row->name;
  }
}

TEST_P(MatmulBatchKernel, ResultsDoNotDependOnThreads) {
  const MatmulRow* row = GetParam();
  const int64_t cols = format_info(row->fmt).block_elems == 256 ? 256 : 96;
  const int64_t n = 16 * 21 + 5;
  const Source w = random_source(*row, n, cols, 6);
  const WeightSegment segment = w.segment();
  for (int64_t m : {1, 3, 100}) {
    Input in = make_input(m, cols, 31);
    std::vector<float> first;
    for (int threads : {1, 2, 3, 5}) {
      ThreadPool pool(threads, false);
      const PackedWeight packed = pack_weight(pool, {&segment, 1}, {}, only(row));
      const auto out = multiply(pool, packed, in.act());
      if (threads == 1) first = out;
      ASSERT_TRUE(same_bits(out, first)) << row->name << " threads " << threads << " M " << m;
    }
  }
}

// matmul_best finds the argmax of what matmul puts out, in scratch of its own.
TEST_P(MatmulBatchKernel, BestIsTheArgmaxOfTheOutputs) {
  const MatmulRow* row = GetParam();
  const int64_t cols = format_info(row->fmt).block_elems == 256 ? 256 : 96;
  const int64_t n = 16 * 21 + 5;
  const Source w = random_source(*row, n, cols, 7);
  const WeightSegment segment = w.segment();
  BestScratch scratch;
  for (int threads : {1, 3}) {
    ThreadPool pool(threads, false);
    const PackedWeight packed = pack_weight(pool, {&segment, 1}, make_bias(n), only(row));
    for (int64_t m : {1, 3, 100}) {
      Input in = make_input(m, cols, 32);
      const std::vector<float> out = multiply(pool, packed, in.act());
      std::vector<Best> best(static_cast<size_t>(m));
      matmul_best(pool, in.act(), packed, best, scratch);
      for (int64_t i = 0; i < m; ++i) {
        const Best want = better({}, out.data() + i * (n + 3), n);
        ASSERT_EQ(best[static_cast<size_t>(i)].at, want.at) << row->name << " M " << m;
        ASSERT_EQ(best[static_cast<size_t>(i)].value, want.value);
      }
    }
  }
}

}  // namespace
}  // namespace sluice
