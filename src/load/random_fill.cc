#include "load/random_fill.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "tensor/formats/all.h"
#include "tensor/formats/f16.h"
#include "tensor/formats/q4_0.h"
#include "tensor/formats/q4_1.h"
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
  }
}

}  // namespace sluice
