// Packs bf16 rows into panels (pack_plan.h) and reads rows back. Portable: it runs at load.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backend/cpu/matmul/matmul_table.h"
#include "backend/cpu/matmul/pack_plan.h"
#include "backend/cpu/matmul/pack_walk.h"

namespace sluice::cpu {

// I columns of a row stand together; rows are completed to a multiple of kStep columns.
template <int R, int I, int64_t kStep>
struct Bf16Packing {
  static_assert(kStep % I == 0);

  static size_t packed_bytes(int64_t rows, int64_t cols) {
    return static_cast<size_t>((rows + R - 1) / R) * bf16_panel_bytes<R, kStep>(cols);
  }

  static void pack(const PackArgs& a) {
    const size_t panel_bytes = bf16_panel_bytes<R, kStep>(a.cols);
    const int64_t whole = a.cols / I * I;
    for_panels<R>(a, panel_bytes, [&](uint8_t* panel, int64_t row, int64_t present) {
      if (present < R || a.cols % kStep != 0) std::memset(panel, 0, panel_bytes);
      for (int64_t r = 0; r < present; ++r) {
        const auto* from = static_cast<const uint8_t*>(a.src) + (row + r) * a.cols * 2;
        uint8_t* to = panel + r * I * 2;
        for (int64_t k = 0; k < whole; k += I) std::memcpy(to + k * 2 * R, from + k * 2, I * 2);
        if (whole < a.cols) {
          const auto left = static_cast<size_t>(a.cols - whole) * 2;
          std::memcpy(to + whole * 2 * R, from + whole * 2, left);
        }
      }
    });
  }

  static void decode_row(const void* w, int64_t, int64_t cols, int64_t row, float* out) {
    const auto* panel = static_cast<const std::byte*>(w) +
                        static_cast<size_t>(row / R) * bf16_panel_bytes<R, kStep>(cols);
    for (int64_t k = 0; k < cols; ++k) {
      uint16_t half;
      std::memcpy(&half, panel + ((k / I * R + row % R) * I + k % I) * 2, 2);
      out[k] = std::bit_cast<float>(uint32_t{half} << 16);
    }
  }
};

}  // namespace sluice::cpu
