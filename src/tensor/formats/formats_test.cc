#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/json.h"
#include "tensor/formats/all.h"
#include "tensor/formats/f16.h"

namespace sluice {
namespace {

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// The golden blocks are decoded where a GGUF would hold them: aligned memory.
std::vector<uint32_t> words_of_hex(std::string_view hex) {
  std::vector<uint32_t> words((hex.size() / 2 + 3) / 4);
  auto* bytes = reinterpret_cast<unsigned char*>(words.data());
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes[i / 2] =
        static_cast<unsigned char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return words;
}

json::value goldens() {
  auto parsed = parse_json(slurp(SLUICE_SOURCE_DIR "/tests/golden/formats.json"));
  EXPECT_TRUE(parsed) << (parsed ? "" : parsed.error().message);
  return parsed ? *parsed : json::value(json::object{});
}

struct Row {
  const FormatInfo* format;
  std::vector<uint32_t> blocks, f32;  // bits
  int64_t num_elems;
  size_t num_bytes;
};

std::vector<Row> rows_of(const char* section) {
  std::vector<Row> rows;
  const json::value all = goldens();
  for (const json::value& v : all.at(section).as_array()) {
    Row r;
    r.format = find_format(v.at("format").as_string().c_str());
    r.blocks = words_of_hex(v.at("blocks").as_string());
    r.f32 = words_of_hex(v.at("f32").as_string());
    r.num_elems = static_cast<int64_t>(r.f32.size());
    r.num_bytes = v.at("blocks").as_string().size() / 2;
    rows.push_back(r);
  }
  return rows;
}

TEST(Formats, DecodeIsBitEqualToAnIndependentDecoder) {
  auto rows = rows_of("decode");
  ASSERT_EQ(rows.size(), 14u);
  for (const Row& r : rows) {
    ASSERT_NE(r.format, nullptr);
    ASSERT_EQ(row_bytes(r.format->format, r.num_elems), r.num_bytes) << r.format->name;
    std::vector<float> out(static_cast<size_t>(r.num_elems));
    r.format->decode(r.blocks.data(), out.data(), r.num_elems);
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), r.f32[i]) << r.format->name << " element " << i;
    }
  }
}

TEST(Formats, EncodeAgreesWithAnIndependentEncoder) {
  auto rows = rows_of("encode");
  ASSERT_EQ(rows.size(), 8u);
  for (const Row& r : rows) {
    ASSERT_NE(r.format, nullptr);
    std::vector<float> in(static_cast<size_t>(r.num_elems));
    std::memcpy(in.data(), r.f32.data(), in.size() * 4);
    std::vector<uint32_t> blocks(r.blocks.size());
    r.format->encode(in.data(), blocks.data(), r.num_elems);
    EXPECT_EQ(std::memcmp(blocks.data(), r.blocks.data(), r.num_bytes), 0) << r.format->name;
  }
}

// The largest error allowed, in units of the block's largest magnitude (range for those with a
// minimum).
double error_bound(Format f) {
  switch (f) {
    case Format::f32:
      return 0;
    case Format::f16:
      return 0x1p-11;
    case Format::bf16:
      return 0x1p-8;
    case Format::q8_0:
      return 0.5 / 127 + 0x1p-10;
    case Format::q4_0:
      return 1.0 / 8 + 0x1p-10;  // +8 is clamped to +7
    case Format::q4_1:
      return 2 * (0.5 / 15 + 0x1p-9);
    case Format::q6_k:
      return 1.0 / 31;
    case Format::q5_0:
      return 1.0 / 16 + 0x1p-10;  // +16 is clamped to +15
    case Format::q5_1:
      return 2 * (0.5 / 31 + 0x1p-9);
    // The search of the others may leave single elements a whole step away.
    case Format::q2_k:
      return 2 * (1.0 / 3);
    case Format::q3_k:
      return 1.0 / 3;
    case Format::q4_k:
      return 2 * (1.0 / 15);
    case Format::q5_k:
      return 2 * (1.0 / 31);
    case Format::iq4_nl:
      return 28.0 / 127;
    case Format::int4:
      return 1.1 / 15;  // half a step of what may span twice the largest, and the half's rounding
    case Format::mxfp4:
      return 1.0 / 4;  // up to 8 is clamped to 6
    default:
      return 0.5;  // a new format, until its bound is known
  }
}

TEST(Formats, RoundTripErrorIsBounded) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  for (int f = 0; f < kNumFormats; ++f) {
    const FormatInfo& info = format_info(static_cast<Format>(f));
    const int64_t n = 256;
    for (int trial = 0; trial < 200; ++trial) {
      std::vector<float> in(n), out(n);
      // Large enough that the scales are normal halves.
      const float size = std::exp2(static_cast<float>(trial % 14 - 3));
      for (float& x : in) x = normal(rng) * size;
      std::vector<uint32_t> blocks(row_bytes(info.format, n) / 4 + 1);
      info.encode(in.data(), blocks.data(), n);
      info.decode(blocks.data(), out.data(), n);
      const int64_t per = info.block_elems == 1 ? n : info.block_elems;
      for (int64_t b = 0; b < n; b += per) {
        float largest = 0;
        for (int64_t i = b; i < b + per; ++i) largest = std::fmax(largest, std::fabs(in[i]));
        for (int64_t i = b; i < b + per; ++i) {
          ASSERT_LE(std::fabs(out[i] - in[i]), error_bound(info.format) * largest)
              << info.name << " trial " << trial << " element " << i;
        }
      }
    }
  }
}

// The error of normal values, relative to their size.
double relative_error(Format format) {
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  const FormatInfo& info = format_info(format);
  std::vector<uint32_t> block(row_bytes(format, 256) / 4 + 1);
  double error = 0, power = 0;
  for (int trial = 0; trial < 50; ++trial) {
    float in[256], out[256];
    for (float& x : in) x = normal(rng);
    info.encode(in, block.data(), 256);
    info.decode(block.data(), out, 256);
    for (int i = 0; i < 256; ++i) {
      error += (in[i] - out[i]) * (in[i] - out[i]);
      power += in[i] * in[i];
    }
  }
  return std::sqrt(error / power);
}

// Searching for the scale must beat the plain scale of the largest element or of the range, or it
// is not worth its time. Without it: 0.0186, 0.0385, 0.0793. llama.cpp's quantisers, on the same
// kind of data: 0.0177, 0.0361, 0.0714.
TEST(Formats, ScaleSearchPays) {
  EXPECT_LT(relative_error(Format::q6_k), 0.0178);
  EXPECT_LT(relative_error(Format::q5_k), 0.0353);
  EXPECT_LT(relative_error(Format::q4_k), 0.0712);
}

// More bits, less error, and no format far from its neighbours.
TEST(Formats, ErrorsAreOrdered) {
  const Format order[] = {Format::q8_0,   Format::q6_k, Format::q5_k, Format::q5_0, Format::q4_k,
                          Format::iq4_nl, Format::q4_0, Format::q3_k, Format::q2_k};
  double last = 0;
  for (Format f : order) {
    const double error = relative_error(f);
    EXPECT_GT(error, last) << format_info(f).name;
    EXPECT_LT(error, last == 0 ? 0.006 : 3.5 * last) << format_info(f).name;
    last = error;
  }
}

TEST(Formats, EncodersSurviveWhatIsNotFinite) {
  const float specials[] = {0, -0.0f, INFINITY, -INFINITY, NAN, 3e38f, -3e38f, 1e-40f};
  for (int f = 0; f < kNumFormats; ++f) {
    const FormatInfo& info = format_info(static_cast<Format>(f));
    for (float special : specials) {
      std::vector<float> in(256, 0.25f), out(256);
      in[3] = special;
      in[200] = special;
      std::vector<uint32_t> blocks(row_bytes(info.format, 256) / 4 + 1);
      info.encode(in.data(), blocks.data(), 256);
      info.decode(blocks.data(), out.data(), 256);
    }
    std::vector<float> zero(256), out(256, 1);
    std::vector<uint32_t> blocks(row_bytes(info.format, 256) / 4 + 1);
    info.encode(zero.data(), blocks.data(), 256);
    info.decode(blocks.data(), out.data(), 256);
    for (float x : out) EXPECT_EQ(x, 0) << info.name;
  }
}

TEST(Formats, EveryHalfSurvivesTheRoundTrip) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const auto half = static_cast<uint16_t>(h);
    const float f = f16_to_f32(half);
    const uint32_t mag = h & 0x7fff;
    const double sign = h & 0x8000 ? -1 : 1;
    if (mag > 0x7c00) {
      EXPECT_TRUE(std::isnan(f));
      EXPECT_EQ(f32_to_f16(f), half | 0x200);
      continue;
    }
    double want = mag == 0x7c00 ? INFINITY
                  : mag >> 10 == 0
                      ? std::ldexp(mag, -24)
                      : std::ldexp(1024 + (mag & 0x3ff), static_cast<int>(mag >> 10) - 25);
    ASSERT_EQ(f, sign * want) << h;
    ASSERT_EQ(std::signbit(f), sign < 0);
    ASSERT_EQ(f32_to_f16(f), half);
  }
}

TEST(Formats, HalvesAndBfloatsRoundToNearestEven) {
  for (uint32_t h = 0; h < 0x7bff; ++h) {
    const auto low = static_cast<uint16_t>(h);
    const auto high = static_cast<uint16_t>(h + 1);
    const float middle = (f16_to_f32(low) + f16_to_f32(high)) / 2;
    ASSERT_EQ(f32_to_f16(middle), h % 2 == 0 ? low : high);
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, 0.0f)), low);
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, INFINITY)), high);
  }
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520), 0x7c00);
  EXPECT_EQ(f32_to_f16(-65520), 0xfc00);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(f32_to_bf16(INFINITY), 0x7f80);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x7f800001u)), 0x7fc0);
}

TEST(Formats, FoundByNameAndNumber) {
  EXPECT_EQ(find_format("q4_0")->format, Format::q4_0);
  EXPECT_EQ(find_format("Q6_K")->format, Format::q6_k);
  EXPECT_EQ(find_format("bf16")->gguf_type, 30u);
  EXPECT_EQ(find_format("q4"), nullptr);
  EXPECT_EQ(find_gguf_type(14)->format, Format::q6_k);
  EXPECT_EQ(find_gguf_type(12)->format, Format::q4_k);
  EXPECT_EQ(find_gguf_type(39)->format, Format::mxfp4);
  EXPECT_EQ(find_gguf_type(16), nullptr);
  EXPECT_EQ(find_gguf_type(kNotInGguf), nullptr);
  for (int f = 0; f < kNumFormats; ++f) {
    EXPECT_EQ(format_info(static_cast<Format>(f)).format, static_cast<Format>(f));
  }
}

}  // namespace
}  // namespace sluice
