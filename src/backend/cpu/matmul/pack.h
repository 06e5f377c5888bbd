// Packs weights into the panels of pack_plan.h and reads rows back. Portable: it runs at load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backend/cpu/matmul/matmul_table.h"
#include "backend/cpu/matmul/pack_plan.h"
#include "backend/cpu/matmul/pack_walk.h"
#include "tensor/formats/f16.h"
#include "tensor/formats/int4.h"
#include "tensor/formats/iq4_nl.h"
#include "tensor/formats/mxfp4.h"
#include "tensor/formats/q4_0.h"
#include "tensor/formats/q4_1.h"
#include "tensor/formats/q4_k.h"
#include "tensor/formats/q5_0.h"
#include "tensor/formats/q5_1.h"
#include "tensor/formats/q5_k.h"
#include "tensor/formats/q6_k.h"
#include "tensor/formats/q8_0.h"
#include "tensor/tensor.h"

namespace sluice::cpu {

// The codes of a source block, in element order.
template <typename Block>
inline void codes_of(const Block& b, uint8_t* q) {  // nibbles
  for (int i = 0; i < 16; ++i) {
    q[i] = b.qs[i] & 15;
    q[i + 16] = b.qs[i] >> 4;
  }
}
template <typename Block>
inline void put_codes(const uint8_t* q, Block& b) {
  for (int i = 0; i < 16; ++i) b.qs[i] = static_cast<uint8_t>(q[i] | q[i + 16] << 4);
}
inline void codes_of(const BlockQ8_0& b, uint8_t* q) { std::memcpy(q, b.qs, 32); }
inline void put_codes(const uint8_t* q, BlockQ8_0& b) { std::memcpy(b.qs, q, 32); }
inline void codes_of(const BlockQ5_0& b, uint8_t* q) { unpack_5_bits(b.qs, b.qh, q); }
inline void put_codes(const uint8_t* q, BlockQ5_0& b) { pack_5_bits(q, b.qs, b.qh); }
inline void codes_of(const BlockQ5_1& b, uint8_t* q) { unpack_5_bits(b.qs, b.qh, q); }
inline void put_codes(const uint8_t* q, BlockQ5_1& b) { pack_5_bits(q, b.qs, b.qh); }
inline void codes_of(const BlockQ4K& b, uint8_t* q) {
  for (int g = 0; g < 8; ++g) unpack_group(b, g, q + 32 * g);
}
inline void put_codes(const uint8_t* q, BlockQ4K& b) { pack(q, b); }
inline void codes_of(const BlockQ5K& b, uint8_t* q) {
  for (int g = 0; g < 8; ++g) unpack_group(b, g, q + 32 * g);
}
inline void put_codes(const uint8_t* q, BlockQ5K& b) { pack(q, b); }
inline void codes_of(const BlockQ6K& b, uint8_t* q) {
  int8_t quants[256];
  unpack(b, quants);
  for (int i = 0; i < 256; ++i) q[i] = static_cast<uint8_t>(quants[i] + 32);
}
inline void put_codes(const uint8_t* q, BlockQ6K& b) {
  int8_t quants[256];
  for (int i = 0; i < 256; ++i) quants[i] = static_cast<int8_t>(q[i] - 32);
  pack(quants, b);
}

// kOffset: bytes of q8_0 are stored plus 128, for instructions that want an unsigned operand.
template <typename SourceBlock, int R, int I, bool kOffset = false>
struct Packing {
  using Block = SourceBlock;
  static constexpr Format F = Block::kFormat;
  static constexpr uint8_t kFlip = kOffset ? 0x80 : 0;
  static constexpr int kParts = Block::kElems / 32;

  static size_t packed_bytes(int64_t rows, int64_t cols) {
    return static_cast<size_t>((rows + R - 1) / R) * panel_plan<F, R>(cols).bytes;
  }

  static void pack(const PackArgs& a) {
    const PanelPlan plan = panel_plan<F, R>(a.cols);
    pack_blocks<Block, R>(a, plan.bytes, [&](uint8_t* panel, int64_t b, int r, const Block& block) {
      put_codes_of(panel, plan, b, r, block);
      put_scales(panel, plan, b, r, block);
    });
  }

  static void decode_row(const void* w, int64_t, int64_t cols, int64_t row, float* out) {
    const PanelPlan plan = panel_plan<F, R>(cols);
    const uint8_t* panel =
        static_cast<const uint8_t*>(w) + static_cast<size_t>(row / R) * plan.bytes;
    const int r = static_cast<int>(row % R);
    for (int64_t b = 0; b < cols / Block::kElems; ++b) {
      Block block;
      uint8_t q[Block::kElems];
      for (int part = 0; part < kParts; ++part) {
        get_part(panel, plan, b * kParts + part, r, q + 32 * part);
      }
      put_codes(q, block);
      get_scales(panel, plan, b, r, block);
      decode(block, out + b * Block::kElems);
    }
  }

 private:
  static constexpr int kUnits = 32 / I;

  // Bytes of f16 planes [block][num][R].
  static size_t half(int64_t block, int r, int num = 1, int i = 0) {
    return static_cast<size_t>(((block * num + i) * R + r) * 2);
  }

  // Where the top bits of unit u of row r are.
  struct HighAt {
    size_t byte;  // of the unit's first column
    int shift;
  };
  static HighAt high_at(const PanelPlan& plan, int64_t b, int r, int u) {
    const int64_t bit = (b * kUnits + u) * kHighBits<F>;
    return {plan.high + static_cast<size_t>(bit / 8 * (R * I) + r * I), static_cast<int>(bit % 8)};
  }

  // The codes of source block b of row r. Whole units are copied: loading a model waits for this.
  static void put_codes_of(
      uint8_t* p, const PanelPlan& plan, int64_t b, int r, const Block& block) {
    constexpr bool kNibbles = kParts == 1 && F != Format::q8_0;  // qs is a panel's own order
    if constexpr (kNibbles) put_low(p, b, r, block.qs);
    if constexpr (kNibbles && kHighBits<F> == 0) return;
    uint8_t q[Block::kElems];
    codes_of(block, q);
    for (int part = 0; part < kParts; ++part) {
      const int64_t at = b * kParts + part;
      if constexpr (!kNibbles) {
        uint8_t low[kLowBytes<F>];
        for (int i = 0; i < kLowBytes<F>; ++i) {
          const uint8_t* code = q + 32 * part + i;
          if constexpr (F == Format::q8_0) {
            low[i] = code[0] ^ kFlip;
          } else {
            low[i] = static_cast<uint8_t>((code[0] & 15) | code[16] << 4);
          }
        }
        put_low(p, at, r, low);
      }
      if constexpr (kHighBits < F >> 0) put_high(p, plan, at, r, q + 32 * part);
    }
  }

  static void put_low(uint8_t* p, int64_t b, int r, const uint8_t* low) {
    uint8_t* dst = p + b * kLowBytes<F> * R + r * I;
    for (int u = 0; u < kLowBytes<F> / I; ++u) std::memcpy(dst + u * (R * I), low + u * I, I);
  }

  static void put_high(uint8_t* p, const PanelPlan& plan, int64_t b, int r, const uint8_t* q) {
    constexpr int kBits = kUnits * kHighBits<F>;  // of a block in a byte column
    uint8_t high[(kBits + 7) / 8][I] = {};
    for (int u = 0; u < kUnits; ++u) {
      const int bit = u * kHighBits<F>;
      for (int i = 0; i < I; ++i) {
        uint8_t& at = high[bit / 8][i];
        at = static_cast<uint8_t>(at | q[u * I + i] >> 4 << bit % 8);
      }
    }
    const HighAt at = high_at(plan, b, r, 0);
    uint8_t* dst = p + at.byte;
    if constexpr (kBits < 8) {  // shared with a neighbour
      for (int i = 0; i < I; ++i) {
        const int kept = dst[i] & ~(((1 << kBits) - 1) << at.shift);
        dst[i] = static_cast<uint8_t>(kept | high[0][i] << at.shift);
      }
    } else {
      for (int j = 0; j < kBits / 8; ++j) std::memcpy(dst + j * (R * I), high[j], I);
    }
  }

  static void get_part(const uint8_t* p, const PanelPlan& plan, int64_t b, int r, uint8_t* q) {
    const uint8_t* low = p + b * kLowBytes<F> * R + r * I;
    for (int i = 0; i < kLowBytes<F>; ++i) {
      const uint8_t v = low[i / I * (R * I) + i % I];
      if constexpr (F == Format::q8_0) {
        q[i] = v ^ kFlip;
      } else {
        q[i] = v & 15;
        q[i + 16] = v >> 4;
      }
    }
    if constexpr (kHighBits < F >> 0) {
      constexpr int kMask = (1 << kHighBits<F>)-1;
      for (int k = 0; k < 32; ++k) {
        const HighAt at = high_at(plan, b, r, k / I);
        const int high = p[at.byte + static_cast<size_t>(k % I)] >> at.shift & kMask;
        q[k] = static_cast<uint8_t>(q[k] | high << 4);
      }
    }
  }

  // b counts source blocks.
  static void put_scales(uint8_t* p, const PanelPlan& plan, int64_t b, int r, const Block& src) {
    if constexpr (kSuperScales<F>) {
      for (int i = 0; i < 8; i += 2) {
        const ScaleMin s0 = get_scale_min(src.scales, i), s1 = get_scale_min(src.scales, i + 1);
        uint8_t* low = p + plan.scale + (b * 8 + i) * R + r;
        low[0] = static_cast<uint8_t>((s0.scale & 15) | (s0.min & 15) << 4);
        low[R] = static_cast<uint8_t>((s1.scale & 15) | (s1.min & 15) << 4);
        p[plan.tops + static_cast<size_t>((b * 4 + i / 2) * R + r)] = static_cast<uint8_t>(
            s0.scale >> 4 | s0.min >> 4 << 2 | s1.scale >> 4 << 4 | s1.min >> 4 << 6);
      }
      std::memcpy(p + plan.extra + half(b, r, 2, 0), &src.d, 2);
      std::memcpy(p + plan.extra + half(b, r, 2, 1), &src.dmin, 2);
    } else if constexpr (F == Format::q6_k) {
      for (int s = 0; s < 16; ++s) {
        std::memcpy(p + plan.scale + (b * 16 + s) * R + r, &src.scales[s], 1);
      }
      std::memcpy(p + plan.extra + half(b, r), &src.d, 2);
    } else if constexpr (F == Format::mxfp4) {
      const uint16_t scale = mxfp4_scale_bits(src.e);
      std::memcpy(p + plan.scale + half(b, r), &scale, 2);
    } else {
      std::memcpy(p + plan.scale + half(b, r), &src.d, 2);
      if constexpr (kHasMin<F>) std::memcpy(p + plan.extra + half(b, r), &src.m, 2);
    }
  }

  static void get_scales(const uint8_t* p, const PanelPlan& plan, int64_t b, int r, Block& dst) {
    if constexpr (kSuperScales<F>) {
      ScaleMin s[8];
      for (int i = 0; i < 8; ++i) {
        const int low = p[plan.scale + static_cast<size_t>((b * 8 + i) * R + r)];
        const int top = p[plan.tops + static_cast<size_t>((b * 4 + i / 2) * R + r)] >> i % 2 * 4;
        s[i] = {(low & 15) | (top & 3) << 4, low >> 4 | (top >> 2 & 3) << 4};
      }
      put_scale_mins(s, dst.scales);
      std::memcpy(&dst.d, p + plan.extra + half(b, r, 2, 0), 2);
      std::memcpy(&dst.dmin, p + plan.extra + half(b, r, 2, 1), 2);
    } else if constexpr (F == Format::q6_k) {
      for (int s = 0; s < 16; ++s) {
        std::memcpy(&dst.scales[s], p + plan.scale + (b * 16 + s) * R + r, 1);
      }
      std::memcpy(&dst.d, p + plan.extra + half(b, r), 2);
    } else if constexpr (F == Format::mxfp4) {
      uint16_t scale = 0;
      std::memcpy(&scale, p + plan.scale + half(b, r), 2);
      dst.e = mxfp4_exponent(scale);
    } else {
      std::memcpy(&dst.d, p + plan.scale + half(b, r), 2);
      if constexpr (kHasMin<F>) std::memcpy(&dst.m, p + plan.extra + half(b, r), 2);
    }
  }
};

}  // namespace sluice::cpu
