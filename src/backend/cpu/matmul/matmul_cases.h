// Cases for tests of the matmul: weights of every format, random and extreme; inputs in every form;
// the reference product and its tolerance.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/features.h"
#include "backend/cpu/matmul/matmul.h"
#include "backend/cpu/quantize.h"
#include "tensor/formats/all.h"
#include "tensor/formats/int4.h"
#include "tensor/formats/iq4_nl.h"
#include "tensor/formats/mxfp4.h"
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

inline constexpr float kPoison = 12345.678f;

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

inline Source random_source(Format format, int64_t rows, int64_t cols, uint32_t seed) {
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
inline void quantize_decoded(Source& s, WeightQuant kind) {
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

inline void fill_scale_mins(uint8_t* bytes, size_t i) {
  ScaleMin s[8];
  for (int g = 0; g < 8; ++g) s[g] = {(g + static_cast<int>(i)) % 3 ? 63 : 1, g % 2 ? 63 : 2};
  put_scale_mins(s, bytes);
}

inline Source extreme_source(Format format, int64_t rows, int64_t cols) {
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
    case Format::mxfp4:
      return extreme_source<BlockMXFP4>(format, rows, cols, [&](BlockMXFP4& b, size_t i) {
        b.e = 128;
        std::memset(b.qs, i % 3 == 0 ? 0x77 : i % 3 == 1 ? 0xff : 0xf7, sizeof b.qs);
      });
    default:  // floats, and formats that have no kernel of their own yet
      break;
  }
  return random_source(format, rows, cols, 99);
}

inline Source random_source(const MatmulRow& row, int64_t rows, int64_t cols, uint32_t seed) {
  Source s = random_source(row.fmt, rows, cols, seed);
  quantize_decoded(s, row.makes);
  return s;
}

inline Source extreme_source(const MatmulRow& row, int64_t rows, int64_t cols) {
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
inline PackOptions only(const MatmulRow* row) {
  static const LoadQuant kinds[] = {{WeightQuant::none, {}},
                                    {WeightQuant::w8a8, {}},
                                    {WeightQuant::w4, {}},
                                    {WeightQuant::u8, {}}};
  return {.table = {row, 1}, .quant = &kinds[static_cast<size_t>(row->makes)]};
}

inline bool takes_bf16(Arith arith) {
  return arith == Arith::bf16_tiles || arith == Arith::bf16_quads;
}

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
  std::vector<int8_t> super_q;  // none where cols is no multiple of 256
  std::vector<float> super_scale;
  std::vector<int16_t> sum16;

  Act act(int64_t first = 0, int64_t rows = -1) {
    if (rows < 0) rows = m;
    Act a;
    a.f = {x.data() + first * stride, DType::f32, rows, cols, stride};
    const int64_t blocks = cols / 32;
    a.q = {q.data() + first * cols, scale.data() + first * blocks, sum.data() + first * blocks,
           rows, cols};
    a.r = {row_q.data() + first * cols, row_scale.data() + first, row_sum.data() + first, rows,
           cols};
    if (!super_q.empty()) {
      a.s = {super_q.data() + first * cols, super_scale.data() + first * (cols / kActSuper),
             sum16.data() + first * (cols / kActSum), rows, cols};
    }
    return a;
  }
  double value(Arith arith, int64_t row, int64_t k) const {
    if (arith == Arith::f32_lanes16) return x[static_cast<size_t>(row * stride + k)];
    if (takes_bf16(arith)) {
      return bf16_to_f32(f32_to_bf16(x[static_cast<size_t>(row * stride + k)]));
    }
    if (arith == Arith::int_super)
      return double{super_scale[static_cast<size_t>((row * cols + k) / kActSuper)]} *
             super_q[static_cast<size_t>(row * cols + k)];
    if (arith == Arith::int_row)
      return double{row_scale[static_cast<size_t>(row)]} *
             row_q[static_cast<size_t>(row * cols + k)];
    return double{scale[static_cast<size_t>(row * (cols / 32) + k / 32)]} *
           q[static_cast<size_t>(row * cols + k)];
  }
};

inline Input make_input(int64_t m, int64_t cols, uint32_t seed, bool extreme = false) {
  Input in{m, cols, cols + 5, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}};
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
  if (cols % kActSuper == 0) {
    in.super_q.resize(in.q.size());
    in.super_scale.resize(in.q.size() / kActSuper);
    in.sum16.resize(in.q.size() / kActSum);
  }
  for (int64_t r = 0; r < m; ++r) {
    if (cols % kActSuper == 0) {
      quantize_supers(in.x.data() + r * in.stride, cols, in.super_q.data() + r * cols,
                      in.super_scale.data() + r * (cols / kActSuper),
                      in.sum16.data() + r * (cols / kActSum));
    }
    if (cols % 32 == 0) {
      quantize_whole_row(in.x.data() + r * in.stride, cols, in.row_q.data() + r * cols,
                         in.row_scale.data() + r, in.row_sum.data() + r);
    }
    quantize_row(in.x.data() + r * in.stride, cols / 32 * 32, in.q.data() + r * cols,
                 in.scale.data() + r * (cols / 32), in.sum.data() + r * (cols / 32));
  }
  return in;
}

inline std::vector<const MatmulRow*> usable_rows() {
  std::vector<const MatmulRow*> rows;
  for (const MatmulRow& row : matmul_rows()) {
    if (cpu_features().has(row.need)) rows.push_back(&row);
  }
  return rows;
}

// A test of one row of the kernel table. One row alone: --gtest_filter='*/neon_q4_0'.
class MatmulRowTest : public testing::TestWithParam<const MatmulRow*> {
 protected:
  // For TestSlice: a slice takes different cases of different rows.
  uint64_t row_index() const { return static_cast<uint64_t>(GetParam() - matmul_rows().data()); }
};

// The parameters of such tests: the rows that this CPU can run and `keep` accepts.
template <typename Keep>
std::vector<const MatmulRow*> usable_rows(Keep keep) {
  std::vector<const MatmulRow*> rows = usable_rows();
  std::erase_if(rows, [&](const MatmulRow* row) { return !keep(*row); });
  return rows;
}

// "neon-q4_0" as gtest allows it: neon_q4_0.
inline std::string row_test_name(const testing::TestParamInfo<const MatmulRow*>& info) {
  std::string name = info.param->name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

inline std::vector<float> make_bias(int64_t rows) {
  std::vector<float> bias(static_cast<size_t>(rows));
  for (size_t i = 0; i < bias.size(); ++i) bias[i] = 0.25f * static_cast<float>(i % 7) - 0.5f;
  return bias;
}

// [m, stride] with stride = w.rows + 3; whatever is not written keeps the poison.
inline std::vector<float> multiply(ThreadPool& pool, const PackedWeight& w, const Act& x) {
  const int64_t stride = w.rows + 3;
  const int64_t m = x.f.rows;
  std::vector<float> out(static_cast<size_t>(m * stride), kPoison);
  MatmulScratch scratch;
  matmul(pool, Tensor{out.data(), DType::f32, m, w.rows, stride}, x, w, scratch);
  return out;
}

inline void expect_near_reference(const std::vector<float>& out,
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

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline std::vector<int64_t> columns_for(const MatmulRow& row) {
  if (format_info(row.fmt).block_elems == 256) return {256, 1536};
  if (row.arith == Arith::f32_lanes16) return {1, 16, 37, 576, 1536};
  if (takes_bf16(row.arith)) return {1, 16, 32, 37, 576, 1536};
  return {32, 96, 576, 1056, 1536};
}

}  // namespace sluice
