// Packs weights into the panels of pack_plan.h and reads rows back. Portable: it runs at load.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backend/cpu/pack_plan.h"
#include "tensor/formats/f16.h"
#include "tensor/formats/q4_0.h"
#include "tensor/formats/q4_1.h"
#include "tensor/formats/q6_k.h"
#include "tensor/formats/q8_0.h"
#include "tensor/tensor.h"

namespace sluice::cpu {

template <Format F>
struct SourceBlock;
template <>
struct SourceBlock<Format::q8_0> {
  using Type = BlockQ8_0;
};
template <>
struct SourceBlock<Format::q4_0> {
  using Type = BlockQ4_0;
};
template <>
struct SourceBlock<Format::q4_1> {
  using Type = BlockQ4_1;
};
template <>
struct SourceBlock<Format::q6_k> {
  using Type = BlockQ6K;
};

// kOffset: bytes of q8_0 are stored plus 128, for instructions that want an unsigned operand.
template <Format F, int R, int I, bool kOffset = false>
struct Packing {
  using Block = typename SourceBlock<F>::Type;
  static constexpr uint8_t kFlip = kOffset ? 0x80 : 0;

  static size_t packed_bytes(int64_t rows, int64_t cols) {
    return static_cast<size_t>((rows + R - 1) / R) * panel_plan<F, R>(cols).bytes;
  }

  static void pack(const void* src,
                   int64_t rows,
                   int64_t cols,
                   void* dst,
                   int64_t group_begin,
                   int64_t group_end) {
    const PanelPlan plan = panel_plan<F, R>(cols);
    const int64_t blocks = cols / Block::kElems;
    for (int64_t g = group_begin; g < group_end; ++g) {
      uint8_t* panel = static_cast<uint8_t*>(dst) + static_cast<size_t>(g) * plan.bytes;
      const int present = static_cast<int>(std::min<int64_t>(R, rows - g * R));
      if (present < R) std::memset(panel, 0, plan.bytes);
      for (int r = 0; r < present; ++r) {
        const auto* row =
            static_cast<const std::byte*>(src) + (g * R + r) * blocks * int64_t{sizeof(Block)};
        for (int64_t b = 0; b < blocks; ++b) {
          Block block;
          std::memcpy(&block, row + b * int64_t{sizeof(Block)}, sizeof(Block));
          put(panel, plan, b, r, block);
        }
      }
    }
  }

  static void decode_row(const void* w, int64_t, int64_t cols, int64_t row, float* out) {
    const PanelPlan plan = panel_plan<F, R>(cols);
    const uint8_t* panel =
        static_cast<const uint8_t*>(w) + static_cast<size_t>(row / R) * plan.bytes;
    for (int64_t b = 0; b < cols / Block::kElems; ++b) {
      decode(get(panel, plan, b, static_cast<int>(row % R)), out + b * Block::kElems);
    }
  }

 private:
  static uint8_t* half(uint8_t* plane, int64_t block, int r) { return plane + (block * R + r) * 2; }
  static const uint8_t* half(const uint8_t* plane, int64_t block, int r) {
    return plane + (block * R + r) * 2;
  }

  static void put(uint8_t* p, const PanelPlan& plan, int64_t b, int r, const Block& src) {
    if constexpr (F == Format::q6_k) {
      put_q6(p, plan, b, r, src);
    } else {
      constexpr int kBytes = F == Format::q8_0 ? 32 : 16;
      uint8_t* q = p + b * kBytes * R + r * I;
      for (int i = 0; i < kBytes; ++i) {
        q[i / I * (R * I) + i % I] = static_cast<uint8_t>(src.qs[i]) ^ kFlip;
      }
      std::memcpy(half(p + plan.scale, b, r), &src.d, 2);
      if constexpr (F == Format::q4_1) std::memcpy(half(p + plan.extra, b, r), &src.m, 2);
    }
  }

  static Block get(const uint8_t* p, const PanelPlan& plan, int64_t b, int r) {
    if constexpr (F == Format::q6_k) {
      return get_q6(p, plan, b, r);
    } else {
      Block block;
      constexpr int kBytes = F == Format::q8_0 ? 32 : 16;
      const uint8_t* q = p + b * kBytes * R + r * I;
      for (int i = 0; i < kBytes; ++i) {
        const uint8_t v = q[i / I * (R * I) + i % I] ^ kFlip;
        std::memcpy(&block.qs[i], &v, 1);
      }
      std::memcpy(&block.d, half(p + plan.scale, b, r), 2);
      if constexpr (F == Format::q4_1) std::memcpy(&block.m, half(p + plan.extra, b, r), 2);
      return block;
    }
  }

  // Where column k of row r of block b has its low four and its top two bits.
  struct Q6At {
    int64_t low, high;
    int low_shift, high_shift;
  };
  static Q6At q6_at(int64_t b, int r, int k) {
    const int u = k / I;
    const int64_t in_unit = r * I + k % I;
    return {b * 16 * R + k % 16 / I * (R * I) + in_unit, b * 8 * R + u / 4 * (R * I) + in_unit,
            k < 16 ? 0 : 4, u % 4 * 2};
  }

  static void put_q6(uint8_t* p, const PanelPlan& plan, int64_t super, int r, const Block& src) {
    int8_t q[256];
    unpack(src, q);
    for (int b = 0; b < 8; ++b) {
      const int64_t block = super * 8 + b;
      for (int k = 0; k < 32; ++k) {
        const int v = q[b * 32 + k] + 32;
        const Q6At at = q6_at(block, r, k);
        uint8_t& low = p[at.low];
        uint8_t& high = p[plan.high + static_cast<size_t>(at.high)];
        low = static_cast<uint8_t>((low & ~(15 << at.low_shift)) | (v & 15) << at.low_shift);
        high = static_cast<uint8_t>((high & ~(3 << at.high_shift)) | (v >> 4) << at.high_shift);
      }
      for (int s = 0; s < 2; ++s) {
        std::memcpy(p + plan.scale + (block * 2 + s) * R + r, &src.scales[b * 2 + s], 1);
      }
    }
    std::memcpy(half(p + plan.extra, super, r), &src.d, 2);
  }

  static Block get_q6(const uint8_t* p, const PanelPlan& plan, int64_t super, int r) {
    Block block;
    int8_t q[256];
    for (int b = 0; b < 8; ++b) {
      const int64_t at_block = super * 8 + b;
      for (int k = 0; k < 32; ++k) {
        const Q6At at = q6_at(at_block, r, k);
        const int low = p[at.low] >> at.low_shift & 15;
        const int high = p[plan.high + static_cast<size_t>(at.high)] >> at.high_shift & 3;
        q[b * 32 + k] = static_cast<int8_t>((low | high << 4) - 32);
      }
      for (int s = 0; s < 2; ++s) {
        std::memcpy(&block.scales[b * 2 + s], p + plan.scale + (at_block * 2 + s) * R + r, 1);
      }
    }
    sluice::pack(q, block);
    std::memcpy(&block.d, half(p + plan.extra, super, r), 2);
    return block;
  }
};

}  // namespace sluice::cpu
