// bf16_quads rows give the bits of their definition (matmul_table.h), computed here in doubles.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "backend/cpu/features.h"
#include "backend/cpu/matmul/matmul.h"
#include "tensor/formats/all.h"
#include "tensor/formats/f16.h"

namespace sluice {
namespace {

// The sum rounded to odd: truncated, and the last bit set if anything was lost. Normal numbers and
// zeros only.
float add_odd(float a, float b) {
  const double x = a, y = b, sum = x + y;
  const double kept = sum - x;
  const double lost = (x - (sum - kept)) + (y - kept);  // exactly what the double sum rounded off
  auto bits = std::bit_cast<uint64_t>(sum);
  if (lost != 0) {
    if ((lost < 0) != (sum < 0)) --bits;  // towards zero
    bits |= 1;
  }
  constexpr uint64_t kDropped = (uint64_t{1} << 29) - 1;
  const float cut = static_cast<float>(std::bit_cast<double>(bits & ~kDropped));
  return std::bit_cast<float>(std::bit_cast<uint32_t>(cut) | ((bits & kDropped) != 0 ? 1u : 0u));
}

float chain(const std::vector<float>& w, const std::vector<float>& x) {
  float acc = 0;
  for (size_t k = 0; k < w.size(); k += 2) {
    const bool two = k + 1 < w.size();
    const float second = two ? w[k + 1] * x[k + 1] : 0;  // products of bf16 are exact
    acc = add_odd(acc, add_odd(w[k] * x[k], second));
  }
  return acc;
}

TEST(MatmulQuads, TheSumRoundsToOdd) {
  EXPECT_EQ(add_odd(1, 0x1p-24f), 1 + 0x1p-23f);   // nearest would be 1
  EXPECT_EQ(add_odd(1, 0x1p-60f), 1 + 0x1p-23f);   // beyond a double too
  EXPECT_EQ(add_odd(1, -0x1p-60f), 1 - 0x1p-24f);  // cut to an odd neighbour
  EXPECT_EQ(add_odd(-3, 0x1p-60f), -0x1.7ffffep+1f);
  EXPECT_EQ(add_odd(1.5f, 2.25f), 3.75f);
}

TEST(MatmulQuads, RowsGiveTheBitsOfTheirDefinition) {
  bool any = false;
  ThreadPool pool(2, false);
  for (const MatmulRow& row : matmul_rows()) {
    if (row.arith != Arith::bf16_quads || !cpu_features().has(row.need)) continue;
    any = true;
    for (int64_t cols : {1, 3, 64, 1537, 2600}) {
      constexpr int64_t kRows = 37, kM = 13;
      std::mt19937 rng(static_cast<uint32_t>(cols));
      std::normal_distribution<float> normal(0.1f, 1.0f);
      std::vector<uint16_t> codes(static_cast<size_t>(kRows * cols));
      for (uint16_t& c : codes) c = f32_to_bf16(normal(rng));
      std::vector<float> x(static_cast<size_t>(kM * cols));
      for (float& v : x) v = normal(rng);
      const TensorInfo info{"w", Format::bf16, kRows, cols, codes.size() * 2};
      const WeightSegment segment{&info, std::as_bytes(std::span(codes))};
      const PackedWeight packed = pack_weight(pool, {&segment, 1}, {}, {.table = {&row, 1}});
      Act act;
      act.f = {x.data(), DType::f32, kM, cols, cols};
      std::vector<float> out(kM * kRows);
      MatmulScratch scratch;
      matmul(pool, Tensor{out.data(), DType::f32, kM, kRows, kRows}, act, packed, scratch);
      for (int64_t m = 0; m < kM; ++m) {
        std::vector<float> a(static_cast<size_t>(cols)), b(a.size());
        for (size_t k = 0; k < a.size(); ++k) {
          a[k] = bf16_to_f32(f32_to_bf16(x[static_cast<size_t>(m * cols) + k]));
        }
        for (int64_t n = 0; n < kRows; ++n) {
          for (size_t k = 0; k < b.size(); ++k) {
            b[k] = bf16_to_f32(codes[static_cast<size_t>(n * cols) + k]);
          }
          ASSERT_EQ(out[static_cast<size_t>(m * kRows + n)], chain(b, a))
              << row.name << " K " << cols << " m " << m << " n " << n;
        }
      }
    }
  }
  if (!any) GTEST_SKIP() << "this CPU has no BFMMLA";
}

}  // namespace
}  // namespace sluice
