// The largest of a row: by scanning it, and as a matrix product finds it on the way.
#include "backend/best.h"

#include <cmath>
#include <random>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"

namespace sluice {
namespace {

// One by one, as the definition says.
Best plain(std::span<const float> x) {
  Best b;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] > b.value) b = {x[i], static_cast<int32_t>(i)};
  }
  return b;
}

TEST(Best, ScanAgreesWithTheDefinition) {
  std::mt19937 rng(3);
  for (int64_t n : {1, 15, 16, 17, 100, 4095, 4096, 4097, 9001}) {
    for (int round = 0; round < 20; ++round) {
      std::vector<float> x(static_cast<size_t>(n));
      for (float& v : x) v = static_cast<float>(rng() % 50) - 60;  // many ties, all negative
      if (round % 3 == 0) x[rng() % x.size()] = NAN;
      if (round % 5 == 0) x[rng() % x.size()] = INFINITY;
      const Best want = plain(x);
      // In one go, and in pieces that come in any order.
      EXPECT_EQ(better({}, x.data(), n).at, want.at);
      const int64_t cut = static_cast<int64_t>(rng() % x.size());
      Best b = better({}, x.data() + cut, n - cut, cut);
      b = better(b, x.data(), cut);
      EXPECT_EQ(b.at, want.at);
      EXPECT_EQ(b.value, want.value);
    }
  }
}

TEST(Best, NothingAboveMinusInfinity) {
  const std::vector<float> x = {NAN, -INFINITY, NAN};
  EXPECT_EQ(better({}, x.data(), 3).at, -1);
  EXPECT_EQ(better({}, x.data(), 0).at, -1);
}

TEST(Best, MatmulFindsItOnTheWay) {
  // Two segments of whole numbers, so that every sum is exact and rows repeat: ties in plenty, over
  // pieces, segments and threads.
  const int64_t cols = 64;
  std::mt19937 rng(5);
  std::vector<TensorInfo> infos;
  std::vector<std::vector<float>> values;
  for (int64_t rows : {700, 1300}) {
    infos.push_back({"w", Format::f32, rows, cols, static_cast<size_t>(rows * cols) * 4});
    std::vector<float> v(static_cast<size_t>(rows * cols));
    for (int64_t r = 0; r < rows; ++r) {
      std::mt19937 row(static_cast<uint32_t>(r % 40));
      for (int64_t c = 0; c < cols; ++c)
        v[static_cast<size_t>(r * cols + c)] = static_cast<float>(row() % 9) - 4;
    }
    values.push_back(std::move(v));
  }
  std::vector<WeightSegment> segments;
  for (size_t i = 0; i < infos.size(); ++i)
    segments.push_back({&infos[i], std::as_bytes(std::span<const float>(values[i]))});
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(make_ref_backend());
  for (int threads : {1, 2, 3})
    backends.push_back(make_cpu_backend({.threads = threads, .pin = false}));
  for (const auto& backend : backends) {
    const Weight w = backend->load(segments, {});
    for (int64_t m : {1, 5, 40}) {
      std::vector<float> x(static_cast<size_t>(m * cols)), out(static_cast<size_t>(m * w.rows));
      for (float& v : x) v = static_cast<float>(rng() % 9) - 4;
      if (m > 1) x[3] = NAN;  // all of row 0
      Act act;
      act.f = {x.data(), DType::f32, m, cols, cols};
      std::vector<Best> best(static_cast<size_t>(m));
      Tensor scratch{out.data(), DType::f32, m, w.rows, w.rows};
      backend->matmul_best(scratch, act, w, best);
      backend->matmul(scratch, act, w);
      for (int64_t i = 0; i < m; ++i) {
        const auto rows = static_cast<size_t>(w.rows);
        const Best want = plain({out.data() + static_cast<size_t>(i) * rows, rows});
        ASSERT_EQ(best[static_cast<size_t>(i)].at, want.at) << backend->describe() << " row " << i;
        ASSERT_EQ(best[static_cast<size_t>(i)].value, want.value);
      }
      if (m > 1) {
        EXPECT_EQ(best[0].at, -1);
      }
    }
  }
}

}  // namespace
}  // namespace sluice
