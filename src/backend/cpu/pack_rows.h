// Quantises rows of f32 into panels with scales per row (pack_plan.h) and reads rows back.
// Portable: it runs at load.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "backend/cpu/pack_plan.h"
#include "backend/cpu/quantize.h"

namespace sluice::cpu {

// w8a8: each row of the matrix as quantize_whole_row leaves it. kOffset: codes are stored plus 128,
// for instructions that want an unsigned operand.
template <int R, int I, bool kOffset>
struct W8Packing {
  static constexpr uint8_t kFlip = kOffset ? 0x80 : 0;

  static size_t packed_bytes(int64_t rows, int64_t cols) {
    return static_cast<size_t>((rows + R - 1) / R) * row_panel_plan<R>(cols).bytes;
  }

  // src: f32 [rows, cols]
  static void pack(const void* src,
                   int64_t rows,
                   int64_t cols,
                   void* dst,
                   int64_t group_begin,
                   int64_t group_end) {
    const RowPanelPlan plan = row_panel_plan<R>(cols);
    std::vector<int8_t> codes(static_cast<size_t>(cols));
    for (int64_t g = group_begin; g < group_end; ++g) {
      uint8_t* panel = static_cast<uint8_t*>(dst) + static_cast<size_t>(g) * plan.bytes;
      const int present = static_cast<int>(std::min<int64_t>(R, rows - g * R));
      std::memset(panel + plan.scale, 0, plan.bytes - plan.scale);
      if (present < R) std::memset(panel, kFlip, plan.scale);
      for (int r = 0; r < present; ++r) {
        float scale;
        int32_t sum;
        quantize_whole_row(static_cast<const float*>(src) + (g * R + r) * cols, cols, codes.data(),
                           &scale, &sum);
        for (int64_t k = 0; k < cols; k += I) {
          uint8_t unit[I];
          for (int i = 0; i < I; ++i)
            unit[i] = static_cast<uint8_t>(codes[static_cast<size_t>(k + i)]) ^ kFlip;
          std::memcpy(panel + k * R + r * I, unit, I);
        }
        std::memcpy(panel + plan.scale + 4 * r, &scale, 4);
      }
    }
  }

  static void decode_row(const void* w, int64_t, int64_t cols, int64_t row, float* out) {
    const RowPanelPlan plan = row_panel_plan<R>(cols);
    const uint8_t* panel =
        static_cast<const uint8_t*>(w) + static_cast<size_t>(row / R) * plan.bytes;
    const int64_t r = row % R;
    float scale;
    std::memcpy(&scale, panel + plan.scale + 4 * r, 4);
    for (int64_t k = 0; k < cols; ++k) {
      const uint8_t code = panel[k / I * (R * I) + r * I + k % I] ^ kFlip;
      out[k] = scale * static_cast<float>(static_cast<int8_t>(code));
    }
  }
};

}  // namespace sluice::cpu
