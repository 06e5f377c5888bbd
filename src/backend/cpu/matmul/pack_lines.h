// Packs rows of 16-bit floats into lines (pack_plan.h) and reads rows back. Portable: it runs at
// load.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backend/cpu/matmul/matmul_table.h"
#include "backend/cpu/matmul/pack_plan.h"
#include "backend/cpu/matmul/pack_walk.h"
#include "tensor/formats/all.h"

namespace sluice::cpu {

template <Format F>
struct LinePacking {
  static constexpr int kRows = 16;  // of a group

  static size_t packed_bytes(int64_t rows, int64_t cols) {
    return static_cast<size_t>((rows + kRows - 1) / kRows) * (kRows / kLineRows) *
           line_panel_bytes(cols);
  }

  static void pack(const PackArgs& a) {
    const size_t panel_bytes = line_panel_bytes(a.cols);
    PackArgs panels = a;
    panels.group_begin *= kRows / kLineRows;
    panels.group_end *= kRows / kLineRows;
    for_panels<kLineRows>(panels, panel_bytes, [&](uint8_t* panel, int64_t row, int64_t present) {
      if (present < kLineRows || a.cols % kLine != 0) std::memset(panel, 0, panel_bytes);
      for (int64_t r = 0; r < present; ++r) {
        const auto* from = static_cast<const uint8_t*>(a.src) + (row + r) * a.cols * 2;
        uint8_t* to = panel + r * kLine * 2;
        for (int64_t k = 0; k < a.cols; k += kLine) {
          const int64_t num = std::min(kLine, a.cols - k);
          std::memcpy(to + k * kLineRows * 2, from + k * 2, static_cast<size_t>(num) * 2);
        }
      }
    });
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
