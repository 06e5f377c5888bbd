// Scores and outputs of a tile whose K and V are int8 codes (see KvType), in integer products.
//
// A query becomes 16-bit codes with one unit per (query, head): 2^-16 of its largest element is
// what rounding costs. A score is then an exact int32 sum per group of dimensions, times that
// group's scale of K. A tile's weights are multiplied by the scales of V, per group of dimensions,
// and become 16-bit codes of the largest scale that the row sees in the tile: the output is an
// exact int32 sum over the tile's positions. Exact sums have no order, so that every vector ISA,
// and any rows that share a tile, give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backend/cpu/attention.h"
#include "backend/cpu/attention_fetch_inl.h"
#include "backend/cpu/attention_tile_inl.h"

namespace sluice {

// The part of a tile some rows see, as pointers to its groups of sixteen positions.
struct CodeTile {
  const int8_t* k[kTile / 16];          // rows of [16 positions, 4 dimensions], k_stride apart
  const int8_t* v[kTile / 16];          // [4, head_dim, 4 positions]
  const uint16_t* k_scale[kTile / 16];  // rows of [16 positions], scale_stride apart
  const uint16_t* v_scale[kTile / 16];
  int64_t k_stride, scale_stride;
  int dim, group_shift, num_groups;  // dimensions per scale as a power of two
};

template <typename V>
struct Codes {
  using F = typename V::F;
  using I = typename V::I;
  using Quads = typename V::Quads;
  using Place = typename Tiles<V>::Place;

  static constexpr float kMost = 127 * 256 + 127;  // a 16-bit code as two signed bytes
  static constexpr int kRows = V::kCodeRows;       // of a register block
  // Vectors per row that a block of R rows can keep in registers.
  static constexpr int vectors(int r) {
    int n = V::kCodeAccumulators / r;
    return n >= 4 ? 4 : n >= 2 ? 2 : 1;
  }

  // Keys, or values, where they lie or (blocks of eight positions) put together in `tile`.
  static CodeTile key_view(const Place& at, int64_t base, int lo, int hi, float* tile) {
    CodeTile t = shape(at);
    if (at.block_size() < 16) return gather_keys(t, at, base, lo, hi, tile);
    t.k_stride = 4 * at.block_size();
    t.scale_stride = at.block_size();
    for (int g = lo / 16; g < (hi + 15) / 16; ++g) {
      t.k[g] = at.key_codes(base + 16 * g);
      t.k_scale[g] = at.key_scales(base + 16 * g);
    }
    return t;
  }
  static CodeTile value_view(const Place& at, int64_t base, int lo, int hi, float* tile) {
    CodeTile t = shape(at);
    if (at.block_size() < 16) return gather_values(t, at, base, lo, hi, tile);
    t.scale_stride = at.block_size();
    for (int g = lo / 16; g < (hi + 15) / 16; ++g) {
      t.v[g] = at.value_codes(base + 16 * g);
      t.v_scale[g] = at.value_scales(base + 16 * g);
    }
    return t;
  }

  // A row of coded queries: [dim16 / 4] quads of codes, [groups] what sums start from, the unit;
  // as long as a row of dim16 floats.
  struct QueryRow {
    uint64_t* codes;
    int32_t* start;
    float* unit;
    QueryRow(float* q, int dim, int num_groups)
        : codes(reinterpret_cast<uint64_t*>(q)),
          start(reinterpret_cast<int32_t*>(codes + padded16(dim) / 4)),
          unit(reinterpret_cast<float*>(start + num_groups)) {}
  };

  static void load_queries(const AttendJob& job, float* q) {
    int dim = job.kv.head_dim;
    for (int r = 0; r < job.num_rows(); ++r) {
      const float* x = job.q + r / job.num_heads * job.q_stride + r % job.num_heads * dim;
      load_query(x, dim, job.kv.group, job.scale,
                 QueryRow(q + r * padded16(dim), dim, dim / job.kv.group));
    }
  }

  static F load(const float* x, int num) { return num >= 16 ? V::load(x) : V::load_n(x, num); }

  static void load_query(const float* x, int dim, int group, float scale, QueryRow to) {
    const F zero = V::set(0), magic = V::set(12582912.0F);  // 1.5 * 2^23: rounds to an integer
    F top = zero, poison = zero;
    for (int d = 0; d < dim; d += 16) {
      F y = load(x + d, dim - d);
      F a = V::if_less(y, zero, V::sub(zero, y), y);
      top = V::if_less(top, a, a, top);
      poison = V::add(poison, V::sub(y, y));
    }
    float most = V::top(top);
    if (most < 0x1p-100F) most = 0x1p-100F;
    *to.unit = (most / kMost + V::sum(poison)) * scale;  // what is no finite number stays seen
    const F inverse = V::set(kMost / most);
    F sum = zero;
    for (int d = 0; d < dim; d += 16) {
      F y = V::sub(V::add(V::mul(load(x + d, dim - d), inverse), magic), magic);
      V::pack_query(to.codes + d / 4, y);
      if (group == 8) {
        to.start[d / 8] = start(V::sum(V::in_range(y, 0, 8, zero)));
        if (d + 8 < dim) to.start[d / 8 + 1] = start(V::sum(V::in_range(y, 8, 16, zero)));
      } else {
        sum = V::add(sum, y);
        if ((d + 16) % group != 0) continue;
        to.start[d / group] = start(V::sum(sum));
        sum = zero;
      }
    }
  }

  // s[r * kTile + 16 p + lane] = q[r] · k, P groups of positions from `first` on
  template <int R, int P>
  static void score_block(float* q, const CodeTile& tile, int first, float* s, Fetch<V>& fetch) {
    const int q_stride = padded16(tile.dim);
    F total[R][P];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) total[r][p] = V::set(0);
    }
    const QueryRow rows(q, tile.dim, tile.num_groups);
    const int8_t* k[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) k[p] = tile.k[first + p];
    const uint64_t* w = rows.codes;
    int64_t at = 0;
    for (int group = 0; group < tile.num_groups; ++group) {
      I acc[R][P];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        I from = V::start(rows.start[r * q_stride + group]);
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) acc[r][p] = from;
      }
      for (int i = 0; i < 1 << (tile.group_shift - 2); ++i, ++w, at += tile.k_stride) {
        Quads x[P];
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) x[p] = V::load_keys(k[p] + at);
        fetch.pace(R * P);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
          for (int p = 0; p < P; ++p) V::dot_keys(acc[r][p], x[p], w + r * q_stride / 2);
        }
      }
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        F scale = V::load(tile.k_scale[first + p] + group * tile.scale_stride);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
          total[r][p] = V::fma(V::to_float(acc[r][p]), scale, total[r][p]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      F unit = V::set(rows.unit[r * q_stride]);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        V::store(s + r * kTile + 16 * (first + p), V::mul(total[r][p], unit));
      }
    }
  }

  // Groups [first, end) of sixteen positions.
  template <int R>
  static void score_rows(
      float* q, const CodeTile& tile, int first, int end, float* s, Fetch<V>& fetch) {
    constexpr int P = vectors(R);
    for (; first + P <= end; first += P) score_block<R, P>(q, tile, first, s, fetch);
    if constexpr (P > 2) {
      for (; first + 2 <= end; first += 2) score_block<R, 2>(q, tile, first, s, fetch);
    }
    if constexpr (P > 1) {
      for (; first < end; ++first) score_block<R, 1>(q, tile, first, s, fetch);
    }
  }

  // What a block of rows adds to its outputs.
  struct OutputRows {
    const float* p;            // [R, kTile] weights
    const int *lo, *hi;        // [R] what they see
    const float *old, *add;    // [R] o = o * old + add * sum
    float* o;                  // [R, dim16]
    int first_quad, end_quad;  // of positions that any sees
  };
  // Weights times scales of V of one group of dimensions, as codes.
  template <int R>
  struct Weights {
    alignas(64) uint64_t codes[R][kTile / 4];
    float unit[R];
  };

  static constexpr int kWeighWork = 14;  // of a row and group, where a quad and vector are 1

  template <int R>
  static void weigh(
      const OutputRows& rows, const CodeTile& tile, int group, Weights<R>& to, Fetch<V>& fetch) {
    F factor[kTile / 16];
    float unit = 0;
    for (int r = 0; r < R; ++r) {
      if (r == 0 || rows.lo[r] != rows.lo[r - 1] || rows.hi[r] != rows.hi[r - 1]) {
        unit = weight_factors(tile, group, rows.lo[r], rows.hi[r], factor);
      }
      to.unit[r] = unit;
      fetch.pace(kWeighWork);
#pragma GCC unroll 4
      for (int i = 0; i < kTile / 16; ++i) {
        V::pack_weights(to.codes[r] + 4 * i,
                        V::mul(V::load(rows.p + r * kTile + 16 * i), factor[i]));
      }
    }
  }

  // factor = scale / unit where [lo, hi), 0 elsewhere; unit is returned, not a number where a scale
  // is none.
  static float weight_factors(const CodeTile& tile, int group, int lo, int hi, F* factor) {
    const F zero = V::set(0);
    F top = zero, poison = zero;
    const bool all = lo <= 0 && hi >= kTile;
    for (int i = 0; i < kTile / 16; ++i) {
      if (all) {
        factor[i] = V::load(tile.v_scale[i] + group * tile.scale_stride);
        top = V::max(factor[i], top);
        poison = V::add(poison, V::sub(factor[i], factor[i]));
        continue;
      }
      factor[i] = zero;
      if (16 * i >= hi || 16 * i + 16 <= lo) continue;
      F s = V::load(tile.v_scale[i] + group * tile.scale_stride);
      factor[i] = V::in_range(s, lo - 16 * i, hi - 16 * i, zero);
      top = V::max(factor[i], top);
      poison = V::add(poison, V::sub(factor[i], factor[i]));
    }
    float most = V::top(top);
    if (!(most > 0)) most = 1;
    const F inverse = V::set(kMost / most);
    for (int i = 0; i < kTile / 16; ++i) factor[i] = V::mul(factor[i], inverse);
    return most / kMost + V::sum(poison);
  }

  // C vectors of dimensions from `at` on. With `high`, lanes from 8 on have weights of their own.
  template <int R, int C>
  static void output_block(const OutputRows& rows,
                           const CodeTile& tile,
                           const Weights<R>& low,
                           const Weights<R>* high,
                           int at,
                           Fetch<V>& fetch) {
    I acc[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) acc[r][c] = V::start(0);
    }
    const int64_t stride = 4 * tile.dim;
    for (int quad = rows.first_quad; quad < rows.end_quad;) {
      const int end = (quad | 3) + 1 < rows.end_quad ? (quad | 3) + 1 : rows.end_quad;
      const int64_t first = (quad & 3) * stride + 4 * at;
      const int8_t* v = tile.v[quad >> 2] + first;
      fetch.pace(R * C * (end - quad));
      for (; quad < end; ++quad, v += stride) {
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
          Quads x = V::load_values(v + 64 * c);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) {
            const uint64_t* w = &low.codes[r][quad];
            V::dot_values(acc[r][c], x, w, C == 1 && high ? &high->codes[r][quad] : w);
          }
        }
      }
    }
    const int dim16 = padded16(tile.dim);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      if (rows.add[r] == 0 && rows.old[r] == 1) continue;
      F old = V::set(rows.old[r]), add = V::set(rows.add[r]);
      F unit = high ? V::set2(low.unit[r], high->unit[r]) : V::set(low.unit[r]);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        float* y = rows.o + r * dim16 + at + 16 * c;
        F sum = V::mul(V::to_float(acc[r][c]), unit);  // rounded as if it were stored as a state
        V::store(y, V::fma(sum, add, V::mul(V::load(y), old)));
      }
    }
  }

  template <int R>
  static void output_rows(const OutputRows& rows, const CodeTile& tile, Fetch<V>& fetch) {
    constexpr int C = vectors(R) >= 2 ? 2 : 1;
    Weights<R> low;
    if (tile.group_shift > 3) {
      for (int group = 0, at = 0; group < tile.num_groups; ++group) {
        weigh(rows, tile, group, low, fetch);
        for (int end = (group + 1) << tile.group_shift; at < end; at += 16 * C) {
          output_block<R, C>(rows, tile, low, nullptr, at, fetch);
        }
      }
      return;
    }
    Weights<R> high;
    for (int group = 0; group < tile.num_groups; group += 2) {
      weigh(rows, tile, group, low, fetch);
      if (group + 1 < tile.num_groups) {
        weigh(rows, tile, group + 1, high, fetch);
      } else {
        high = {};
      }
      output_block<R, 1>(rows, tile, low, &high, 8 * group, fetch);
    }
  }

 private:
  static int32_t start(float sum) {
    const bool number = sum > -0x1p24F && sum < 0x1p24F;
    return number ? -V::kKeyShift * static_cast<int32_t>(sum) : 0;
  }

  static CodeTile gather_keys(
      CodeTile t, const Place& at, int64_t base, int lo, int hi, float* tile) {
    t.k_stride = 4 * kTile;
    t.scale_stride = kTile;
    auto* k = reinterpret_cast<int8_t*>(tile);
    auto* scale = reinterpret_cast<uint16_t*>(k + kTile * kMaxHeadDim);
    for (int g = 0; g < kTile / 16; ++g) {
      t.k[g] = k + 64 * g;
      t.k_scale[g] = scale + 16 * g;
    }
    for (int j = lo & ~7; j < hi; j += 8) {
      const int8_t* keys = at.key_codes(base + j);
      for (int d = 0; d < at.dim; d += 4) std::memcpy(k + d * kTile + 4 * j, keys + 8 * d, 32);
      for (int i = 0; i < at.num_groups; ++i)
        std::memcpy(scale + i * kTile + j, at.key_scales(base + j) + 8 * i, 16);
    }
    return t;
  }
  static CodeTile gather_values(
      CodeTile t, const Place& at, int64_t base, int lo, int hi, float* tile) {
    t.scale_stride = kTile;
    auto* v = reinterpret_cast<int8_t*>(tile);
    auto* scale = reinterpret_cast<uint16_t*>(v + kTile * kMaxHeadDim);
    for (int g = 0; g < kTile / 16; ++g) {
      t.v[g] = v + 16 * g * at.dim;
      t.v_scale[g] = scale + 16 * g;
    }
    for (int j = lo & ~7; j < hi; j += 8) {
      std::memcpy(v + j * at.dim, at.value_codes(base + j), static_cast<size_t>(8 * at.dim));
      for (int i = 0; i < at.num_groups; ++i)
        std::memcpy(scale + i * kTile + j, at.value_scales(base + j) + 8 * i, 16);
    }
    return t;
  }

  static CodeTile shape(const Place& at) {
    CodeTile t{};
    t.dim = at.dim;
    t.group_shift = at.group_shift;
    t.num_groups = at.num_groups;
    return t;
  }
};

}  // namespace sluice
