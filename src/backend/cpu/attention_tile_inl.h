// How the attention kernel reads a tile of 64 positions: where it lies in the cache, or copied to
// f32 first. Elements are float or f16 (uint16_t); codes are read by attention_codes_inl.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/attention.h"

namespace sluice {

// The part of a tile some rows see, as pointers to its groups of sixteen positions.
// k[g][d * k_stride + lane], v[g][lane * v_stride + d].
template <typename T>
struct TileView {
  const T* k[kTile / 16];
  const T* v[kTile / 16];
  const T* next_k[kTile / 16];  // the same groups of the next tile, to be fetched meanwhile
  const T* next_v[kTile / 16];
  int64_t k_stride, v_stride;
};

template <typename V>
struct Tiles {
  using F = typename V::F;

  // Tiles read where they lie come from memory; copied ones (f32) are in cache.
  template <typename T>
  static constexpr bool fetches = sizeof(T) < 4;

  // Where a job's positions lie. Blocks are powers of two: no divisions on the way to a tile.
  struct Place {
    const std::byte *k, *v;  // of the kv head in block 0
    SlotTable table;
    int64_t block_bytes, scales_at;
    int64_t end;
    int shift, mask, dim;
    int group_shift, num_groups;  // of codes: dimensions per scale as a power of two

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
    // First dimension of position `pos`.
    template <typename T>
    const T* key(int64_t pos) const {
      return reinterpret_cast<const T*>(k + block(pos)) + (pos & mask);
    }
    template <typename T>
    const T* value(int64_t pos) const {
      return reinterpret_cast<const T*>(v + block(pos)) + (pos & mask) * dim;
    }
    // The same of codes, [dim / 4, positions, 4] and [positions / 4, dim, 4], where `pos` begins
    // four; and scales, [groups, positions].
    const int8_t* key_codes(int64_t pos) const {
      return reinterpret_cast<const int8_t*>(k + block(pos)) + 4 * (pos & mask);
    }
    const int8_t* value_codes(int64_t pos) const {
      return reinterpret_cast<const int8_t*>(v + block(pos)) + (pos & mask) * dim;
    }
    const uint16_t* key_scales(int64_t pos) const {
      return reinterpret_cast<const uint16_t*>(k + block(pos) + scales_at) + (pos & mask);
    }
    const uint16_t* value_scales(int64_t pos) const {
      return reinterpret_cast<const uint16_t*>(v + block(pos) + scales_at) + (pos & mask);
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
    }
    return t;
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

  // tile [dim, kTile]; whole blocks that hold none of [lo, hi) are not read
  template <typename T>
  static void copy_keys(const Place& at, int64_t base, int lo, int hi, float* tile) {
    int size = at.block_size(), num = size < 16 ? 8 : 16;
    for (int j = lo / num * num; j < hi; j += num) {
      const T* k = at.template key<T>(base + j);
      const T* next = at.template key<T>(at.next_tile(base + j));
      for (int d = 0; d < at.dim; ++d) {
        V::prefetch(next + d * size);
        F x = load(k + d * size, num);
        if (num == 16) {
          V::store(tile + d * kTile + j, x);
        } else {
          V::store_n(tile + d * kTile + j, x, 8);
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
      for (int d = 0; d < at.dim; d += 16) {
        V::prefetch(next + d);
        V::store(tile + j * dim16 + d, load(v + d, at.dim - d < 16 ? 8 : 16));
      }
    }
  }
};

}  // namespace sluice
