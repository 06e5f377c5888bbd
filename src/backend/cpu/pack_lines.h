// Packs rows of 16-bit floats into lines (pack_plan.h) and reads rows back. Portable: it runs at
// load.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backend/cpu/pack_plan.h"
#include "tensor/formats/all.h"

namespace sluice::cpu {

template <Format F>
struct LinePacking {
  static constexpr int kRows = 16;  // of a group

  static size_t packed_bytes(int64_t rows, int64_t cols) {
    return static_cast<size_t>((rows + kRows - 1) / kRows) * (kRows / kLineRows) *
           line_panel_bytes(cols);
  }

  static void pack(const void* src,
                   int64_t rows,
                   int64_t cols,
                   void* dst,
                   int64_t group_begin,
                   int64_t group_end) {
    const size_t panel_bytes = line_panel_bytes(cols);
    constexpr int64_t kPanels = kRows / kLineRows;
    for (int64_t p = group_begin * kPanels; p < group_end * kPanels; ++p) {
      auto* panel = static_cast<std::byte*>(dst) + static_cast<size_t>(p) * panel_bytes;
      const int64_t present = std::clamp<int64_t>(rows - p * kLineRows, 0, kLineRows);
      if (present < kLineRows || cols % kLine != 0) std::memset(panel, 0, panel_bytes);
      for (int64_t r = 0; r < present; ++r) {
        const auto* row = static_cast<const std::byte*>(src) + (p * kLineRows + r) * cols * 2;
        std::byte* to = panel + r * kLine * 2;
        for (int64_t k = 0; k < cols; k += kLine) {
          const int64_t num = std::min(kLine, cols - k);
          std::memcpy(to + k * kLineRows * 2, row + k * 2, static_cast<size_t>(num) * 2);
        }
      }
    }
  }

  static void decode_row(const void* w, int64_t, int64_t cols, int64_t row, float* out) {
    const auto* line = static_cast<const std::byte*>(w) +
                       static_cast<size_t>(row / kLineRows) * line_panel_bytes(cols) +
                       row % kLineRows * kLine * 2;
    for (int64_t k = 0; k < cols; k += kLine) {
      format_info(F).decode(line + k * kLineRows * 2, out + k, std::min(kLine, cols - k));
    }
  }
};

}  // namespace sluice::cpu
