#include "load/hf_codes.h"

#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/formats/f16.h"
#include "tensor/formats/int4.h"
#include "tensor/formats/mxfp4.h"
#include "tensor/formats/q8_0.h"

namespace sluice {
namespace {

uint32_t code_word(std::span<const std::byte> words, int64_t index) {
  uint32_t w = 0;
  std::memcpy(&w, words.data() + index * 4, 4);
  return w;
}

// Which code of a word is row r of eight.
constexpr int kAwqPlace[8] = {0, 4, 1, 5, 2, 6, 3, 7};

int code_of(uint32_t word, int64_t index, int bits) {
  return static_cast<int>(word >> bits * static_cast<int>(index) & ((1u << bits) - 1));
}

float load_scale(const CodeSource& s, int64_t index) {
  if (s.scale_type == SafetensorsType::f32) {
    float v = 0;
    std::memcpy(&v, s.scales.data() + index * 4, 4);
    return v;
  }
  uint16_t half = 0;
  std::memcpy(&half, s.scales.data() + index * 2, 2);
  return s.scale_type == SafetensorsType::f16 ? f16_to_f32(half) : bf16_to_f32(half);
}

int64_t scale_index(const CodeSource& s, int64_t group, int64_t row) {
  return group * s.group_step + row / s.scale_rows * s.row_step;
}

int zero_at(const CodeSource& s, int64_t group, int64_t row) {
  const int64_t per_word = 32 / s.bits;
  const int middle = 1 << (s.bits - 1);
  switch (s.zero_layout) {
    case ZeroLayout::middle:
      return middle;
    case ZeroLayout::gptq: {
      const uint32_t w = code_word(s.zeros, group * (s.rows / per_word) + row / per_word);
      return code_of(w, row % per_word, s.bits) + s.zero_offset;
    }
    case ZeroLayout::awq:
      return code_of(code_word(s.zeros, group * (s.rows / 8) + row / 8), kAwqPlace[row % 8], 4);
    case ZeroLayout::packed: {
      const uint32_t w = code_word(s.zeros, row / per_word * s.num_groups() + group);
      return code_of(w, row % per_word, s.bits);
    }
    case ZeroLayout::bytes:
      return static_cast<int8_t>(s.zeros[static_cast<size_t>(scale_index(s, group, row))]) + middle;
  }
  return middle;
}

// n = 32 / kBits columns to a word, from columns [col, col + num) of eight rows.
template <int kBits>
void read_words(const CodeSource& s, int64_t row, int64_t col, int num, uint8_t (&q)[8][32]) {
  constexpr int n = 32 / kBits;
  const bool gptq = s.layout == CodeLayout::gptq;
  const int64_t row_words = gptq ? 1 : s.cols / n;
  const int64_t col_words = gptq ? s.rows : 1;
  for (int i = 0; i < num; i += n) {
    for (int r = 0; r < 8; ++r) {
      const uint32_t w = code_word(s.codes, (row + r) * row_words + (col + i) / n * col_words);
      for (int k = 0; k < n; ++k) q[r][i + k] = static_cast<uint8_t>(code_of(w, k, kBits));
    }
  }
}

// Codes of rows [row, row + 8) and columns [col, col + num), num <= 32 and a multiple of 8.
void read_codes(const CodeSource& s, int64_t row, int64_t col, int num, uint8_t (&q)[8][32]) {
  switch (s.layout) {
    case CodeLayout::gptq:
    case CodeLayout::packed:
      return s.bits == 4 ? read_words<4>(s, row, col, num, q) : read_words<8>(s, row, col, num, q);
    case CodeLayout::awq:
      for (int i = 0; i < num; ++i) {
        const uint32_t w = code_word(s.codes, (col + i) * (s.rows / 8) + row / 8);
        for (int r = 0; r < 8; ++r) q[r][i] = static_cast<uint8_t>(code_of(w, kAwqPlace[r], 4));
      }
      return;
    case CodeLayout::mxfp4:
      for (int r = 0; r < 8; ++r) {
        const std::byte* bytes = s.codes.data() + ((row + r) * s.cols + col) / 2;
        for (int i = 0; i < num; ++i) {
          q[r][i] = std::to_integer<uint8_t>(bytes[i / 2] >> 4 * (i % 2)) & 15;
        }
      }
      return;
    case CodeLayout::bytes:
    case CodeLayout::e4m3:
      for (int r = 0; r < 8; ++r) {
        std::memcpy(q[r], s.codes.data() + (row + r) * s.cols + col, static_cast<size_t>(num));
        if (s.layout == CodeLayout::e4m3) continue;
        for (int i = 0; i < num; ++i) q[r][i] ^= 0x80;
      }
  }
}

// Four bits of exponent with a bias of 7, three of fraction, no infinities.
std::array<float, 256> e4m3_values() {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15;
    const int fraction = code & 7;
    float v = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                            : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
    if (exponent == 15 && fraction == 7) v = NAN;
    values[static_cast<size_t>(code)] = code & 0x80 ? -v : v;
  }
  return values;
}

// As halves the scales lose no more than rounding does, and no product with a code is infinite.
bool scales_fit_halves(const CodeSource& s) {
  const auto num = static_cast<int64_t>(s.scales.size() / type_bytes(s.scale_type));
  for (int64_t i = 0; i < num; ++i) {
    const float v = std::fabs(load_scale(s, i));
    const bool normal = v >= 0x1p-14f && v <= 128;
    if (!normal && f16_to_f32(f32_to_f16(v)) != v) return false;
    if (!(v <= 128)) return false;
  }
  return true;
}

bool all_zeros_in_the_middle(const CodeSource& s) {
  if (s.zero_layout == ZeroLayout::middle) return true;
  for (int64_t g = 0; g < s.num_groups(); ++g) {
    for (int64_t r = 0; r < s.rows; ++r) {
      if (zero_at(s, g, r) != 1 << (s.bits - 1)) return false;
    }
  }
  return true;
}

// Calls put(row, block, codes, half scales, zeros, the last three of eight rows) for every block of
// 32 columns.
template <typename Put>
void each_block(const CodeSource& s, int64_t begin, int64_t end, const Put& put) {
  CHECK(begin % 8 == 0 && end % 8 == 0 && s.cols % 32 == 0);
  uint16_t scale[8] = {};
  int zero[8] = {};
  for (int64_t row = begin; row < end; row += 8) {
    for (int64_t col = 0; col < s.cols; col += 32) {
      for (int r = 0; r < 8 && col % s.group == 0; ++r) {
        const int64_t group = col / s.group;
        scale[r] = f32_to_f16(load_scale(s, scale_index(s, group, row + r)));
        zero[r] = zero_at(s, group, row + r);
      }
      uint8_t q[8][32];
      read_codes(s, row, col, 32, q);
      for (int r = 0; r < 8; ++r) put(row + r, col / 32, q[r], scale[r], zero[r]);
    }
  }
}

void repack_int4(const CodeSource& s,
                 int64_t begin,
                 int64_t end,
                 std::span<const int64_t> place,
                 BlockInt4* out) {
  const int64_t blocks = s.cols / 32;
  each_block(s, begin, end,
             [&](int64_t row, int64_t b, const uint8_t* q, uint16_t scale, int zero) {
               BlockInt4& block = out[place[static_cast<size_t>(row)] * blocks + b];
               block.d = scale;
               block.m = f32_to_f16(static_cast<float>(-zero));
               for (int i = 0; i < 16; ++i)
                 block.qs[i] = static_cast<uint8_t>(q[i] | q[i + 16] << 4);
             });
}

void repack_q8_0(const CodeSource& s,
                 int64_t begin,
                 int64_t end,
                 std::span<const int64_t> place,
                 BlockQ8_0* out) {
  const int64_t blocks = s.cols / 32;
  each_block(s, begin, end, [&](int64_t row, int64_t b, const uint8_t* q, uint16_t scale, int) {
    BlockQ8_0& block = out[place[static_cast<size_t>(row)] * blocks + b];
    block.d = scale;
    for (int i = 0; i < 32; ++i) block.qs[i] = static_cast<int8_t>(q[i] - 128);
  });
}

void repack_mxfp4(const CodeSource& s,
                  int64_t begin,
                  int64_t end,
                  std::span<const int64_t> place,
                  BlockMXFP4* out) {
  const int64_t blocks = s.cols / 32;
  for (int64_t row = begin; row < end; row += 8) {
    for (int64_t b = 0; b < blocks; ++b) {
      uint8_t q[8][32];
      read_codes(s, row, b * 32, 32, q);
      for (int r = 0; r < 8; ++r) {
        BlockMXFP4& block = out[place[static_cast<size_t>(row + r)] * blocks + b];
        block.e = std::to_integer<uint8_t>(s.scales[static_cast<size_t>((row + r) * blocks + b)]);
        for (int i = 0; i < 16; ++i) {
          block.qs[i] = static_cast<uint8_t>(q[r][i] | q[r][i + 16] << 4);
        }
      }
    }
  }
}

template <uint16_t (*round)(float)>
void decode_codes(const CodeSource& s,
                  int64_t begin,
                  int64_t end,
                  std::span<const int64_t> place,
                  uint16_t* out) {
  CHECK(begin % 8 == 0 && end % 8 == 0);
  struct Group {
    float scale[8];
    int zero[8];
  };
  const bool floats = s.layout == CodeLayout::e4m3;
  const std::array<float, 256> levels = e4m3_values();
  std::vector<Group> groups(static_cast<size_t>(s.num_groups()));  // of eight rows
  for (int64_t row = begin; row < end; row += 8) {
    for (int64_t g = 0; g < s.num_groups(); ++g) {
      for (int r = 0; r < 8; ++r) {
        groups[static_cast<size_t>(g)].scale[r] = load_scale(s, scale_index(s, g, row + r));
        groups[static_cast<size_t>(g)].zero[r] = zero_at(s, g, row + r);
      }
    }
    for (int64_t col = 0; col < s.cols; col += 8) {
      uint8_t q[8][32];
      read_codes(s, row, col, 8, q);
      for (int i = 0; i < 8; ++i) {
        const int64_t c = col + i;
        const int64_t g = s.order.empty() ? c / s.group : s.order[static_cast<size_t>(c)];
        const Group& group = groups[static_cast<size_t>(g)];
        for (int r = 0; r < 8; ++r) {
          const float code = floats ? levels[q[r][i]] : static_cast<float>(q[r][i] - group.zero[r]);
          out[place[static_cast<size_t>(row + r)] * s.cols + c] = round(group.scale[r] * code);
        }
      }
    }
  }
}

}  // namespace

CodeFormat choose_code_format(const CodeSource& s) {
  if (s.layout == CodeLayout::mxfp4) return {Format::mxfp4, nullptr};
  if (s.layout == CodeLayout::e4m3) return {Format::bf16, "they are 8-bit floats"};
  auto decoded = [&](const char* why) {
    return CodeFormat{scales_fit_halves(s) ? Format::f16 : Format::bf16, why};
  };
  if (!s.order.empty()) return decoded("their columns are in no order (desc_act)");
  if (s.cols % 32 != 0 || (s.group % 32 != 0 && s.group < s.cols)) {
    return decoded("their groups are no multiples of 32");
  }
  if (s.scale_type != SafetensorsType::f16 && !scales_fit_halves(s)) {
    return decoded("their scales do not fit halves");
  }
  if (s.bits == 4) return {Format::int4, nullptr};
  if (all_zeros_in_the_middle(s)) return {Format::q8_0, nullptr};
  return decoded("they have 8 bits and zero points");
}

void convert_codes(const CodeSource& s,
                   Format format,
                   int64_t begin,
                   int64_t end,
                   std::span<const int64_t> place,
                   std::byte* out) {
  switch (format) {
    case Format::int4:
      return repack_int4(s, begin, end, place, reinterpret_cast<BlockInt4*>(out));
    case Format::q8_0:
      return repack_q8_0(s, begin, end, place, reinterpret_cast<BlockQ8_0*>(out));
    case Format::mxfp4:
      return repack_mxfp4(s, begin, end, place, reinterpret_cast<BlockMXFP4*>(out));
    case Format::f16:
      return decode_codes<f32_to_f16>(s, begin, end, place, reinterpret_cast<uint16_t*>(out));
    case Format::bf16:
      return decode_codes<f32_to_bf16>(s, begin, end, place, reinterpret_cast<uint16_t*>(out));
    default:
      CHECK(false);
  }
}

}  // namespace sluice
