#include "load/random_fill.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "tensor/formats/all.h"
#include "tensor/formats/f16.h"
#include "tensor/formats/int4.h"
#include "tensor/formats/iq4_nl.h"
#include "tensor/formats/q2_k.h"
#include "tensor/formats/q3_k.h"
#include "tensor/formats/q4_0.h"
#include "tensor/formats/q4_1.h"
#include "tensor/formats/q4_k.h"
#include "tensor/formats/q5_0.h"
#include "tensor/formats/q5_1.h"
#include "tensor/formats/q5_k.h"
#include "tensor/formats/q6_k.h"
#include "tensor/formats/q8_0.h"

namespace sluice {
namespace {

constexpr int kPlainUnit = 64;
constexpr int kLevels = 4096;  // distinct values of a plain format: its table stays in L1

// `num` random words of unit `unit`. The odd multiplier keeps the words of neighbouring units
// apart.
void random_words(uint64_t key, int64_t unit, uint64_t* out, int num) {
  const uint64_t at = static_cast<uint64_t>(unit) * static_cast<uint64_t>(num);
  for (int i = 0; i < num; ++i) {
    out[i] = mix_bits(key + (at + static_cast<uint64_t>(i)) * 0x9e3779b97f4a7c15u);
  }
}

template <typename T>
struct Table {
  T value[kLevels];
};

// Evenly spaced in (-a, a) with a = sqrt(3 / cols): the standard deviation is 1 / sqrt(cols).
template <typename T>
std::unique_ptr<Table<T>> level_table(int64_t cols, T (*store)(float)) {
  auto table = std::make_unique<Table<T>>();
  const double a = std::sqrt(3.0 / static_cast<double>(cols));
  for (int i = 0; i < kLevels; ++i) {
    table->value[i] = store(static_cast<float>(a * ((2 * i + 1) / double{kLevels} - 1)));
  }
  return table;
}

template <typename T>
void fill_plain(const RandomMatrix& m,
                std::byte* tensor,
                int64_t num_elems,
                int64_t begin,
                int64_t end,
                T (*store)(float)) {
  const auto table = level_table<T>(m.cols, store);
  T* out = reinterpret_cast<T*>(tensor);
  for (int64_t unit = begin; unit < end; ++unit) {
    uint64_t words[kPlainUnit / 4];
    random_words(m.key, unit, words, kPlainUnit / 4);
    T values[kPlainUnit];
    for (int i = 0; i < kPlainUnit; ++i) {
      values[i] = table->value[words[i / 4] >> (16 * (i % 4)) & (kLevels - 1)];
    }
    const int64_t num = std::min<int64_t>(kPlainUnit, num_elems - unit * kPlainUnit);
    std::memcpy(out + unit * kPlainUnit, values, static_cast<size_t>(num) * sizeof(T));
  }
}

// Bytes of -128 become 0: encoders never write -128, some kernels rely on that, and the mean is 0.
uint64_t without_minus_128(uint64_t x) {
  const uint64_t low = 0x7f7f7f7f7f7f7f7fu;
  const uint64_t t = x ^ ~low;
  const uint64_t other = ((t & low) + low) | t;  // top bits: bytes that are not -128
  return x & (other | low);
}

// The standard deviation of integers spread evenly over n neighbouring values.
double even_spread(double n) { return std::sqrt((n * n - 1) / 12); }

void fill_block(const RandomMatrix& m, int64_t unit, float scale, BlockQ8_0& b) {
  uint64_t words[4];
  random_words(m.key, unit, words, 4);
  for (uint64_t& w : words) w = without_minus_128(w);
  b.d = f32_to_f16(scale);
  std::memcpy(b.qs, words, sizeof(words));
}

// Nibbles minus 8 have mean -0.5: a sign per block takes it away. Without that, all rows would
// share a component along (1, 1, ...) that grows from layer to layer.
void fill_block(const RandomMatrix& m, int64_t unit, float scale, BlockQ4_0& b) {
  uint64_t words[3];
  random_words(m.key, unit, words, 3);
  b.d = static_cast<uint16_t>(f32_to_f16(scale) | (words[2] & 0x8000));
  std::memcpy(b.qs, words, sizeof(b.qs));
}

void fill_block(const RandomMatrix& m, int64_t unit, float scale, BlockQ4_1& b) {
  uint64_t words[2];
  random_words(m.key, unit, words, 2);
  b.d = static_cast<uint16_t>(f32_to_f16(scale) & 0xfff0);  // so that 7.5 d is a half too
  b.m = f32_to_f16(-7.5f * f16_to_f32(b.d));
  std::memcpy(b.qs, words, sizeof(b.qs));
}

// The signs take away the quants' mean of -0.5.
void fill_block(const RandomMatrix& m, int64_t unit, float scale, BlockInt4& b) {
  uint64_t words[3];
  random_words(m.key, unit, words, 3);
  b.d = static_cast<uint16_t>(f32_to_f16(scale) | (words[2] & 0x8000));
  b.m = f32_to_f16(-8);
  std::memcpy(b.qs, words, sizeof(b.qs));
}

constexpr double kQ6ScaleSpread = 97.2;  // root mean square of 64 .. 127

// Group scales are +-(64 .. 127); the signs take away the quants' mean of -0.5.
void fill_block(const RandomMatrix& m, int64_t unit, float scale, BlockQ6K& b) {
  uint64_t words[26];
  random_words(m.key, unit, words, 26);
  std::memcpy(b.ql, words, 128);
  std::memcpy(b.qh, words + 16, 64);
  for (int g = 0; g < 16; ++g) {
    const auto r = static_cast<int>(words[24 + g / 8] >> (8 * (g % 8)) & 0xff);
    const int size = 64 + (r & 63);
    b.scales[g] = static_cast<int8_t>(r & 128 ? -size : size);
  }
  b.d = f32_to_f16(scale);
}

// A half with `bits` significant bits near `scale`, so that small multiples of it are halves too.
uint16_t short_half(float scale, int bits) {
  const int drop = 11 - bits;
  const int half = f32_to_f16(scale) + (1 << drop >> 1);
  return static_cast<uint16_t>(half >> drop << drop);
}

void fill_block(const RandomMatrix& m, int64_t unit, float scale, BlockQ5_0& b) {
  uint64_t words[3];
  random_words(m.key, unit, words, 3);
  b.d = static_cast<uint16_t>(f32_to_f16(scale) | (words[2] >> 63 << 15));
  std::memcpy(b.qs, words, sizeof(b.qs));
  std::memcpy(b.qh, words + 2, sizeof(b.qh));
}

void fill_block(const RandomMatrix& m, int64_t unit, float scale, BlockQ5_1& b) {
  uint64_t words[3];
  random_words(m.key, unit, words, 3);
  b.d = short_half(scale, 6);
  b.m = f32_to_f16(-15.5f * f16_to_f32(b.d));
  std::memcpy(b.qs, words, sizeof(b.qs));
  std::memcpy(b.qh, words + 2, sizeof(b.qh));
}

void fill_block(const RandomMatrix& m, int64_t unit, float scale, BlockIQ4NL& b) {
  uint64_t words[3];
  random_words(m.key, unit, words, 3);
  b.d = static_cast<uint16_t>(f32_to_f16(scale) | (words[2] & 0x8000));
  std::memcpy(b.qs, words, sizeof(b.qs));
}

// Root mean squares of the group scales below: 32 .. 63, 16 .. 31 and 8 .. 15.
constexpr double kSixBitSpread = 48.39, kFiveBitSpread = 23.95, kFourBitSpread = 11.73;

// Minimums equal the scales, in units that are the middle of the codes: the mean is 0.
template <typename Block>
void fill_scales(uint64_t word, Block& b) {
  ScaleMin s[8];
  for (int g = 0; g < 8; ++g) {
    const int size = 32 + static_cast<int>(word >> (8 * g) & 31);
    s[g] = {size, size};
  }
  put_scale_mins(s, b.scales);
}

void fill_block(const RandomMatrix& m, int64_t unit, float scale, BlockQ4K& b) {
  uint64_t words[17];
  random_words(m.key, unit, words, 17);
  b.d = short_half(scale, 7);
  b.dmin = f32_to_f16(7.5f * f16_to_f32(b.d));
  std::memcpy(b.qs, words, sizeof(b.qs));
  fill_scales(words[16], b);
}

void fill_block(const RandomMatrix& m, int64_t unit, float scale, BlockQ5K& b) {
  uint64_t words[21];
  random_words(m.key, unit, words, 21);
  b.d = short_half(scale, 6);
  b.dmin = f32_to_f16(15.5f * f16_to_f32(b.d));
  std::memcpy(b.qs, words, sizeof(b.qs));
  std::memcpy(b.qh, words + 16, sizeof(b.qh));
  fill_scales(words[20], b);
}

void fill_block(const RandomMatrix& m, int64_t unit, float scale, BlockQ2K& b) {
  uint64_t words[10];
  random_words(m.key, unit, words, 10);
  b.d = short_half(scale, 9);
  b.dmin = f32_to_f16(1.5f * f16_to_f32(b.d));
  std::memcpy(b.qs, words, sizeof(b.qs));
  for (int g = 0; g < 16; ++g) {
    const auto size = 8 + static_cast<int>(words[8 + g / 8] >> (8 * (g % 8)) & 7);
    b.scales[g] = static_cast<uint8_t>(size | size << 4);
  }
}

// Quants of -4 .. 3 have mean -0.5: every second group has its neighbour's scale negated.
void fill_block(const RandomMatrix& m, int64_t unit, float scale, BlockQ3K& b) {
  uint64_t words[13];
  random_words(m.key, unit, words, 13);
  b.d = f32_to_f16(scale);
  std::memcpy(b.qs, words, sizeof(b.qs));
  std::memcpy(b.hmask, words + 8, sizeof(b.hmask));
  std::memset(b.scales, 0, sizeof(b.scales));
  for (int g = 0; g < 16; ++g) {
    const int size = 16 + static_cast<int>(words[12] >> (8 * (g / 2)) & 15);
    const int code = g % 2 ? 32 - size : 32 + size;
    b.scales[g % 8] = static_cast<uint8_t>(b.scales[g % 8] | (code & 15) << g / 8 * 4);
    b.scales[8 + g % 4] = static_cast<uint8_t>(b.scales[8 + g % 4] | code >> 4 << g / 4 * 2);
  }
}

template <typename Block>
void fill_blocks(
    const RandomMatrix& m, std::byte* tensor, int64_t begin, int64_t end, double spread) {
  const auto scale = static_cast<float>(1 / (spread * std::sqrt(static_cast<double>(m.cols))));
  auto* blocks = reinterpret_cast<Block*>(tensor);
  for (int64_t unit = begin; unit < end; ++unit) fill_block(m, unit, scale, blocks[unit]);
}

}  // namespace

int64_t random_unit_elems(Format format) {
  const int elems = format_info(format).block_elems;
  return elems == 1 ? kPlainUnit : elems;
}

namespace {

// For formats without a fill_block() of their own: values of a plain format, encoded.
void fill_encoded(
    const RandomMatrix& m, std::byte* tensor, int64_t num_elems, int64_t begin, int64_t end) {
  const int64_t elems = random_unit_elems(m.format);
  const double a = std::sqrt(3.0 / static_cast<double>(m.cols));
  std::vector<uint64_t> words(static_cast<size_t>(elems));
  std::vector<float> values(static_cast<size_t>(elems));
  for (int64_t unit = begin; unit < end; ++unit) {
    random_words(m.key, unit, words.data(), static_cast<int>(elems));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(a * (static_cast<double>(words[i] >> 11) * 0x1p-52 - 1));
    }
    const size_t at = row_bytes(m.format, unit * elems);
    format_info(m.format).encode(values.data(), tensor + at,
                                 std::min(elems, num_elems - unit * elems));
  }
}

}  // namespace

void fill_random(
    const RandomMatrix& m, std::byte* tensor, int64_t num_elems, int64_t begin, int64_t end) {
  switch (m.format) {
    case Format::f32:
      return fill_plain<float>(m, tensor, num_elems, begin, end, [](float x) { return x; });
    case Format::f16:
      return fill_plain<uint16_t>(m, tensor, num_elems, begin, end, f32_to_f16);
    case Format::bf16:
      return fill_plain<uint16_t>(m, tensor, num_elems, begin, end, f32_to_bf16);
    case Format::q8_0:
      return fill_blocks<BlockQ8_0>(m, tensor, begin, end, even_spread(255));
    case Format::q4_0:
      return fill_blocks<BlockQ4_0>(m, tensor, begin, end, std::sqrt(21.5));  // of -8 .. 7 about 0
    case Format::q4_1:
      return fill_blocks<BlockQ4_1>(m, tensor, begin, end, even_spread(16));
    case Format::q6_k:
      return fill_blocks<BlockQ6K>(m, tensor, begin, end, even_spread(64) * kQ6ScaleSpread);
    case Format::q5_0:
      return fill_blocks<BlockQ5_0>(m, tensor, begin, end, std::sqrt(85.5));  // -16 .. 15 about 0
    case Format::q5_1:
      return fill_blocks<BlockQ5_1>(m, tensor, begin, end, even_spread(32));
    case Format::q2_k:
      return fill_blocks<BlockQ2K>(m, tensor, begin, end, even_spread(4) * kFourBitSpread);
    case Format::q3_k:
      return fill_blocks<BlockQ3K>(m, tensor, begin, end, std::sqrt(5.5) * kFiveBitSpread);
    case Format::q4_k:
      return fill_blocks<BlockQ4K>(m, tensor, begin, end, even_spread(16) * kSixBitSpread);
    case Format::q5_k:
      return fill_blocks<BlockQ5K>(m, tensor, begin, end, even_spread(32) * kSixBitSpread);
    case Format::iq4_nl:
      return fill_blocks<BlockIQ4NL>(m, tensor, begin, end, std::sqrt(4548.0));  // of its levels
    case Format::int4:
      return fill_blocks<BlockInt4>(m, tensor, begin, end, std::sqrt(21.5));  // of -8 .. 7 about 0
    default:
      return fill_encoded(m, tensor, num_elems, begin, end);
  }
}

}  // namespace sluice
