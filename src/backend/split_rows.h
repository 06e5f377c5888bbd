// Rows of x in two bytes an element: what products of few rows with stored weights read on a GPU
// (cuda/packed.cuh). Sizes that models, memory plans and kernels share; any thread.
#pragma once

#include <cstdint>

namespace sluice {

// Up to so many rows of x a product reads weights as they are; of more rows it decodes them first,
// which is faster. Must exceed the row limit of kernels that prefetch weights before they wait
// (narrow): the kernel before them writes the decoded weights.
inline constexpr int kMaxStreamed = 64;

// For 256 columns 512 bytes of codes, 32 of sums and a scale.
inline constexpr int kSplitCols = 256, kSplitCodes = 2 * kSplitCols, kSplitSums = 32;
constexpr int64_t split_bytes(int64_t rows, int64_t cols) {
  const int64_t blocks = rows * ((cols + kSplitCols - 1) / kSplitCols);
  return blocks * (kSplitCodes + kSplitSums + static_cast<int64_t>(sizeof(float)));
}

}  // namespace sluice
