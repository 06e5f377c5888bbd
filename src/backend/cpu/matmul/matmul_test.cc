// Every row of the kernel table that this CPU can run: against a double-precision product of the
// decoded weights, and bit for bit against the scalar row. (Across M and threads:
// matmul_batch_test.)
#include "backend/cpu/matmul/matmul.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "backend/cpu/features.h"
#include "backend/cpu/matmul/matmul_cases.h"
#include "base/test_slice.h"
#include "tensor/formats/all.h"

namespace sluice {
namespace {

class MatmulKernel : public MatmulRowTest {};
INSTANTIATE_TEST_SUITE_P(Rows, MatmulKernel, testing::ValuesIn(usable_rows()), row_test_name);

TEST_P(MatmulKernel, AgreesWithTheReference) {
  const MatmulRow* row = GetParam();
  TestSlice slice(row_index());
  ThreadPool pool(2, false);
  for (int64_t cols : columns_for(*row)) {
    for (int64_t n : {1, 15, 16, 17, 49, 130}) {
      if (n == 1 && row->makes != WeightQuant::none) continue;  // vectors are not quantised
      if (!slice.take()) continue;
      SCOPED_TRACE(std::string(row->name) + " N " + std::to_string(n) + " K " +
                   std::to_string(cols));
      const Source w = random_source(*row, n, cols, static_cast<uint32_t>(n * 7 + cols));
      const std::vector<float> bias = n % 2 ? make_bias(n) : std::vector<float>{};
      const WeightSegment segment = w.segment();
      const PackedWeight packed = pack_weight(pool, {&segment, 1}, bias, only(row));
      EXPECT_EQ(packed.keeps_source, row->in_place);
      for (int64_t m : {1, 5}) {
        Input in = make_input(m, cols, static_cast<uint32_t>(m + n));
        expect_near_reference(multiply(pool, packed, in.act()), w, in, row->arith, bias);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(MatmulKernel, GivesTheBitsOfTheScalarRow) {
  const MatmulRow* row = GetParam();
  TestSlice slice(row_index());
  ThreadPool pool(1, false);
  const std::string scalar_name =
      std::string("scalar-") + std::string(row->name).substr(std::string(row->name).rfind('-') + 1);
  const MatmulRow* scalar = nullptr;
  for (const MatmulRow* r : usable_rows()) {
    if (r->name == scalar_name) scalar = r;
  }
  ASSERT_NE(scalar, nullptr) << row->name;
  if (takes_bf16(row->arith)) return;  // an instruction's own arithmetic
  ASSERT_EQ(row->arith, scalar->arith) << row->name;
  for (int64_t cols : columns_for(*row)) {
    if (!slice.take()) continue;
    const Source w = random_source(*row, 53, cols, 3);
    const WeightSegment segment = w.segment();
    const PackedWeight own = pack_weight(pool, {&segment, 1}, {}, only(row));
    const PackedWeight plain = pack_weight(pool, {&segment, 1}, {}, only(scalar));
    for (int64_t m : {7, 40}) {  // below and above where tiles begin
      Input in = make_input(m, cols, 11);
      EXPECT_TRUE(same_bits(multiply(pool, own, in.act()), multiply(pool, plain, in.act())))
          << row->name << " K " << cols << " M " << m;
    }
  }
}

// Largest magnitudes on both sides: intermediate sums must not saturate.
TEST_P(MatmulKernel, ExtremesAreExact) {
  const MatmulRow* row = GetParam();
  ThreadPool pool(2, false);
  const Source w = extreme_source(*row, 37, 512);
  const WeightSegment segment = w.segment();
  const PackedWeight packed = pack_weight(pool, {&segment, 1}, {}, only(row));
  for (int64_t m : {1, 2, 6, 9}) {
    Input in = make_input(m, 512, 1, true);
    SCOPED_TRACE(std::string(row->name) + " M " + std::to_string(m));
    expect_near_reference(multiply(pool, packed, in.act()), w, in, row->arith, {});
    if (HasFatalFailure()) return;
  }
}

class MatmulW8a8Kernel : public MatmulRowTest {};
INSTANTIATE_TEST_SUITE_P(Rows,
                         MatmulW8a8Kernel,
                         testing::ValuesIn(usable_rows([](const MatmulRow& row) {
                           return row.makes == WeightQuant::w8a8;
                         })),
                         row_test_name);

// The longest rows of w8a8 with the largest products: the sum just fits 32 bits.
TEST_P(MatmulW8a8Kernel, LongestRowsDoNotOverflow) {
  const MatmulRow* row = GetParam();
  ThreadPool pool(2, false);
  Source w = random_source(Format::f32, 17, kMaxW8Cols, 1);
  std::fill(w.decoded.begin(), w.decoded.end(), 1.0f);
  std::memcpy(w.bytes.data(), w.decoded.data(), w.bytes.size());
  const WeightSegment segment = w.segment();
  const PackedWeight packed = pack_weight(pool, {&segment, 1}, {}, only(row));
  TestSlice slice;
  for (int64_t m : {3, 5, 20}) {
    for (float sign : {1.0f, -1.0f}) {
      if (!slice.take()) continue;
      Input in = make_input(m, kMaxW8Cols, 1);
      std::fill(in.row_q.begin(), in.row_q.end(), static_cast<int8_t>(127 * sign));
      for (float& x : in.row_scale) x = 1.0f / 127;
      for (int32_t& x : in.row_sum) x = static_cast<int32_t>(127 * sign) * int32_t{kMaxW8Cols};
      const std::vector<float> out = multiply(pool, packed, in.act());
      for (int64_t r = 0; r < m; ++r) {  // 17 values, then a gap of 3
        for (int64_t c : {0, 15, 16}) {
          ASSERT_NEAR(out[static_cast<size_t>(r * 20 + c)], sign * static_cast<float>(kMaxW8Cols),
                      0.02f)
              << row->name << " M " << m;
        }
      }
    }
  }
}

TEST(Matmul, QuantisedAndExcludedSegmentsInOneWeight) {
  ThreadPool pool(2, false);
  const int64_t cols = 512;
  std::vector<Source> parts = {random_source(Format::f16, 40, cols, 1),
                               random_source(Format::q6_k, 33, cols, 3),
                               random_source(Format::bf16, 17, cols, 4)};
  const char* names[] = {"blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"};
  std::vector<WeightSegment> segments;
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].info.name = names[i];
    segments.push_back(parts[i].segment());
  }
  const LoadQuant quant{WeightQuant::w8a8, {"attn_k"}};
  const PackedWeight w = pack_weight(pool, segments, {}, {.quant = &quant});
  EXPECT_EQ(w.act, kActRow8 | kActSuper8);
  EXPECT_FALSE(w.keeps_source && cpu_features().bits != 0);
  quantize_decoded(parts[0], WeightQuant::w8a8);
  quantize_decoded(parts[2], WeightQuant::w8a8);
  Input in = make_input(5, cols, 77);
  const std::vector<float> out = multiply(pool, w, in.act());
  std::vector<float> decoded(static_cast<size_t>(cols));
  int64_t row = 0;
  for (const Source& s : parts) {
    const Arith arith = &s == &parts[1] ? Arith::int_super : Arith::int_row;
    for (int64_t r = 0; r < s.info.rows; ++r, ++row) {
      embed_row(w, row, decoded.data());
      ASSERT_EQ(std::memcmp(decoded.data(), s.decoded.data() + r * cols, decoded.size() * 4), 0);
      for (int64_t m = 0; m < in.m; ++m) {
        double sum = 0;
        for (int64_t k = 0; k < cols; ++k) {
          sum += double{s.decoded[static_cast<size_t>(r * cols + k)]} * in.value(arith, m, k);
        }
        ASSERT_NEAR(out[static_cast<size_t>(m * (w.rows + 3) + row)], sum, 1e-3);
      }
    }
  }
}

class MatmulW4Kernel : public MatmulRowTest {};
INSTANTIATE_TEST_SUITE_P(Rows,
                         MatmulW4Kernel,
                         testing::ValuesIn(usable_rows([](const MatmulRow& row) {
                           return row.fmt == kW4Format;
                         })),
                         row_test_name);

// w4 is what the format's own encoder gives.
TEST_P(MatmulW4Kernel, FourBitsAtLoad) {
  const MatmulRow* row = GetParam();
  ThreadPool pool(2, false);
  const Source w = random_source(Format::f32, 50, 192, 2);
  const WeightSegment segment = w.segment();
  const LoadQuant quant{WeightQuant::w4, {}};
  Source four = w;
  four.info.format = kW4Format;
  four.bytes.resize(row_bytes(kW4Format, 192) * 50);
  format_info(kW4Format).encode(w.decoded.data(), four.bytes.data(), 50 * 192);
  const WeightSegment own = four.segment();
  const PackedWeight made =
      pack_weight(pool, {&segment, 1}, make_bias(50), {.table = {row, 1}, .quant = &quant});
  EXPECT_FALSE(made.keeps_source);
  const PackedWeight want = pack_weight(pool, {&own, 1}, make_bias(50), {.table = {row, 1}});
  Input in = make_input(9, 192, 5);
  EXPECT_TRUE(same_bits(multiply(pool, made, in.act()), multiply(pool, want, in.act())))
      << row->name;
}

TEST_P(MatmulKernel, RowsDecodeExactlyFromThePackedForm) {
  const MatmulRow* row = GetParam();
  ThreadPool pool(2, false);
  const int64_t cols = format_info(row->fmt).block_elems == 256 ? 512 : 160;
  for (const Source& w : {random_source(*row, 35, cols, 8), extreme_source(*row, 35, 512)}) {
    const WeightSegment segment = w.segment();
    const PackedWeight packed = pack_weight(pool, {&segment, 1}, {}, only(row));
    std::vector<float> out(static_cast<size_t>(w.info.cols));
    for (int64_t r = 0; r < w.info.rows; ++r) {
      embed_row(packed, r, out.data());
      ASSERT_EQ(std::memcmp(out.data(), w.decoded.data() + r * w.info.cols, out.size() * 4), 0)
          << row->name << " row " << r;
    }
  }
}

TEST(Matmul, FusedSegmentsOfSeveralFormats) {
  ThreadPool pool(2, false);
  const int64_t cols = 512;
  const std::vector<Source> parts = {
      random_source(Format::q4_0, 40, cols, 1), random_source(Format::f16, 9, cols, 2),
      random_source(Format::q6_k, 33, cols, 3), random_source(Format::q8_0, 17, cols, 4),
      random_source(Format::f32, 11, cols, 5)};
  std::vector<WeightSegment> segments;
  for (const Source& s : parts) segments.push_back(s.segment());
  const std::vector<float> bias = make_bias(40 + 9 + 33 + 17 + 11);
  const PackedWeight w = pack_weight(pool, segments, bias);
  EXPECT_EQ(w.rows, 110);
  EXPECT_EQ(w.act, kActF32 | kActQ8 | kActSuper8);
  EXPECT_TRUE(w.keeps_source);
  for (int64_t m : {1, 4, 19}) {
    Input in = make_input(m, cols, 77);
    const std::vector<float> out = multiply(pool, w, in.act());
    int64_t row = 0;
    for (const Source& s : parts) {
      const WeightSegment segment = s.segment();
      const std::vector<float> own_bias(bias.begin() + row, bias.begin() + row + s.info.rows);
      const PackedWeight alone = pack_weight(pool, {&segment, 1}, own_bias);
      const std::vector<float> expect = multiply(pool, alone, in.act());
      std::vector<float> decoded(static_cast<size_t>(cols));
      for (int64_t r = 0; r < s.info.rows; ++r) {
        for (int64_t i = 0; i < m; ++i) {
          ASSERT_EQ(out[static_cast<size_t>(i * (w.rows + 3) + row + r)],
                    expect[static_cast<size_t>(i * (s.info.rows + 3) + r)]);
        }
        embed_row(w, row + r, decoded.data());
        ASSERT_EQ(decoded[5], s.decoded[static_cast<size_t>(r * cols + 5)]);
      }
      row += s.info.rows;
    }
  }
}

TEST(Matmul, PackedMemoryIsNoLargerThanTheFormat) {
  ThreadPool pool(1, false);
  const auto bits = [&](Format format) {
    const Source w = random_source(format, 64, 1024, 1);
    const WeightSegment segment = w.segment();
    return 8.0 * static_cast<double>(pack_weight(pool, {&segment, 1}, {}).bytes) / (64 * 1024);
  };
  EXPECT_LE(bits(Format::q8_0), 8.5);
  EXPECT_LE(bits(Format::q4_0), 4.5);
  EXPECT_LE(bits(Format::q4_1), 5.0);
  EXPECT_LE(bits(Format::q6_k), 6.5625);
  EXPECT_LE(bits(Format::q5_0), 5.5);
  EXPECT_LE(bits(Format::q5_1), 6.0);
  EXPECT_LE(bits(Format::q2_k), 2.625);
  EXPECT_LE(bits(Format::q3_k), 3.4375);
  EXPECT_LE(bits(Format::q4_k), 4.5);
  EXPECT_LE(bits(Format::q5_k), 5.5);
  EXPECT_LE(bits(Format::iq4_nl), 4.5);
  EXPECT_LE(bits(Format::int4), 5.0);
  EXPECT_LE(bits(Format::mxfp4), 4.5);  // 4.25 in a file: panels have 16 bits for a scale
}

class MatmulMxfp4Kernel : public MatmulRowTest {};
INSTANTIATE_TEST_SUITE_P(Rows,
                         MatmulMxfp4Kernel,
                         testing::ValuesIn(usable_rows([](const MatmulRow& row) {
                           return row.fmt == Format::mxfp4;
                         })),
                         row_test_name);

// All 256 powers of two: rows come back as they were, products have the scalar row's bits.
TEST_P(MatmulMxfp4Kernel, EveryScaleIsKept) {
  const MatmulRow* row = GetParam();
  ThreadPool pool(2, false);
  Source w = random_source(Format::mxfp4, 64, 128, 8);
  for (size_t i = 0; i < 256; ++i) w.bytes[i * sizeof(BlockMXFP4)] = static_cast<std::byte>(i);
  w.decode_all();
  const WeightSegment segment = w.segment();
  const PackedWeight packed = pack_weight(pool, {&segment, 1}, {}, only(row));
  for (int64_t r = 0; r < 64; ++r) {
    std::vector<float> out(128);
    embed_row(packed, r, out.data());
    ASSERT_EQ(std::memcmp(out.data(), w.decoded.data() + r * 128, 512), 0) << row->name << " " << r;
  }
  const MatmulRow* scalar = nullptr;
  for (const MatmulRow* r : usable_rows()) {
    if (r->fmt == Format::mxfp4 && r->need == 0) scalar = r;
  }
  ASSERT_NE(scalar, nullptr);
  const PackedWeight plain = pack_weight(pool, {&segment, 1}, {}, only(scalar));
  for (int64_t m : {1, 7, 40}) {
    Input in = make_input(m, 128, 3);
    EXPECT_TRUE(same_bits(multiply(pool, packed, in.act()), multiply(pool, plain, in.act())));
  }
}

// The fallback for a format without a kernel computes the same product in f32: tried on every
// format.
TEST(Matmul, FormatsWithoutAKernelAreDecoded) {
  ThreadPool pool(2, false);
  for (int f = 0; f < kNumFormats; ++f) {
    const auto format = static_cast<Format>(f);
    SCOPED_TRACE(format_info(format).name);
    const MatmulRow& row = choose_matmul(format, 35, 512, {});
    EXPECT_EQ(&row, &decoding_row(format));
    const Source w = random_source(row, 35, 512, 4);
    const WeightSegment segment = w.segment();
    const PackedWeight packed = pack_weight(pool, {&segment, 1}, make_bias(35), only(&row));
    EXPECT_TRUE(packed.keeps_source);
    for (int64_t m : {1, 40}) {
      Input in = make_input(m, 512, 6);
      expect_near_reference(multiply(pool, packed, in.act()), w, in, row.arith, make_bias(35));
      if (HasFatalFailure()) return;
    }
    std::vector<float> out(512);
    embed_row(packed, 34, out.data());
    EXPECT_EQ(std::memcmp(out.data(), w.decoded.data() + 34 * 512, out.size() * 4), 0);
  }
}

TEST(Matmul, ScalarRowsFitEveryFormatThatHasKernels) {
  for (int f = 0; f < kNumFormats; ++f) {
    const auto format = static_cast<Format>(f);
    bool found = false, any = false;
    for (const MatmulRow& row : matmul_rows()) {
      if (row.fmt != format || row.makes != WeightQuant::none) continue;
      any = true;
      found |= row.need == 0;
    }
    // A format without any row is decoded (decoding_row).
    EXPECT_TRUE(found || !any) << format_info(format).name;
  }
  for (WeightQuant kind : {WeightQuant::w8a8, WeightQuant::u8}) {
    bool found = false;
    for (const MatmulRow& row : matmul_rows()) found |= row.makes == kind && row.need == 0;
    EXPECT_TRUE(found) << static_cast<int>(kind);
  }
}

}  // namespace
}  // namespace sluice
