// Quantises rows of f32 into forms with scales per row (pack_plan.h) and reads rows back.
// Portable: it runs at load.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cpu/matmul/matmul_table.h"
#include "backend/cpu/matmul/pack_plan.h"
#include "backend/cpu/matmul/pack_walk.h"
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
  static void pack(const PackArgs& a) {
    const RowPanelPlan plan = row_panel_plan<R>(a.cols);
    std::vector<int8_t> codes(static_cast<size_t>(a.cols));
    for_panels<R>(a, plan.bytes, [&](uint8_t* panel, int64_t row, int64_t present) {
      std::memset(panel + plan.scale, 0, plan.bytes - plan.scale);
      if (present < R) std::memset(panel, kFlip, plan.scale);
      for (int64_t r = 0; r < present; ++r) {
        float scale;
        int32_t sum;
        quantize_whole_row(static_cast<const float*>(a.src) + (row + r) * a.cols, a.cols,
                           codes.data(), &scale, &sum);
        for (int64_t k = 0; k < a.cols; k += I) {
          uint8_t unit[I];
          for (int i = 0; i < I; ++i)
            unit[i] = static_cast<uint8_t>(codes[static_cast<size_t>(k + i)]) ^ kFlip;
          std::memcpy(panel + k * R + r * I, unit, I);
        }
        std::memcpy(panel + plan.scale + 4 * r, &scale, 4);
      }
    });
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

// u8: codes 0 to 255 over a row's range. A row of one value has scale 0; one that holds an infinity
// or a NaN has a NaN scale, so that what reads it shows the fault.
struct U8Packing {
  static constexpr int kRows = 16;  // of a group

  static size_t packed_bytes(int64_t rows, int64_t cols) {
    return static_cast<size_t>((rows + kRows - 1) / kRows * kRows * u8_pitch(cols));
  }

  // src: f32 [rows, cols]
  static void pack(const PackArgs& a) {
    for (int64_t r = a.group_begin * kRows; r < a.group_end * kRows; ++r) {
      auto* row = static_cast<uint8_t*>(a.dst) + r * u8_pitch(a.cols);
      std::memset(row, 0, static_cast<size_t>(u8_pitch(a.cols)));
      if (r < a.rows) quantize(static_cast<const float*>(a.src) + r * a.cols, a.cols, row);
    }
  }

  static void decode_row(const void* w, int64_t, int64_t cols, int64_t row, float* out) {
    decode(static_cast<const uint8_t*>(w) + row * u8_pitch(cols), 0, cols, out);
  }

  // Columns [begin, begin + num) of a packed row.
  static void decode(const uint8_t* row, int64_t begin, int64_t num, float* out) {
    float head[2];  // scale, minimum
    std::memcpy(head, row, sizeof(head));
    const uint8_t* codes = row + kU8Head + begin;
    for (int64_t k = 0; k < num; ++k) {
      out[k] = std::fma(static_cast<float>(codes[k]), head[0], head[1]);
    }
  }

 private:
  static void quantize(const float* x, int64_t cols, uint8_t* row) {
    float lowest = x[0], highest = x[0];
    bool finite = true;
    for (int64_t k = 0; k < cols; ++k) {
      lowest = std::min(lowest, x[k]);
      highest = std::max(highest, x[k]);
      finite = finite && std::isfinite(x[k]);
    }
    const float range = highest - lowest;
    finite = finite && std::isfinite(range);
    const bool flat = range < 1e-30f;
    const float head[2] = {!finite ? std::numeric_limits<float>::quiet_NaN()
                           : flat  ? 0
                                   : range / 255,
                           lowest};
    std::memcpy(row, head, sizeof(head));
    if (!finite || flat) return;
    const float inverse = 255 / range;
    for (int64_t k = 0; k < cols; ++k) {
      row[kU8Head + k] =
          static_cast<uint8_t>(std::clamp(std::nearbyint((x[k] - lowest) * inverse), 0.0f, 255.0f));
    }
  }
};

}  // namespace sluice::cpu
