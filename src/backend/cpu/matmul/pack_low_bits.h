// Packs q2_k and q3_k into the panels of low_bit_plan (pack_plan.h) and reads rows back. Portable:
// it runs at load. Two and three bits stay two and three: kernels take them apart with a shift and
// a mask per vector, and nibbles would double what one row of x waits for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "backend/cpu/matmul/matmul_table.h"
#include "backend/cpu/matmul/pack_plan.h"
#include "backend/cpu/matmul/pack_walk.h"
#include "tensor/formats/q2_k.h"
#include "tensor/formats/q3_k.h"

namespace sluice::cpu {

template <typename SourceBlock, int R, int I>
struct LowBitPacking {
  using Block = SourceBlock;
  static constexpr Format F = Block::kFormat;

  static size_t packed_bytes(int64_t rows, int64_t cols) {
    return static_cast<size_t>((rows + R - 1) / R) * low_bit_plan<F, R>(cols).bytes;
  }

  static void pack(const PackArgs& a) {
    const LowBitPlan plan = low_bit_plan<F, R>(a.cols);
    pack_blocks<Block, R>(a, plan.bytes, [&](uint8_t* panel, int64_t b, int r, const Block& block) {
      put_codes(panel, plan, b, r, block);
      put_scales(panel, plan, b, r, block);
    });
  }

  static void decode_row(const void* w, int64_t, int64_t cols, int64_t row, float* out) {
    const LowBitPlan plan = low_bit_plan<F, R>(cols);
    const uint8_t* panel =
        static_cast<const uint8_t*>(w) + static_cast<size_t>(row / R) * plan.bytes;
    const int r = static_cast<int>(row % R);
    for (int64_t b = 0; b < cols / 256; ++b) {
      Block block{};
      get_codes(panel, plan, b, r, block);
      get_scales(panel, plan, b, r, block);
      decode(block, out + b * 256);
    }
  }

 private:
  // Offsets within a panel; b counts blocks of 256. `unit` is of that block.
  static size_t code_at(int64_t b, int unit, int r) {
    return static_cast<size_t>((b * (64 / I) + unit / 4) * (R * I) + r * I);
  }
  static size_t top_at(const LowBitPlan& plan, int64_t b, int unit, int r) {
    return plan.top + static_cast<size_t>((b * (32 / I) + unit / 8) * (R * I) + r * I);
  }
  static size_t half_at(const LowBitPlan& plan, int64_t b, int r, int num, int i) {
    return plan.extra + static_cast<size_t>(((b * num + i) * R + r) * 2);
  }

  static void put_codes(uint8_t* p, const LowBitPlan& plan, int64_t b, int r, const Block& block) {
    uint8_t q[256];
    for (int part = 0; part < 8; ++part) {
      if constexpr (kThreeBits<F>) {
        int8_t quants[32];
        unpack_part(block, part, quants);
        for (int i = 0; i < 32; ++i) q[32 * part + i] = static_cast<uint8_t>(quants[i] + 4);
      } else {
        unpack_part(block, part, q + 32 * part);
      }
    }
    for (int unit = 0; unit < 256 / I; unit += 4) {
      const uint8_t* at = q + unit * I;
      uint8_t bytes[I];
      for (int i = 0; i < I; ++i) {
        bytes[i] = static_cast<uint8_t>((at[i] & 3) | (at[I + i] & 3) << 2 |
                                        (at[2 * I + i] & 3) << 4 | (at[3 * I + i] & 3) << 6);
      }
      std::memcpy(p + code_at(b, unit, r), bytes, I);
    }
    if constexpr (kThreeBits<F>) {
      for (int unit = 0; unit < 256 / I; unit += 8) {
        uint8_t bytes[I] = {};
        for (int i = 0; i < 8 * I; ++i) {
          const int bit = low_bit_top<I>(i / I);
          bytes[i % I] = static_cast<uint8_t>(bytes[i % I] | q[unit * I + i] >> 2 << bit);
        }
        std::memcpy(p + top_at(plan, b, unit, r), bytes, I);
      }
    }
  }

  static void get_codes(const uint8_t* p, const LowBitPlan& plan, int64_t b, int r, Block& block) {
    for (int k = 0; k < 256; ++k) {
      const int unit = k / I, i = k % I;
      const int low = p[code_at(b, unit, r) + static_cast<size_t>(i)] >> unit % 4 * 2 & 3;
      uint8_t& byte = block.qs[k / 128 * 32 + k % 32];
      byte = static_cast<uint8_t>(byte | low << k / 32 % 4 * 2);
      if constexpr (kThreeBits<F>) {
        const int top =
            p[top_at(plan, b, unit, r) + static_cast<size_t>(i)] >> low_bit_top<I>(unit) & 1;
        block.hmask[k % 32] = static_cast<uint8_t>(block.hmask[k % 32] | top << k / 32);
      }
    }
  }

  static void put_scales(uint8_t* p, const LowBitPlan& plan, int64_t b, int r, const Block& src) {
    if constexpr (kThreeBits<F>) {
      for (int i = 0; i < 8; i += 2) {  // blocks of 32, scales 2 i to 2 i + 3
        int s[4];
        for (int j = 0; j < 4; ++j) s[j] = group_scale(src, 2 * i + j) + 32;
        uint8_t* low = p + plan.scale + (b * 8 + i) * R + r;
        low[0] = static_cast<uint8_t>((s[0] & 15) | (s[1] & 15) << 4);
        low[R] = static_cast<uint8_t>((s[2] & 15) | (s[3] & 15) << 4);
        p[plan.tops + static_cast<size_t>((b * 4 + i / 2) * R + r)] =
            static_cast<uint8_t>(s[0] >> 4 | s[1] >> 4 << 2 | s[2] >> 4 << 4 | s[3] >> 4 << 6);
      }
      std::memcpy(p + half_at(plan, b, r, 1, 0), &src.d, 2);
    } else {
      for (int i = 0; i < 8; ++i) {
        std::memcpy(p + plan.scale + ((b * 8 + i) * R + r) * 2, src.scales + 2 * i, 2);
      }
      std::memcpy(p + half_at(plan, b, r, 2, 0), &src.d, 2);
      std::memcpy(p + half_at(plan, b, r, 2, 1), &src.dmin, 2);
    }
  }

  static void get_scales(const uint8_t* p, const LowBitPlan& plan, int64_t b, int r, Block& dst) {
    if constexpr (kThreeBits<F>) {
      for (int g = 0; g < 16; ++g) {
        const int i = g / 2;  // block of 32
        const int low = p[plan.scale + static_cast<size_t>((b * 8 + i) * R + r)] >> g % 2 * 4 & 15;
        const int top =
            p[plan.tops + static_cast<size_t>((b * 4 + i / 2) * R + r)] >> g % 4 * 2 & 3;
        dst.scales[g % 8] = static_cast<uint8_t>(dst.scales[g % 8] | low << g / 8 * 4);
        dst.scales[8 + g % 4] = static_cast<uint8_t>(dst.scales[8 + g % 4] | top << g / 4 * 2);
      }
      std::memcpy(&dst.d, p + half_at(plan, b, r, 1, 0), 2);
    } else {
      for (int i = 0; i < 8; ++i) {
        std::memcpy(dst.scales + 2 * i, p + plan.scale + ((b * 8 + i) * R + r) * 2, 2);
      }
      std::memcpy(&dst.d, p + half_at(plan, b, r, 2, 0), 2);
      std::memcpy(&dst.dmin, p + half_at(plan, b, r, 2, 1), 2);
    }
  }
};

}  // namespace sluice::cpu
