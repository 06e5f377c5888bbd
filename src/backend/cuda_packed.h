// How a GPU keeps weights of quantised formats: about as many bytes as in the file, in the order in
// which its matrix instructions take them. Plain functions that host and device share; any thread.
//
// A weight is cut into tiles of 16 rows by 64 columns, rows of tiles one after another; beyond its
// last row and column a tile is zero. Lane `l` of a warp holds rows l / 4 and l / 4 + 8 of a tile,
// and of each 16 columns the four from 4 (l % 4) on. That is what m16n8k16 takes as its first
// operand if its columns are counted in another order: register i has row l / 4 + 8 (i % 2) and the
// two columns from 2 (i / 2) on.
//
// Four planes follow each other, each [row of tiles][tile]:
//   codes   [lane] 16 bytes: word j, of columns 16 j to 16 j + 15, has the low four bits of element
//           e of register i from bit 4 i + 16 e on. Of Q8_0 [2][lane] 16 bytes: two words for each
//           j, byte 2 (i % 2) + e of word i / 2 a code plus 128
//   high    further bits of a code. Q6_K [lane] 8 bytes: word j / 2, from bit
//           2 (4 (j % 2) + i) + 16 e on; Q5_K [lane] 4 bytes: bit 4 j + i + 16 e
//   scales  [l / 4] 8 bytes, half of them each row's: a half for each 32 columns; Q4_K and Q5_K a
//           scale and a minimum in a byte each; Q6_K a byte for each 16 columns. Q4_1 [l / 4]
//           16 bytes: 8 of scales, 8 of minimums
//   supers  K formats, once for four tiles, [l / 4]: each row's d, of Q4_K and Q5_K also its dmin
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "backend/split_rows.h"
#include "tensor/formats/f16.h"
#include "tensor/formats/iq4_levels.h"
#include "tensor/formats/iq4_nl.h"
#include "tensor/formats/q4_0.h"
#include "tensor/formats/q4_1.h"
#include "tensor/formats/q4_k.h"
#include "tensor/formats/q5_k.h"
#include "tensor/formats/q6_k.h"
#include "tensor/formats/q8_0.h"
#include "tensor/tensor.h"

namespace sluice {

inline constexpr int kPackedRows = 16, kPackedCols = 64;  // of a tile
inline constexpr int kPackedLanes = 32;

// Sizes in bytes, of a tile; supers of four.
struct PackedFormat {
  int codes = 0, high = 0, scales = 0, supers = 0;
  int group = 32;        // columns under one scale
  int zero = 0;          // value = scale * (code - zero) - minimum
  bool has_min = false;  // IQ4_NL: code is an index of levels
};

constexpr PackedFormat packed_format(Format f) {
  switch (f) {
    case Format::q8_0:
      return {1024, 0, 64, 0, 32, 128};
    case Format::q4_0:
      return {512, 0, 64, 0, 32, 8};
    case Format::iq4_nl:
      return {512, 0, 64, 0, 32, 0};
    case Format::q4_1:
      return {512, 0, 128, 0, 32, 0, true};
    case Format::q4_k:
      return {512, 0, 64, 64, 32, 0, true};
    case Format::q5_k:
      return {512, 128, 64, 64, 32, 0, true};
    case Format::q6_k:
      return {512, 256, 64, 32, 16, 32};
    default:
      return {};
  }
}
// Whether a GPU can keep the format as it is stored.
constexpr bool is_packed(Format f) { return packed_format(f).codes > 0; }

struct PackedShape {
  constexpr PackedShape(Format f, int64_t num_rows, int64_t num_cols)
      : format(packed_format(f)),
        rows(num_rows),
        cols(num_cols),
        row_tiles((num_rows + kPackedRows - 1) / kPackedRows),
        tiles((num_cols + kPackedCols - 1) / kPackedCols) {}
  // Where each plane begins, and the end of the last.
  constexpr int64_t high_at() const { return row_tiles * tiles * format.codes; }
  constexpr int64_t scales_at() const { return high_at() + row_tiles * tiles * format.high; }
  constexpr int64_t supers_at() const { return scales_at() + row_tiles * tiles * format.scales; }
  constexpr size_t bytes() const {
    return static_cast<size_t>(supers_at() + row_tiles * ((tiles + 3) / 4) * format.supers);
  }

  PackedFormat format;
  int64_t rows, cols, row_tiles, tiles;
};

// The code of an element of a block, without a sign.
constexpr uint32_t packed_code(const BlockQ8_0& b, int i) {
  return static_cast<uint32_t>(b.qs[i] + 128);
}
template <typename Block>
constexpr uint32_t nibble_of_32(const Block& b, int i) {
  return static_cast<uint32_t>(i < 16 ? b.qs[i] & 15 : b.qs[i - 16] >> 4);
}
constexpr uint32_t packed_code(const BlockQ4_0& b, int i) { return nibble_of_32(b, i); }
constexpr uint32_t packed_code(const BlockQ4_1& b, int i) { return nibble_of_32(b, i); }
constexpr uint32_t packed_code(const BlockIQ4NL& b, int i) { return nibble_of_32(b, i); }
template <typename Block>
constexpr uint32_t nibble_of_256(const Block& b, int i) {
  return static_cast<uint32_t>(b.qs[i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15);
}
constexpr uint32_t packed_code(const BlockQ4K& b, int i) { return nibble_of_256(b, i); }
constexpr uint32_t packed_code(const BlockQ5K& b, int i) {
  return nibble_of_256(b, i) | static_cast<uint32_t>(b.qh[i % 32] >> i / 32 & 1) << 4;
}
constexpr uint32_t packed_code(const BlockQ6K& b, int i) {
  const int quarter = i % 128 / 32, at = i / 128 * 64 + i % 32 + quarter % 2 * 32;
  const int high = b.qh[i / 128 * 32 + i % 32] >> 2 * quarter & 3;
  return static_cast<uint32_t>((b.ql[at] >> quarter / 2 * 4 & 15) | high << 4);
}

// A lane's share of a tile, and what lanes 4 g to 4 g + 3 share of its scales.
struct PackedLane {
  uint32_t codes[8] = {};
  uint32_t high[2] = {};
};
struct PackedScales {
  uint8_t scales[16] = {};
  uint8_t supers[8] = {};
};

constexpr void put_half(uint8_t* to, uint16_t half) {
  to[0] = static_cast<uint8_t>(half & 255);
  to[1] = static_cast<uint8_t>(half >> 8);
}
constexpr uint16_t get_half(const uint8_t* from) {
  return static_cast<uint16_t>(from[0] | from[1] << 8);
}

// The blocks of a matrix in its file's order.
template <typename Block>
struct PackedSource {
  const Block* blocks = nullptr;
  int64_t rows = 0, cols = 0;

  constexpr const Block* at(int64_t row, int64_t col) const {
    if (row >= rows || col >= cols) return nullptr;
    return blocks + (row * cols + col) / Block::kElems;
  }
};

template <typename Block>
constexpr PackedLane pack_lane(const PackedSource<Block>& from,
                               int64_t row_tile,
                               int64_t tile,
                               int lane) {
  constexpr PackedFormat f = packed_format(Block::kFormat);
  PackedLane p;
  for (int n = 0; n < 32; ++n) {
    const int j = n / 8, i = n / 2 % 4, e = n % 2;
    const int64_t row = row_tile * kPackedRows + lane / 4 + i % 2 * 8;
    const int64_t col = tile * kPackedCols + 16 * j + lane % 4 * 4 + i / 2 * 2 + e;
    const Block* b = from.at(row, col);
    if (!b) continue;
    const uint32_t code = packed_code(*b, static_cast<int>(col % Block::kElems));
    if (f.codes == 1024) {
      p.codes[2 * j + i / 2] |= code << (i % 2 * 16 + e * 8);
    } else {
      p.codes[j] |= (code & 15) << (4 * i + 16 * e);
    }
    if (f.high == 256) p.high[j / 2] |= code >> 4 << (j % 2 * 8 + 2 * i + 16 * e);
    if (f.high == 128) p.high[0] |= code >> 4 << (4 * j + i + 16 * e);
  }
  return p;
}

template <typename Block>
constexpr PackedScales pack_scales(const PackedSource<Block>& from,
                                   int64_t row_tile,
                                   int64_t tile,
                                   int group) {
  PackedScales p;
  for (int upper = 0; upper < 2; ++upper) {
    const int64_t row = row_tile * kPackedRows + group + upper * 8;
    for (int unit = 0; unit < 2; ++unit) {
      const int64_t col = tile * kPackedCols + unit * 32;
      const Block* b = from.at(row, col);
      if (!b) continue;
      uint8_t* to = p.scales + 4 * upper + 2 * unit;
      if constexpr (Block::kFormat == Format::q6_k) {
        for (int k = 0; k < 2; ++k) to[k] = static_cast<uint8_t>(b->scales[col % 256 / 16 + k]);
        put_half(p.supers + 2 * upper, b->d);
      } else if constexpr (Block::kElems == 256) {
        const ScaleMin s = get_scale_min(b->scales, static_cast<int>(col % 256 / 32));
        to[0] = static_cast<uint8_t>(s.scale), to[1] = static_cast<uint8_t>(s.min);
        put_half(p.supers + 4 * upper, b->d);
        put_half(p.supers + 4 * upper + 2, b->dmin);
      } else {
        put_half(to, b->d);
        if constexpr (Block::kFormat == Format::q4_1) put_half(to + 8, b->m);
      }
    }
  }
  return p;
}

// Whether to write a tile's supers: the four tiles of a block hold the same.
constexpr bool writes_supers(int64_t tile) { return tile % 4 == 0; }

// One lane's share of packing a tile into `to`, the weight's memory.
template <typename Block>
constexpr void pack_tile(uint8_t* to,
                         const PackedShape& shape,
                         const PackedSource<Block>& from,
                         int64_t row_tile,
                         int64_t from_row_tile,
                         int64_t tile,
                         int lane) {
  const PackedFormat& f = shape.format;
  const int64_t at = row_tile * shape.tiles + tile;
  const PackedLane p = pack_lane(from, from_row_tile, tile, lane);
  const auto put_words = [](uint8_t* out, const uint32_t* words, int num) {
    for (int i = 0; i < num; ++i)
      for (int k = 0; k < 4; ++k) out[4 * i + k] = static_cast<uint8_t>(words[i] >> 8 * k);
  };
  for (int half = 0; half < f.codes / 512; ++half)
    put_words(to + at * f.codes + half * 512 + lane * 16, p.codes + 4 * half, 4);
  put_words(to + shape.high_at() + at * f.high + lane * (f.high / 32), p.high, f.high / 128);
  if (lane % 4 != 0) return;
  const int group = lane / 4, scales = f.scales / 8, supers = f.supers / 8;
  const PackedScales s = pack_scales(from, from_row_tile, tile, group);
  uint8_t* out = to + shape.scales_at() + at * f.scales + group * scales;
  for (int i = 0; i < scales; ++i) out[i] = s.scales[i];
  if (f.supers == 0 || !writes_supers(tile)) return;
  out = to + shape.supers_at() + (row_tile * ((shape.tiles + 3) / 4) + tile / 4) * f.supers +
        group * supers;
  for (int i = 0; i < supers; ++i) out[i] = s.supers[i];
}

// The value of one element, as the format's decode() gives it.
template <Format F>
constexpr float packed_value(const uint8_t* from, const PackedShape& shape, int64_t r, int64_t c) {
  constexpr PackedFormat f = packed_format(F);
  const int64_t row_tile = r / kPackedRows, tile = c / kPackedCols;
  const int64_t at = row_tile * shape.tiles + tile;
  const int upper = static_cast<int>(r % 16 / 8), group = static_cast<int>(r % 8);
  const int col = static_cast<int>(c % 64), j = col / 16, lane = group * 4 + col % 16 / 4;
  const int i = col % 4 / 2 * 2 + upper, e = col % 2;
  const uint8_t* codes = from + at * f.codes + lane * 16;
  int code = 0;
  if constexpr (f.codes == 1024) {
    code = codes[j / 2 * 512 + (2 * (j % 2) + i / 2) * 4 + i % 2 * 2 + e];
  } else {
    code = codes[4 * j + 2 * e + i / 2] >> i % 2 * 4 & 15;
  }
  const uint8_t* high = from + shape.high_at() + at * f.high + lane * (f.high / 32);
  if constexpr (f.high == 256) {
    const int bit = j % 2 * 8 + 2 * i + 16 * e;
    code |= (high[j / 2 * 4 + bit / 8] >> bit % 8 & 3) << 4;
  } else if constexpr (f.high == 128) {
    const int bit = 4 * j + i + 16 * e;
    code |= (high[bit / 8] >> bit % 8 & 1) << 4;
  }
  const uint8_t* scales =
      from + shape.scales_at() + at * f.scales + group * (f.scales / 8) + 4 * upper + col / 32 * 2;
  const uint8_t* supers = from + shape.supers_at() +
                          (row_tile * ((shape.tiles + 3) / 4) + tile / 4) * f.supers +
                          group * (f.supers / 8) + upper * (f.supers / 16);
  if constexpr (F == Format::q6_k) {
    const auto scale = static_cast<int8_t>(scales[col % 32 / 16]);
    return f16_to_f32(get_half(supers)) * static_cast<float>(scale) *
           static_cast<float>(code - f.zero);
  } else if constexpr (f.supers > 0) {
    const float scale = f16_to_f32(get_half(supers)) * static_cast<float>(scales[0]);
    const float min = f16_to_f32(get_half(supers + 2)) * static_cast<float>(scales[1]);
    return scale * static_cast<float>(code) - min;
  } else {
    const float d = f16_to_f32(get_half(scales));
    if constexpr (F == Format::q4_1)
      return d * static_cast<float>(code) + f16_to_f32(get_half(scales + 8));
    if constexpr (F == Format::iq4_nl) {
      constexpr auto kLevels = std::to_array(kIq4Levels);
      return d * static_cast<float>(kLevels[static_cast<size_t>(code)]);
    }
    return d * static_cast<float>(code - f.zero);
  }
}

// Calls f with a block of the format, which must be packed.
template <typename F>
void with_packed_block(Format format, F&& f) {
  switch (format) {
    case Format::q8_0:
      return f(BlockQ8_0{});
    case Format::q4_0:
      return f(BlockQ4_0{});
    case Format::q4_1:
      return f(BlockQ4_1{});
    case Format::iq4_nl:
      return f(BlockIQ4NL{});
    case Format::q4_k:
      return f(BlockQ4K{});
    case Format::q5_k:
      return f(BlockQ5K{});
    case Format::q6_k:
      return f(BlockQ6K{});
    default:
      return;
  }
}

}  // namespace sluice
