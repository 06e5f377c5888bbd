// The attention kernel over sixteen lanes; see attention.h for what it must keep fixed.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>

#include "backend/cpu/attention.h"
#include "backend/cpu/attention_codes_inl.h"
#include "backend/cpu/attention_fetch_inl.h"
#include "backend/cpu/attention_tile_inl.h"
#include "backend/cpu/vector_math_inl.h"

namespace sluice {

// Rows of a job and what they see of a tile.
struct TileRows {
  int num = 0;
  int lo[kMaxAttendRows], hi[kMaxAttendRows];  // [lo, hi) inside the tile, empty when lo >= hi
};

template <typename V>
struct Attention {
  using F = typename V::F;
  using Read = Tiles<V>;
  using Place = typename Read::Place;
  static constexpr float kNone = -INFINITY;
  static constexpr int kSoftenWork = 28;  // of a row, where four dimensions and 16 positions are 1

  // Vectors per row that a block of R rows can keep in registers.
  static constexpr int vectors(int r) {
    int n = V::kAccumulators / r;
    return n >= 4 ? 4 : n >= 2 ? 2 : 1;
  }

  // m, l per row, padded so that sixteen rows at a time are one vector.
  struct Sums {
    float m[kMaxAttendRows], l[kMaxAttendRows];
    void clear(int rows) {
      for (int i = 0; i < rows; i += 16) {
        V::store(m + i, V::set(kNone));
        V::store(l + i, V::set(0));
      }
    }
  };
  struct Factors {
    float old[kMaxAttendRows], add[kMaxAttendRows];
  };

  // s[r * kTile + 16 p + lane] = q[r] · k, P groups starting at `group`
  template <int R, int P, typename T>
  static void score_block(
      const float* q, int q_stride, const TileView<T>& tile, int group, int dim, float* s) {
    F acc[R][P];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) acc[r][p] = V::set(0);
    }
    const T *k[P], *next[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      k[p] = tile.k[group + p];
      next[p] = tile.next_k[group + p];
    }
    for (int d = 0; d < dim; ++d) {
      F x[P];
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) x[p] = V::load(k[p] + d * tile.k_stride);
      if constexpr (Read::template fetches<T>) {
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) V::prefetch(next[p] + d * tile.k_stride);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        F y = V::set(q[r * q_stride + d]);
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) acc[r][p] = V::fma(y, x[p], acc[r][p]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) V::store(s + r * kTile + 16 * (group + p), acc[r][p]);
    }
  }

  template <int R, typename T>
  static void score_rows(const float* q,
                         int q_stride,
                         const TileView<T>& tile,
                         int first_group,
                         int end_group,
                         int dim,
                         float* s) {
    constexpr int P = vectors(R);
    int g = first_group;
    for (; g + P <= end_group; g += P) score_block<R, P>(q, q_stride, tile, g, dim, s);
    if constexpr (P > 2) {
      for (; g + 2 <= end_group; g += 2) score_block<R, 2>(q, q_stride, tile, g, dim, s);
    }
    if constexpr (P > 1) {
      for (; g < end_group; ++g) score_block<R, 1>(q, q_stride, tile, g, dim, s);
    }
  }

  // The largest score that a row sees of this tile. Where it does not see all of it, or scores are
  // capped, s has afterwards what the weights are to be made of.
  static float largest(float* s, int lo, int hi, float softcap) {
    const F none = V::set(kNone);
    F x[4];
    for (int i = 0; i < 4; ++i) x[i] = V::load(s + 16 * i);
    if (softcap > 0) {
      const F cap = V::set(softcap), inverse = V::set(1.0F / softcap);
      for (int i = 0; i < 4; ++i) x[i] = vector_softcap<V>(x[i], cap, inverse);
    }
    if (lo > 0 || hi < kTile) {
      for (int i = 0; i < 4; ++i) x[i] = V::in_range(x[i], lo - 16 * i, hi - 16 * i, none);
    }
    if (softcap > 0 || lo > 0 || hi < kTile) {
      for (int i = 0; i < 4; ++i) V::store(s + 16 * i, x[i]);
    }
    return V::top(V::max(V::max(x[0], x[1]), V::max(x[2], x[3])));
  }

  // Scores of rows to weights relative to each row's own maximum in this tile. All maxima
  // come first: a row's maximum, its weights and their sum are one long chain of instructions, and
  // the processor does not look far enough ahead to have many of them under way.
  // meanwhile(r) is called once per row.
  template <typename Meanwhile>
  static void soften(
      float* s, const TileRows& rows, float softcap, Sums& part, Meanwhile meanwhile) {
    for (int r = 0; r < rows.num; ++r) {
      part.m[r] =
          rows.lo[r] < rows.hi[r] ? largest(s + r * kTile, rows.lo[r], rows.hi[r], softcap) : kNone;
    }
    for (int r = 0; r < rows.num; ++r, s += kTile) {
      meanwhile(r);
      if (rows.lo[r] >= rows.hi[r]) {
        part.l[r] = 0;
        for (int i = 0; i < kTile; i += 16) V::store(s + i, V::set(0));
        continue;
      }
      const F top = V::set(part.m[r]);
      F x[4];
      for (int i = 0; i < 4; ++i) {
        x[i] = vector_exp_negative<V>(V::sub(V::load(s + 16 * i), top));
        V::store(s + 16 * i, x[i]);
      }
      part.l[r] = V::sum(V::add(V::add(x[0], x[1]), V::add(x[2], x[3])));
    }
  }

  // into ← into ⊕ part for every row, leaving in f what the outputs are multiplied by. Rows without
  // a part keep theirs.
  static void merge_sums(Sums& into, const Sums& part, int rows, Factors& f) {
    const F none = V::set(kNone), one = V::set(1), zero = V::set(0);
    for (int i = 0; i < rows; i += 16) {
      F m = V::load(into.m + i), pm = V::load(part.m + i);
      F top = V::max(m, pm);
      F old = V::if_less(none, pm, vector_exp_negative<V>(V::sub(m, top)), one);
      F add = V::if_less(none, pm, vector_exp_negative<V>(V::sub(pm, top)), zero);
      F l = V::fma(V::load(part.l + i), add, V::mul(V::load(into.l + i), old));
      V::store(into.m + i, top);
      V::store(into.l + i, l);
      V::store(f.old + i, old);
      V::store(f.add + i, add);
    }
  }

  // o[r] = o[r] * old[r] + add[r] * Σ p[r][j] v[j] over j in [lo, hi), C vectors of dimensions
  template <int R, int C, typename T>
  static void output_block(const float* p,
                           const TileView<T>& tile,
                           int lo,
                           int hi,
                           const float* old,
                           const float* add,
                           float* o,
                           int o_stride,
                           int at) {
    F acc[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) acc[r][c] = V::set(0);
    }
    for (int j = lo; j < hi;) {
      int end = (j | 15) + 1 < hi ? (j | 15) + 1 : hi;
      const T* v = tile.v[j / 16] + (j % 16) * tile.v_stride + at;
      const T* next = tile.next_v[j / 16] + (j % 16) * tile.v_stride + at;
      for (; j < end; ++j, v += tile.v_stride, next += tile.v_stride) {
        if constexpr (Read::template fetches<T>) {
#pragma GCC unroll 8
          for (int c = 0; c < C; c += 4 / sizeof(T)) V::prefetch(next + 16 * c);
        }
        F x[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) x[c] = V::load(v + 16 * c);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          F w = V::set(p[r * kTile + j]);
#pragma GCC unroll 8
          for (int c = 0; c < C; ++c) acc[r][c] = V::fma(w, x[c], acc[r][c]);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      if (add[r] == 0 && old[r] == 1) continue;
      F a = V::set(old[r]), b = V::set(add[r]);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        float* y = o + r * o_stride + at + 16 * c;
        V::store(y, V::fma(acc[r][c], b, V::mul(V::load(y), a)));
      }
    }
  }

  template <int R, typename T>
  static void output_rows(const float* p,
                          const TileView<T>& tile,
                          int lo,
                          int hi,
                          const float* old,
                          const float* add,
                          float* o,
                          int o_stride,
                          int at,
                          int end) {
    constexpr int C = vectors(R);
    for (; at + 16 * C <= end; at += 16 * C) {
      output_block<R, C>(p, tile, lo, hi, old, add, o, o_stride, at);
    }
    if constexpr (C > 2) {
      for (; at + 32 <= end; at += 32) {
        output_block<R, 2>(p, tile, lo, hi, old, add, o, o_stride, at);
      }
    }
    if constexpr (C > 1) {
      for (; at < end; at += 16) output_block<R, 1>(p, tile, lo, hi, old, add, o, o_stride, at);
    }
  }

  // f.template operator()<R>(first) over blocks of at most Block rows, as even as they come; one
  // block of up to Max where the registers allow, so that a group of heads converts k and v once.
  template <int Block = V::kBlockRows, int Max = V::kMaxBlockRows, typename Fn>
  static void row_blocks(int rows, Fn f) {
    int blocks = rows <= Max ? 1 : (rows + Block - 1) / Block;
    for (int b = 0, first = 0; b < blocks; ++b) {
      int num = (rows - first) / (blocks - b);
      [&]<int... R>(std::integer_sequence<int, R...>) {
        ((num == R + 1 ? f.template operator()<R + 1>(first) : void()), ...);
      }
      (std::make_integer_sequence<int, Max>{});
      first += num;
    }
  }

  // How many of `all` vectors to take at a time: with several blocks of rows, what one block keeps
  // in registers, so that this part of the tile stays in the first-level cache for the next block.
  static int sweep(int rows, int all) {
    return rows <= V::kMaxBlockRows ? all : vectors(V::kBlockRows);
  }

  // What rows [first, first + num) see of the tile together.
  static void bounds(const TileRows& rows, int first, int num, int& lo, int& hi) {
    lo = kTile;
    hi = 0;
    for (int r = first; r < first + num; ++r) {
      if (rows.lo[r] >= rows.hi[r]) continue;
      if (rows.lo[r] < lo) lo = rows.lo[r];
      if (rows.hi[r] > hi) hi = rows.hi[r];
    }
  }

  template <typename T>
  static void score_tile(const AttendJob& job,
                         const AttendScratch& s,
                         const TileView<T>& tile,
                         const TileRows& rows) {
    int dim = job.kv.head_dim, dim16 = padded16(dim);
    int step = sweep(rows.num, kTile / 16);
    for (int g = 0; g < kTile / 16; g += step) {
      row_blocks(rows.num, [&]<int R>(int first) {
        int lo, hi;
        bounds(rows, first, R, lo, hi);
        int begin = lo / 16 > g ? lo / 16 : g;
        int end = (hi + 15) / 16 < g + step ? (hi + 15) / 16 : g + step;
        if (begin >= end) return;
        score_rows<R>(s.q + first * dim16, dim16, tile, begin, end, dim, s.scores + first * kTile);
      });
    }
  }

  template <typename T>
  static void output_tile(const AttendJob& job,
                          const AttendScratch& s,
                          const TileView<T>& tile,
                          const TileRows& rows,
                          const Factors& f) {
    int dim16 = padded16(job.kv.head_dim), step = 16 * sweep(rows.num, dim16 / 16);
    for (int at = 0; at < dim16; at += step) {
      int end = at + step < dim16 ? at + step : dim16;
      row_blocks(rows.num, [&]<int R>(int first) {
        int lo, hi;
        bounds(rows, first, R, lo, hi);
        if (lo >= hi) return;
        output_rows<R>(s.scores + first * kTile, tile, lo, hi, f.old + first, f.add + first,
                       s.span + first * dim16, dim16, at, end);
      });
    }
  }

  static void soften_tile(const AttendJob& job,
                          const AttendScratch& s,
                          const TileRows& rows,
                          Sums& part) {
    soften(s.scores, rows, job.softcap, part, [](int) {});
  }

  template <typename T>
  static void visit_tile(const AttendJob& job,
                         const AttendScratch& s,
                         const Place& place,
                         int64_t base,
                         const TileRows& rows,
                         Sums& sums) {
    int lo, hi;
    bounds(rows, 0, rows.num, lo, hi);
    if (lo >= hi) return;
    Sums part;
    part.clear(rows.num);
    Factors f;
    // Many rows: convert the tile once instead of in every block of rows.
    bool copy = job.kv.block_size < 16 || job.kv.head_dim % 16 != 0 || rows.num > 2 * V::kBlockRows;
    if (!copy) {
      TileView<T> tile = Read::template direct_view<T>(place, base, lo, hi);
      score_tile(job, s, tile, rows);
      soften_tile(job, s, rows, part);
      merge_sums(sums, part, rows.num, f);
      output_tile(job, s, tile, rows, f);
      return;
    }
    TileView<float> tile = Read::copied_view(place, s.tile);
    Read::template copy_keys<T>(place, base, lo, hi, s.tile);
    score_tile(job, s, tile, rows);
    soften_tile(job, s, rows, part);
    merge_sums(sums, part, rows.num, f);
    Read::template copy_values<T>(place, base, lo, hi, s.tile);
    output_tile(job, s, tile, rows, f);
  }

  // To the next kv head.
  static void move(Place& place, int64_t head_bytes) {
    place.k += head_bytes;
    place.v += head_bytes;
  }

  static void visit_codes(const AttendJob& job,
                          const AttendScratch& s,
                          const Place& first,
                          int64_t base,
                          const TileRows& rows,
                          Sums& sums) {
    using Code = Codes<V>;
    int lo, hi, dim16 = padded16(job.kv.head_dim), num = job.kv_rows();
    bounds(rows, 0, rows.num, lo, hi);
    if (lo >= hi) return;
    Sums part;
    part.clear(rows.num);
    Factors f;
    // Values are fetched while keys are read, then the next tile's keys.
    const int64_t bytes = job.num_kv_heads * job.head_bytes;
    const int dim = job.kv.head_dim;
    Fetch<V> values(first, first.v, bytes, base, rows.num * (dim + kSoftenWork));
    Fetch<V> keys(first, first.k, bytes, base + kTile,
                  rows.num * (dim + first.num_groups * Code::kWeighWork));
    Place place = first;
    for (int from = 0; from < rows.num; from += num, move(place, job.head_bytes)) {
      const CodeTile tile = Code::key_view(place, base, lo, hi, s.tile);
      row_blocks<V::kCodeRows, V::kMaxCodeRows>(num, [&]<int R>(int at) {
        int begin, end, row = from + at;
        bounds(rows, row, R, begin, end);
        if (begin >= end) return;
        Code::template score_rows<R>(s.q + row * dim16, tile, begin / 16, (end + 15) / 16,
                                     s.scores + row * kTile, values);
      });
    }
    soften(s.scores, rows, job.softcap, part, [&](int) { values.pace(kSoftenWork); });
    merge_sums(sums, part, rows.num, f);
    place = first;
    for (int from = 0; from < rows.num; from += num, move(place, job.head_bytes)) {
      const CodeTile tile = Code::value_view(place, base, lo, hi, s.tile);
      row_blocks<V::kCodeRows, V::kMaxCodeRows>(num, [&]<int R>(int at) {
        int begin, end, row = from + at;
        bounds(rows, row, R, begin, end);
        if (begin >= end) return;
        Code::template output_rows<R>(
            {s.scores + row * kTile, rows.lo + row, rows.hi + row, f.old + row, f.add + row,
             s.span + row * dim16, begin / 4, (end + 3) / 4},
            tile, keys);
      });
    }
  }

  static int in_tile(int64_t x) { return static_cast<int>(x < 0 ? 0 : x > kTile ? kTile : x); }

  static void see(const AttendJob& job, int64_t base, TileRows& rows) {
    rows.num = job.num_rows();
    for (int i = 0; i < job.num_queries; ++i) {
      int64_t pos = job.pos + i;
      int lo = job.window > 0 ? in_tile(pos - job.window + 1 - base) : 0;
      int hi = in_tile(pos + 1 - base);
      for (int h = 0; h < job.num_heads; ++h) {
        rows.lo[i * job.num_heads + h] = lo;
        rows.hi[i * job.num_heads + h] = hi;
      }
    }
  }

  static void visit_span(
      const AttendJob& job, const AttendScratch& s, int64_t begin, int64_t end, Sums& sums) {
    int dim16 = padded16(job.kv.head_dim);
    sums.clear(job.num_rows());
    for (int64_t i = 0; i < int64_t{job.num_rows()} * dim16; i += 16)
      V::store(s.span + i, V::set(0));
    TileRows rows;
    const Place place(job);
    for (int64_t base = begin; base < end; base += kTile) {
      see(job, base, rows);
      if (job.kv.type == DType::f32) {
        visit_tile<float>(job, s, place, base, rows, sums);
      } else if (job.kv.type == DType::i8) {
        visit_codes(job, s, place, base, rows, sums);
      } else {
        visit_tile<uint16_t>(job, s, place, base, rows, sums);
      }
    }
  }

  // total[r] = total[r] * old[r] + part[r] * add[r]
  static void merge_outputs(
      float* total, const float* part, int64_t part_stride, int rows, int dim16, const Factors& f) {
    for (int r = 0; r < rows; ++r) {
      if (f.add[r] == 0 && f.old[r] == 1) continue;
      F a = V::set(f.old[r]), b = V::set(f.add[r]);
      float* y = total + r * dim16;
      for (int d = 0; d < dim16; d += 16) {
        V::store(y + d, V::fma(V::load(part + r * part_stride + d), b, V::mul(V::load(y + d), a)));
      }
    }
  }

  static void finish_row(const float* o, float l, int dim, float* out) {
    F f = V::set(1.0F / l);
    int d = 0;
    for (; d + 16 <= dim; d += 16) V::store(out + d, V::mul(V::load(o + d), f));
    if (d < dim) V::store_n(out + d, V::mul(V::load(o + d), f), dim - d);
  }

  static void load_queries(const AttendJob& job, float* q) {
    int dim = job.kv.head_dim, dim16 = padded16(dim);
    const F scale = V::set(job.scale);
    for (int r = 0; r < job.num_rows(); ++r) {
      const float* x = job.q + r / job.num_heads * job.q_stride + r % job.num_heads * dim;
      int d = 0;
      for (; d + 16 <= dim; d += 16) V::store(q + r * dim16 + d, V::mul(V::load(x + d), scale));
      if (d < dim) V::store(q + r * dim16 + d, V::mul(V::load_n(x + d, dim - d), scale));
    }
  }

  static void store_state(const AttendJob& job,
                          const AttendScratch& s,
                          const Sums& sums,
                          float* to) {
    int dim16 = padded16(job.kv.head_dim);
    for (int r = 0; r < job.num_rows(); ++r, to += state_stride(job.kv.head_dim)) {
      for (int d = 0; d < dim16; d += 16) V::store(to + d, V::load(s.span + r * dim16 + d));
      to[dim16] = sums.m[r];
      to[dim16 + 1] = sums.l[r];
    }
  }

  static void attend_states(const AttendJob& job, const AttendScratch& s) {
    int64_t unit = job.tile_states ? kTile : kSpan;
    float* to = job.state;
    for (int64_t begin = job.begin; begin < job.end; begin += unit) {
      Sums sums;
      visit_span(job, s, begin, begin + unit < job.end ? begin + unit : job.end, sums);
      store_state(job, s, sums, to);
      to += job.num_rows() * state_stride(job.kv.head_dim);
    }
  }

  static void attend(const AttendJob& job, const AttendScratch& s) {
    int dim = job.kv.head_dim, dim16 = padded16(dim), rows = job.num_rows();
    if (job.kv.type == DType::i8) {
      Codes<V>::load_queries(job, s.q);
    } else {
      load_queries(job, s.q);
    }
    if (!job.out) return attend_states(job, s);
    Sums sums;
    Sums total;
    total.clear(rows);
    for (int i = 0; i < rows * dim16; i += 16) V::store(s.total + i, V::set(0));
    for (int64_t begin = job.begin; begin < job.end; begin += kSpan) {
      int64_t end = begin + kSpan < job.end ? begin + kSpan : job.end;
      Factors f;
      visit_span(job, s, begin, end, sums);
      merge_sums(total, sums, rows, f);
      merge_outputs(s.total, s.span, dim16, rows, dim16, f);
    }
    for (int r = 0; r < rows; ++r) {
      float* out = job.out + r / job.num_heads * job.out_stride + r % job.num_heads * dim;
      finish_row(s.total + r * dim16, total.l[r], dim, out);
    }
  }

  static void merge_states(const MergeJob& job, const AttendScratch& s) {
    int dim = job.head_dim, dim16 = padded16(dim), rows = job.num_queries * job.num_heads;
    int64_t stride = state_stride(dim);
    Sums total, span, part;
    Factors f;
    total.clear(rows);
    for (int i = 0; i < rows * dim16; i += 16) V::store(s.total + i, V::set(0));
    for (int i = 0; i < job.num_states;) {
      int end = i + job.per_span < job.num_states ? i + job.per_span : job.num_states;
      span.clear(rows);
      for (int j = 0; j < rows * dim16; j += 16) V::store(s.span + j, V::set(0));
      for (; i < end; ++i) {
        const float* state = job.states + int64_t{i} * rows * stride;
        part.clear(rows);
        for (int r = 0; r < rows; ++r) {
          part.m[r] = state[r * stride + dim16];
          part.l[r] = state[r * stride + dim16 + 1];
        }
        merge_sums(span, part, rows, f);
        merge_outputs(s.span, state, stride, rows, dim16, f);
      }
      merge_sums(total, span, rows, f);
      merge_outputs(s.total, s.span, dim16, rows, dim16, f);
    }
    for (int r = 0; r < rows; ++r) {
      float* out = job.out + r / job.num_heads * job.out_stride + r % job.num_heads * dim;
      finish_row(s.total + r * dim16, total.l[r], dim, out);
    }
  }
};

}  // namespace sluice
