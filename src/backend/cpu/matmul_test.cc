// Every row of the kernel table that this CPU can run: against a double-precision product of the
// decoded weights, bit for bit against the scalar row, and bit for bit across M and threads.
#include "backend/cpu/matmul.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "backend/cpu/features.h"
#include "backend/cpu/quantize.h"
#include "tensor/formats/all.h"
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

constexpr float kPoison = 12345.678f;

struct Source {
  TensorInfo info;
  std::vector<std::byte> bytes;
  std::vector<float> decoded;  // [rows, cols]

  WeightSegment segment() const { return {&info, bytes}; }
  void decode_all() {
    decoded.resize(static_cast<size_t>(info.rows * info.cols));
    format_info(info.format).decode(bytes.data(), decoded.data(), info.rows * info.cols);
  }
};

Source random_source(Format format, int64_t rows, int64_t cols, uint32_t seed) {
  Source s;
  s.info = {"w", format, rows, cols, row_bytes(format, cols) * static_cast<size_t>(rows)};
  s.bytes.resize(s.info.bytes);
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.1f, 1.0f);
  std::vector<float> values(static_cast<size_t>(rows * cols));
  for (float& v : values) v = normal(rng);
  format_info(format).encode(values.data(), s.bytes.data(), rows * cols);
  s.decode_all();
  return s;
}

// What quantising leaves of the source, computed here once more: one scale, or a scale and a
// minimum, for each row.
void quantize_decoded(Source& s, WeightQuant kind) {
  const int64_t cols = s.info.cols;
  for (int64_t r = 0; r < s.info.rows; ++r) {
    float* row = s.decoded.data() + r * cols;
    float lowest = row[0], highest = row[0];
    for (int64_t k = 0; k < cols; ++k) {
      lowest = std::fmin(lowest, row[k]);
      highest = std::fmax(highest, row[k]);
    }
    if (kind == WeightQuant::w8a8) {
      const float absmax = std::fmax(highest, -lowest);
      const float scale = absmax / 127, inverse = 127 / absmax;
      for (int64_t k = 0; k < cols; ++k) {
        row[k] = scale * static_cast<float>(static_cast<int>(std::nearbyint(row[k] * inverse)));
      }
    } else if (kind == WeightQuant::u8) {
      const float range = highest - lowest, scale = range / 255;
      const float inverse = range > 0 ? 255 / range : 0;
      for (int64_t k = 0; k < cols; ++k) {
        const float value = std::fma(std::nearbyint((row[k] - lowest) * inverse), scale, lowest);
        ASSERT_LE(std::fabs(row[k] - value), scale * 0.5001f + 1e-7f * std::fabs(row[k]));
        row[k] = value;
      }
    }
  }
}

// Blocks whose quants and scales are the largest and smallest the format has, in runs of `run`.
template <typename Block, typename Fill>
Source extreme_source(Format format, int64_t rows, int64_t cols, Fill fill) {
  Source s;
  s.info = {"w", format, rows, cols, row_bytes(format, cols) * static_cast<size_t>(rows)};
  s.bytes.resize(s.info.bytes);
  for (size_t i = 0; i < s.bytes.size() / sizeof(Block); ++i) {
    Block block;
    fill(block, i);
    std::memcpy(s.bytes.data() + i * sizeof(Block), &block, sizeof(Block));
  }
  s.decode_all();
  return s;
}

void fill_scale_mins(uint8_t* bytes, size_t i) {
  ScaleMin s[8];
  for (int g = 0; g < 8; ++g) s[g] = {(g + static_cast<int>(i)) % 3 ? 63 : 1, g % 2 ? 63 : 2};
  put_scale_mins(s, bytes);
}

Source extreme_source(Format format, int64_t rows, int64_t cols) {
  const uint16_t one = f32_to_f16(1.0f);
  switch (format) {
    case Format::q8_0:
      return extreme_source<BlockQ8_0>(format, rows, cols, [&](BlockQ8_0& b, size_t i) {
        b.d = one;
        for (int k = 0; k < 32; ++k) {
          b.qs[k] = static_cast<int8_t>(i % 3 == 0 ? -128 : i % 3 == 1 ? 127 : k % 2 ? -128 : 127);
        }
      });
    case Format::q4_0:
      return extreme_source<BlockQ4_0>(format, rows, cols, [&](BlockQ4_0& b, size_t i) {
        b.d = one;
        std::memset(b.qs, i % 3 == 0 ? 0x00 : i % 3 == 1 ? 0xff : 0xf0, 16);
      });
    case Format::q4_1:
      return extreme_source<BlockQ4_1>(format, rows, cols, [&](BlockQ4_1& b, size_t i) {
        b.d = one;
        b.m = f32_to_f16(i % 2 ? -8.0f : 3.0f);
        std::memset(b.qs, i % 3 == 0 ? 0x00 : i % 3 == 1 ? 0xff : 0x0f, 16);
      });
    case Format::int4:
      return extreme_source<BlockInt4>(format, rows, cols, [&](BlockInt4& b, size_t i) {
        b.d = f32_to_f16(i % 5 ? 1.0f : -1.0f);
        b.m = f32_to_f16(i % 4 == 0 ? 0.0f : i % 4 == 1 ? -16.0f : -7.0f);
        std::memset(b.qs, i % 3 == 0 ? 0x00 : i % 3 == 1 ? 0xff : 0x0f, 16);
      });
    case Format::q6_k:
      return extreme_source<BlockQ6K>(format, rows, cols, [&](BlockQ6K& b, size_t i) {
        b.d = one;
        std::memset(b.ql, i % 3 == 0 ? 0x00 : 0xff, sizeof b.ql);
        std::memset(b.qh, i % 3 == 1 ? 0xff : 0x00, sizeof b.qh);
        std::memset(b.scales, i % 2 ? 127 : -128, sizeof b.scales);
      });
    case Format::q5_0:
      return extreme_source<BlockQ5_0>(format, rows, cols, [&](BlockQ5_0& b, size_t i) {
        b.d = one;
        std::memset(b.qs, i % 3 == 0 ? 0x00 : 0xff, sizeof b.qs);
        std::memset(b.qh, i % 3 == 0 ? 0x00 : i % 3 == 1 ? 0xff : 0xaa, sizeof b.qh);
      });
    case Format::q5_1:
      return extreme_source<BlockQ5_1>(format, rows, cols, [&](BlockQ5_1& b, size_t i) {
        b.d = one;
        b.m = f32_to_f16(i % 2 ? -8.0f : 3.0f);
        std::memset(b.qs, i % 3 == 0 ? 0x00 : 0xff, sizeof b.qs);
        std::memset(b.qh, i % 3 == 0 ? 0x00 : i % 3 == 1 ? 0xff : 0x0f, sizeof b.qh);
      });
    case Format::q2_k:
      return extreme_source<BlockQ2K>(format, rows, cols, [&](BlockQ2K& b, size_t i) {
        b.d = b.dmin = one;
        std::memset(b.qs, i % 3 == 0 ? 0x00 : i % 3 == 1 ? 0xff : 0xc3, sizeof b.qs);
        std::memset(b.scales, i % 2 ? 0x1f : 0xff, sizeof b.scales);
      });
    case Format::q3_k:
      return extreme_source<BlockQ3K>(format, rows, cols, [&](BlockQ3K& b, size_t i) {
        b.d = one;
        std::memset(b.qs, i % 3 == 0 ? 0x00 : 0xff, sizeof b.qs);
        std::memset(b.hmask, i % 3 == 1 ? 0xff : 0x00, sizeof b.hmask);
        std::memset(b.scales, i % 2 ? 0xff : 0x00, sizeof b.scales);
      });
    case Format::q4_k:
      return extreme_source<BlockQ4K>(format, rows, cols, [&](BlockQ4K& b, size_t i) {
        b.d = b.dmin = one;
        std::memset(b.qs, i % 3 == 0 ? 0x00 : i % 3 == 1 ? 0xff : 0xf0, sizeof b.qs);
        fill_scale_mins(b.scales, i);
      });
    case Format::q5_k:
      return extreme_source<BlockQ5K>(format, rows, cols, [&](BlockQ5K& b, size_t i) {
        b.d = b.dmin = one;
        std::memset(b.qs, i % 3 == 0 ? 0x00 : 0xff, sizeof b.qs);
        std::memset(b.qh, i % 3 == 0 ? 0x00 : i % 3 == 1 ? 0xff : 0xaa, sizeof b.qh);
        fill_scale_mins(b.scales, i);
      });
    case Format::iq4_nl:
      return extreme_source<BlockIQ4NL>(format, rows, cols, [&](BlockIQ4NL& b, size_t i) {
        b.d = one;
        std::memset(b.qs, i % 3 == 0 ? 0x00 : i % 3 == 1 ? 0xff : 0xf0, sizeof b.qs);
      });
    case Format::f32:
    case Format::f16:
    case Format::bf16:
      break;
  }
  return random_source(format, rows, cols, 99);
}

Source random_source(const MatmulRow& row, int64_t rows, int64_t cols, uint32_t seed) {
  Source s = random_source(row.fmt, rows, cols, seed);
  quantize_decoded(s, row.makes);
  return s;
}

Source extreme_source(const MatmulRow& row, int64_t rows, int64_t cols) {
  if (row.makes == WeightQuant::none) return extreme_source(row.fmt, rows, cols);
  Source s = random_source(Format::f32, rows, cols, 1);
  for (int64_t i = 0; i < rows * cols; ++i) {
    const int64_t r = i / cols;
    s.decoded[static_cast<size_t>(i)] = r % 3 == 0   ? -1.0f
                                        : r % 3 == 1 ? 1.0f
                                        : i % 2      ? -1.0f
                                                     : 1.0f;
  }
  std::memcpy(s.bytes.data(), s.decoded.data(), s.bytes.size());
  quantize_decoded(s, row.makes);
  return s;
}

// This row and nothing else, with what it makes of weights.
PackOptions only(const MatmulRow* row) {
  static const LoadQuant kinds[] = {{WeightQuant::none, {}},
                                    {WeightQuant::w8a8, {}},
                                    {WeightQuant::w4, {}},
                                    {WeightQuant::u8, {}}};
  return {.table = {row, 1}, .quant = &kinds[static_cast<size_t>(row->makes)]};
}

bool takes_bf16(Arith arith) { return arith == Arith::bf16_tiles || arith == Arith::bf16_quads; }

// m rows of activations in all forms; f32 rows are `pad` elements further apart than cols.
struct Input {
  int64_t m, cols, stride;
  std::vector<float> x;
  std::vector<int8_t> q;
  std::vector<float> scale;
  std::vector<int32_t> sum;
  std::vector<int8_t> row_q;
  std::vector<float> row_scale;
  std::vector<int32_t> row_sum;

  Act act(int64_t first = 0, int64_t rows = -1) {
    if (rows < 0) rows = m;
    Act a;
    a.f = {x.data() + first * stride, DType::f32, rows, cols, stride};
    const int64_t blocks = cols / 32;
    a.q = {q.data() + first * cols, scale.data() + first * blocks, sum.data() + first * blocks,
           rows, cols};
    a.r = {row_q.data() + first * cols, row_scale.data() + first, row_sum.data() + first, rows,
           cols};
    return a;
  }
  double value(Arith arith, int64_t row, int64_t k) const {
    if (arith == Arith::f32_lanes16) return x[static_cast<size_t>(row * stride + k)];
    if (takes_bf16(arith)) {
      return bf16_to_f32(f32_to_bf16(x[static_cast<size_t>(row * stride + k)]));
    }
    if (arith == Arith::int_row)
      return double{row_scale[static_cast<size_t>(row)]} *
             row_q[static_cast<size_t>(row * cols + k)];
    return double{scale[static_cast<size_t>(row * (cols / 32) + k / 32)]} *
           q[static_cast<size_t>(row * cols + k)];
  }
};

Input make_input(int64_t m, int64_t cols, uint32_t seed, bool extreme = false) {
  Input in{m, cols, cols + 5, {}, {}, {}, {}, {}, {}, {}};
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.2f, 1.0f);
  in.x.resize(static_cast<size_t>(m * in.stride));
  for (size_t i = 0; i < in.x.size(); ++i) {
    in.x[i] = !extreme ? normal(rng) : i / 32 % 3 == 0 ? 127.0f : i % 2 ? -127.0f : 127.0f;
  }
  in.q.resize(static_cast<size_t>(m * cols));
  in.scale.resize(static_cast<size_t>(m * (cols / 32)));
  in.sum.resize(in.scale.size());
  in.row_q.resize(in.q.size());
  in.row_scale.resize(static_cast<size_t>(m));
  in.row_sum.resize(static_cast<size_t>(m));
  for (int64_t r = 0; r < m; ++r) {
    if (cols % 32 == 0) {
      quantize_whole_row(in.x.data() + r * in.stride, cols, in.row_q.data() + r * cols,
                         in.row_scale.data() + r, in.row_sum.data() + r);
    }
    quantize_row(in.x.data() + r * in.stride, cols / 32 * 32, in.q.data() + r * cols,
                 in.scale.data() + r * (cols / 32), in.sum.data() + r * (cols / 32));
  }
  return in;
}

std::vector<const MatmulRow*> usable_rows() {
  std::vector<const MatmulRow*> rows;
  for (const MatmulRow& row : matmul_rows()) {
    if (cpu_features().has(row.need)) rows.push_back(&row);
  }
  return rows;
}

std::vector<float> make_bias(int64_t rows) {
  std::vector<float> bias(static_cast<size_t>(rows));
  for (size_t i = 0; i < bias.size(); ++i) bias[i] = 0.25f * static_cast<float>(i % 7) - 0.5f;
  return bias;
}

// [m, stride] with stride = w.rows + 3; whatever is not written keeps the poison.
std::vector<float> multiply(ThreadPool& pool, const PackedWeight& w, const Act& x) {
  const int64_t stride = w.rows + 3;
  const int64_t m = x.f.rows;
  std::vector<float> out(static_cast<size_t>(m * stride), kPoison);
  MatmulScratch scratch;
  matmul(pool, Tensor{out.data(), DType::f32, m, w.rows, stride}, x, w, scratch);
  return out;
}

void expect_near_reference(const std::vector<float>& out,
                           const Source& w,
                           const Input& in,
                           Arith arith,
                           const std::vector<float>& bias) {
  const int64_t stride = w.info.rows + 3;
  for (int64_t m = 0; m < in.m; ++m) {
    for (int64_t n = 0; n < w.info.rows; ++n) {
      double sum = bias.empty() ? 0 : bias[static_cast<size_t>(n)];
      double size = std::fabs(sum);
      for (int64_t k = 0; k < in.cols; ++k) {
        const double v = w.decoded[static_cast<size_t>(n * in.cols + k)] * in.value(arith, m, k);
        sum += v;
        size += std::fabs(v);
      }
      ASSERT_NEAR(out[static_cast<size_t>(m * stride + n)], sum, 3e-6 * size + 1e-20)
          << "m " << m << " n " << n;
    }
    for (int64_t n = w.info.rows; n < stride; ++n) {
      ASSERT_EQ(out[static_cast<size_t>(m * stride + n)], kPoison) << "wrote past the row";
    }
  }
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<int64_t> columns_for(const MatmulRow& row) {
  if (format_info(row.fmt).block_elems == 256) return {256, 1536};
  if (row.arith == Arith::f32_lanes16) return {1, 16, 37, 576, 1536};
  if (takes_bf16(row.arith)) return {1, 16, 32, 37, 576, 1536};
  return {32, 96, 576, 1056, 1536};
}

TEST(Matmul, EveryRowAgreesWithTheReference) {
  ThreadPool pool(2, false);
  for (const MatmulRow* row : usable_rows()) {
    for (int64_t cols : columns_for(*row)) {
      for (int64_t n : {1, 15, 16, 17, 49, 130}) {
        if (n == 1 && row->makes != WeightQuant::none) continue;  // vectors are not quantised
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
}

TEST(Matmul, EveryRowGivesTheBitsOfTheScalarRow) {
  ThreadPool pool(1, false);
  for (const MatmulRow* row : usable_rows()) {
    const std::string scalar_name =
        std::string("scalar-") +
        std::string(row->name).substr(std::string(row->name).rfind('-') + 1);
    const MatmulRow* scalar = nullptr;
    for (const MatmulRow* r : usable_rows()) {
      if (r->name == scalar_name) scalar = r;
    }
    ASSERT_NE(scalar, nullptr) << row->name;
    if (takes_bf16(row->arith)) continue;  // an instruction's own arithmetic
    ASSERT_EQ(row->arith, scalar->arith) << row->name;
    for (int64_t cols : columns_for(*row)) {
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
}

TEST(Matmul, RowsOfABatchDoNotDependOnTheBatch) {
  ThreadPool pool(2, false);
  constexpr int64_t kMost = 40, kMany = 150;  // several passes of kernels that take 128 rows
  for (const MatmulRow* row : usable_rows()) {
    const int64_t cols = format_info(row->fmt).block_elems == 256 ? 512 : 224;
    const int64_t n = 16 * 7 + 9;
    const Source w = random_source(*row, n, cols, 5);
    const WeightSegment segment = w.segment();
    const PackedWeight packed = pack_weight(pool, {&segment, 1}, make_bias(n), only(row));
    Input in = make_input(kMany, cols, 21);
    std::vector<float> alone;
    for (int64_t m = 0; m < kMany; ++m) {
      const auto one = multiply(pool, packed, in.act(m, 1));
      alone.insert(alone.end(), one.begin(), one.end());
    }
    for (int64_t m = 2; m <= kMany; m += m < kMost ? 1 : 11) {
      const auto out = multiply(pool, packed, in.act(0, m));
      ASSERT_TRUE(same_bits(out, {alone.begin(), alone.begin() + static_cast<long>(out.size())}))
          << row->name << " M " << m;
    }
  }
}

// Longer rows than kernels take at once: sums are put down and taken up again.
TEST(Matmul, LongRowsOfABatchDoNotDependOnTheBatch) {
  ThreadPool pool(2, false);
  for (const MatmulRow* row : usable_rows()) {
    const bool super = format_info(row->fmt).block_elems == 256;
    for (int64_t cols :
         super ? std::vector<int64_t>{1280, 2304} : std::vector<int64_t>{1056, 2080}) {
      const Source w = random_source(*row, 41, cols, 5);
      const WeightSegment segment = w.segment();
      const PackedWeight packed = pack_weight(pool, {&segment, 1}, make_bias(41), only(row));
      Input in = make_input(70, cols, 21);
      std::vector<float> alone;
      for (int64_t m = 0; m < 70; ++m) {
        const auto one = multiply(pool, packed, in.act(m, 1));
        alone.insert(alone.end(), one.begin(), one.end());
      }
      for (int64_t m : {4, 9, 13, 17, 33, 70}) {
        const auto out = multiply(pool, packed, in.act(0, m));
        ASSERT_TRUE(same_bits(out, {alone.begin(), alone.begin() + static_cast<long>(out.size())}))
            << row->name << " K " << cols << " M " << m;
      }
    }
  }
}

// Kernels may write an output that is larger than the caches past them.
TEST(Matmul, LargeOutputs) {
  ThreadPool pool(2, false);
  constexpr int64_t kRows = 4119, kStride = 4128, kM = 519;
  const Buffer memory = allocate_pages(kM * kStride * sizeof(float));
  auto* out = static_cast<float*>(memory.data());
  for (const MatmulRow* row : usable_rows()) {
    if (row->arith != Arith::int_row) continue;
    const Source w = random_source(*row, kRows, 96, 7);
    const WeightSegment segment = w.segment();
    const PackedWeight packed = pack_weight(pool, {&segment, 1}, make_bias(kRows), only(row));
    Input in = make_input(kM, 96, 22);
    std::fill_n(out, kM * kStride, kPoison);
    MatmulScratch scratch;
    matmul(pool, Tensor{out, DType::f32, kM, kRows, kStride}, in.act(), packed, scratch);
    for (int64_t m = 0; m < kM; m += 7) {
      const auto alone = multiply(pool, packed, in.act(m, 1));
      ASSERT_TRUE(same_bits({out + m * kStride, out + m * kStride + kRows},
                            {alone.begin(), alone.begin() + kRows}))
          << row->name << " row " << m;
      EXPECT_EQ(out[m * kStride + kRows], kPoison) << row->name;
    }
  }
}

TEST(Matmul, ResultsDoNotDependOnThreads) {
  for (const MatmulRow* row : usable_rows()) {
    const int64_t cols = format_info(row->fmt).block_elems == 256 ? 256 : 96;
    const int64_t n = 16 * 21 + 5;
    const Source w = random_source(*row, n, cols, 6);
    const WeightSegment segment = w.segment();
    for (int64_t m : {1, 3, 100}) {
      Input in = make_input(m, cols, 31);
      std::vector<float> first;
      for (int threads : {1, 2, 3, 5}) {
        ThreadPool pool(threads, false);
        const PackedWeight packed = pack_weight(pool, {&segment, 1}, {}, only(row));
        const auto out = multiply(pool, packed, in.act());
        if (threads == 1) first = out;
        ASSERT_TRUE(same_bits(out, first)) << row->name << " threads " << threads << " M " << m;
      }
    }
  }
}

// What matmul_best computes in rooms of its own is what matmul puts out.
TEST(Matmul, BestOfEveryRowIsTheOutputs) {
  for (const MatmulRow* row : usable_rows()) {
    const int64_t cols = format_info(row->fmt).block_elems == 256 ? 256 : 96;
    const int64_t n = 16 * 21 + 5;
    const Source w = random_source(*row, n, cols, 7);
    const WeightSegment segment = w.segment();
    BestScratch scratch;
    for (int threads : {1, 3}) {
      ThreadPool pool(threads, false);
      const PackedWeight packed = pack_weight(pool, {&segment, 1}, make_bias(n), only(row));
      for (int64_t m : {1, 3, 100}) {
        Input in = make_input(m, cols, 32);
        const std::vector<float> out = multiply(pool, packed, in.act());
        std::vector<Best> best(static_cast<size_t>(m));
        matmul_best(pool, in.act(), packed, best, scratch);
        for (int64_t i = 0; i < m; ++i) {
          const Best want = better({}, out.data() + i * (n + 3), n);
          ASSERT_EQ(best[static_cast<size_t>(i)].at, want.at) << row->name << " M " << m;
          ASSERT_EQ(best[static_cast<size_t>(i)].value, want.value);
        }
      }
    }
  }
}

// Largest magnitudes on both sides: intermediate sums must not saturate.
TEST(Matmul, ExtremesAreExact) {
  ThreadPool pool(2, false);
  for (const MatmulRow* row : usable_rows()) {
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
}

// The longest rows of w8a8 with the largest products: the sum just fits 32 bits.
TEST(Matmul, LongestRowsDoNotOverflow) {
  ThreadPool pool(2, false);
  for (const MatmulRow* row : usable_rows()) {
    if (row->makes != WeightQuant::w8a8) continue;
    Source w = random_source(Format::f32, 17, kMaxW8Cols, 1);
    std::fill(w.decoded.begin(), w.decoded.end(), 1.0f);
    std::memcpy(w.bytes.data(), w.decoded.data(), w.bytes.size());
    const WeightSegment segment = w.segment();
    const PackedWeight packed = pack_weight(pool, {&segment, 1}, {}, only(row));
    for (int64_t m : {3, 5, 20}) {
      for (float sign : {1.0f, -1.0f}) {
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
  EXPECT_EQ(w.act, kActRow8 | kActQ8);
  EXPECT_FALSE(w.keeps_source && cpu_features().bits != 0);
  quantize_decoded(parts[0], WeightQuant::w8a8);
  quantize_decoded(parts[2], WeightQuant::w8a8);
  Input in = make_input(5, cols, 77);
  const std::vector<float> out = multiply(pool, w, in.act());
  std::vector<float> decoded(static_cast<size_t>(cols));
  int64_t row = 0;
  for (const Source& s : parts) {
    const Arith arith = &s == &parts[1] ? Arith::int_block32 : Arith::int_row;
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

// w4 is what the format's own encoder gives.
TEST(Matmul, FourBitsAtLoad) {
  ThreadPool pool(2, false);
  const Source w = random_source(Format::f32, 50, 192, 2);
  const WeightSegment segment = w.segment();
  const LoadQuant quant{WeightQuant::w4, {}};
  Source four = w;
  four.info.format = kW4Format;
  four.bytes.resize(row_bytes(kW4Format, 192) * 50);
  format_info(kW4Format).encode(w.decoded.data(), four.bytes.data(), 50 * 192);
  const WeightSegment own = four.segment();
  for (const MatmulRow* row : usable_rows()) {
    if (row->fmt != kW4Format) continue;
    const PackedWeight made =
        pack_weight(pool, {&segment, 1}, make_bias(50), {.table = {row, 1}, .quant = &quant});
    EXPECT_FALSE(made.keeps_source);
    const PackedWeight want = pack_weight(pool, {&own, 1}, make_bias(50), {.table = {row, 1}});
    Input in = make_input(9, 192, 5);
    EXPECT_TRUE(same_bits(multiply(pool, made, in.act()), multiply(pool, want, in.act())))
        << row->name;
  }
}

TEST(Matmul, RowsDecodeExactlyFromThePackedForm) {
  ThreadPool pool(2, false);
  for (const MatmulRow* row : usable_rows()) {
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
  EXPECT_EQ(w.act, kActF32 | kActQ8);
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
}

TEST(Matmul, ScalarRowsFitEveryFormat) {
  for (int f = 0; f < kNumFormats; ++f) {
    const auto format = static_cast<Format>(f);
    bool found = false;
    for (const MatmulRow& row : matmul_rows())
      found |= row.fmt == format && row.need == 0 && row.makes == WeightQuant::none;
    EXPECT_TRUE(found) << format_info(format).name;
  }
  for (WeightQuant kind : {WeightQuant::w8a8, WeightQuant::u8}) {
    bool found = false;
    for (const MatmulRow& row : matmul_rows()) found |= row.makes == kind && row.need == 0;
    EXPECT_TRUE(found) << static_cast<int>(kind);
  }
}

TEST(Features, OverrideOnlyLowers) {
  constexpr uint64_t kAvx512 = kCpuAvx2 | kCpuAvx512 | kCpuAvx512Vnni | kCpuAvx512Bf16;
  constexpr uint64_t kAmx = kAvx512 | kCpuAmxInt8 | kCpuAmxBf16;
  const CpuFeatures all{kAmx | kCpuNeonDot | kCpuI8mm | kCpuBf16};
  EXPECT_EQ(limit_features(all, "").bits, all.bits);
  EXPECT_EQ(limit_features(all, "scalar").bits, 0u);
  EXPECT_EQ(limit_features(all, "avx2").bits, uint64_t{kCpuAvx2});
  EXPECT_EQ(limit_features(all, "avx512").bits, kAvx512);
  EXPECT_EQ(limit_features(all, "amx").bits, kAmx);
  EXPECT_EQ(limit_features(all, "neon").bits, uint64_t{kCpuNeonDot});
  EXPECT_EQ(limit_features({kCpuAvx2}, "avx512").bits, uint64_t{kCpuAvx2});
  EXPECT_STREQ(isa_name({kCpuAvx2}), "avx2");
  EXPECT_STREQ(isa_name({kAvx512}), "avx512-vnni");
  EXPECT_STREQ(isa_name({kAmx}), "amx");
}

}  // namespace
}  // namespace sluice
