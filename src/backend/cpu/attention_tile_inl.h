// How the attention kernel reads a tile of 64 positions: where it lies in the cache, or copied to
// f32 first. Elements are float, f16 (uint16_t) or codes with scales (see KvType). A code's value
// is an exact product, so that both ways give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/attention.h"

namespace sluice {

enum class Code : uint8_t {};   // 32 dimensions or more share a scale
enum class Code8 : uint8_t {};  // eight do

// The part of a tile some rows see, as pointers to its groups of sixteen positions.
// k[g][d * k_stride + lane], v[g][lane * v_stride + d].
template <typename T>
struct TileView {
  const T* k[kTile / 16];
  const T* v[kTile / 16];
  const T* next_k[kTile / 16];  // the same groups of the next tile, to be fetched meanwhile
  const T* next_v[kTile / 16];
  int64_t k_stride, v_stride;
  // Codes only. k_scale[g][dimension group * k_stride + lane]; [position, dimension group] of v.
  const uint16_t* k_scale[kTile / 16];
  const float *v_scale, *v_shift;
  int group_shift, num_groups;  // dimensions per scale as a power of two
};

template <typename V>
struct Tiles {
  using F = typename V::F;

  template <typename T>
  static constexpr bool codes = sizeof(T) == 1;
  template <typename T>
  static F load_codes(const T* p) {
    return V::load_codes(reinterpret_cast<const uint8_t*>(p));
  }
  // Tiles read where they lie come from memory; copied ones (f32) are in cache.
  template <typename T>
  static constexpr bool fetches = sizeof(T) < 4;

  // value = load_codes * scale + shift(scale)
  static F shift(F scale) { return V::mul(scale, V::set(-V::kCodeZero)); }

  // Where a job's positions lie. Blocks are powers of two: no divisions on the way to a tile.
  struct Place {
    const std::byte *k, *v;  // of the kv head in block 0
    const int32_t* table;
    int64_t block_bytes, scales_at;
    int64_t end;
    int shift, mask, dim;
    int group_shift, num_groups;

    explicit Place(const AttendJob& job)
        : table(job.table),
          block_bytes(job.head_bytes * job.kv.num_kv_heads),
          scales_at(int64_t{job.kv.head_dim} * job.kv.block_size),
          end(job.end),
          shift(__builtin_ctz(static_cast<unsigned>(job.kv.block_size))),
          mask(job.kv.block_size - 1),
          dim(job.kv.head_dim),
          group_shift(job.kv.group > 0 ? __builtin_ctz(static_cast<unsigned>(job.kv.group)) : 0),
          num_groups(dim >> group_shift) {
      int64_t head = job.kv_head * job.head_bytes;
      k = static_cast<const std::byte*>(job.kv.k) + head;
      v = static_cast<const std::byte*>(job.kv.v) + head;
    }
    int block_size() const { return mask + 1; }
    int64_t next_tile(int64_t pos) const { return pos + kTile < end ? pos + kTile : pos; }
    int64_t block(int64_t pos) const { return table[pos >> shift] * block_bytes; }
    // First dimension of position `pos`, and its scales.
    template <typename T>
    const T* key(int64_t pos) const {
      return reinterpret_cast<const T*>(k + block(pos)) + (pos & mask);
    }
    template <typename T>
    const T* value(int64_t pos) const {
      return reinterpret_cast<const T*>(v + block(pos)) + (pos & mask) * dim;
    }
    const uint16_t* key_scale(int64_t pos) const {
      return reinterpret_cast<const uint16_t*>(k + block(pos) + scales_at) + (pos & mask);
    }
    const uint16_t* value_scale(int64_t pos) const {
      return reinterpret_cast<const uint16_t*>(v + block(pos) + scales_at) +
             (pos & mask) * num_groups;
    }
  };

  // Groups of sixteen positions lie in one block: read where they are.
  template <typename T>
  static TileView<T> direct_view(const Place& at, int64_t base, int lo, int hi) {
    TileView<T> t{};
    t.k_stride = at.block_size();
    t.v_stride = at.dim;
    for (int g = lo / 16; g < (hi + 15) / 16; ++g) {
      int64_t pos = base + 16 * g, next = at.next_tile(pos);
      t.k[g] = at.template key<T>(pos);
      t.v[g] = at.template value<T>(pos);
      t.next_k[g] = at.template key<T>(next);
      t.next_v[g] = at.template value<T>(next);
      if constexpr (codes<T>) {
        t.k_scale[g] = at.key_scale(pos);
        V::prefetch(at.key_scale(next));
        V::prefetch(at.value_scale(next));
      }
    }
    t.group_shift = at.group_shift;
    t.num_groups = at.num_groups;
    return t;
  }

  // Scales of v as f32, and their shifts: out [2, kTile, num_groups].
  template <typename T>
  static void widen_value_scales(
      const Place& at, int64_t base, int lo, int hi, TileView<T>& t, float* out) {
    float* shifts = out + kTile * at.num_groups;
    t.v_scale = out;
    t.v_shift = shifts;
    for (int g = lo / 16; g < (hi + 15) / 16; ++g) {
      const uint16_t* from = at.value_scale(base + 16 * g);
      int first = 16 * g * at.num_groups;
      for (int i = 0; i < 16 * at.num_groups; i += 16) {
        F s = V::load(from + i);
        V::store(out + first + i, s);
        V::store(shifts + first + i, shift(s));
      }
    }
  }

  static TileView<float> copied_view(const Place& at, const float* tile) {
    TileView<float> t{};
    t.k_stride = kTile;
    t.v_stride = padded16(at.dim);
    for (int g = 0; g < kTile / 16; ++g) {
      t.k[g] = t.next_k[g] = tile + 16 * g;
      t.v[g] = t.next_v[g] = tile + 16 * g * t.v_stride;
    }
    return t;
  }

  // Sixteen elements at p, or eight and zeros.
  static F load(const float* p, int num) { return num == 16 ? V::load(p) : V::load_n(p, 8); }
  static F load(const uint16_t* p, int num) {
    if (num == 16) return V::load(p);
    uint16_t tmp[16] = {};
    for (int i = 0; i < 8; ++i) tmp[i] = p[i];
    return V::load(tmp);
  }
  template <typename T>
  static F load(const T* p, int num) {
    if (num == 16) return load_codes(p);
    T tmp[16] = {};
    for (int i = 0; i < 8; ++i) tmp[i] = p[i];
    return load_codes(tmp);
  }

  // tile [dim, kTile]; whole blocks that hold none of [lo, hi) are not read
  template <typename T>
  static void copy_keys(const Place& at, int64_t base, int lo, int hi, float* tile) {
    int size = at.block_size(), num = size < 16 ? 8 : 16;
    for (int j = lo / num * num; j < hi; j += num) {
      const T* k = at.template key<T>(base + j);
      const T* next = at.template key<T>(at.next_tile(base + j));
      for (int begin = 0, end = at.dim; begin < at.dim; begin = end) {
        F scale = V::set(1), zero = V::set(0);
        if constexpr (codes<T>) {
          end = begin + (1 << at.group_shift);
          scale = load(at.key_scale(base + j) + (begin >> at.group_shift) * size, num);
          zero = shift(scale);
        }
        for (int d = begin; d < end; ++d) {
          V::prefetch(next + d * size);
          F x = load(k + d * size, num);
          if constexpr (codes<T>) x = V::fma(x, scale, zero);
          if (num == 16) {
            V::store(tile + d * kTile + j, x);
          } else {
            V::store_n(tile + d * kTile + j, x, 8);
          }
        }
      }
    }
  }

  // tile [kTile, dim16], positions [lo, hi)
  template <typename T>
  static void copy_values(const Place& at, int64_t base, int lo, int hi, float* tile) {
    int dim16 = padded16(at.dim);
    for (int j = lo; j < hi; ++j) {
      const T* v = at.template value<T>(base + j);
      const T* next = at.template value<T>(at.next_tile(base + j));
      if constexpr (codes<T>) {
        copy_coded_values(at, v, at.value_scale(base + j), tile + j * dim16);
        for (int d = 0; d < at.dim; d += 64) V::prefetch(next + d);
        continue;
      } else {
        for (int d = 0; d < at.dim; d += 16) {
          V::prefetch(next + d);
          V::store(tile + j * dim16 + d, load(v + d, at.dim - d < 16 ? 8 : 16));
        }
      }
    }
  }

  // v [dim] of one position
  template <typename T>
  static void copy_coded_values(const Place& at, const T* v, const uint16_t* scales, float* out) {
    for (int d = 0; d < at.dim; d += 16) {
      bool whole = at.dim - d >= 16;
      float first = V::half(scales[d >> at.group_shift]);
      F s = V::set(first);
      if (at.group_shift == 3 && whole) s = V::set2(first, V::half(scales[(d >> 3) + 1]));
      V::store(out + d, V::fma(load(v + d, whole ? 16 : 8), s, shift(s)));
    }
  }
};

}  // namespace sluice
