// A paged cache and batches over it, for tests: blocks in shuffled order, every byte that was not
// written is NaN. Test code only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "backend/backend.h"

namespace sluice {

struct CacheShape {
  int num_heads = 4, num_kv_heads = 2, head_dim = 64;
  int window = 0;
  DType type = DType::f16;
  int block_size = 16;
  int num_slots = 1, max_positions = 256;
  float softcap = 0;
  int kv_group = 0;

  AttentionSpec attention() const {
    float scale = 1 / std::sqrt(static_cast<float>(head_dim));
    return {num_heads, num_kv_heads, head_dim, scale, window, softcap};
  }
  int64_t qkv_cols() const { return int64_t{num_heads + 2 * num_kv_heads} * head_dim; }
  int64_t out_cols() const { return int64_t{num_heads} * head_dim; }
};

class PagedCache {
 public:
  explicit PagedCache(const CacheShape& shape) : shape_(shape) {
    blocks_per_slot_ = (shape.max_positions + shape.block_size - 1) / shape.block_size;
    int num_blocks = shape.num_slots * blocks_per_slot_ + 1;
    tables_.resize(static_cast<size_t>(num_blocks - 1));
    std::iota(tables_.begin(), tables_.end(), 1);
    std::shuffle(tables_.begin(), tables_.end(), std::mt19937(7));
    bytes_ = static_cast<size_t>(num_blocks) * block_bytes();
    k_.assign(bytes_, 0xff);  // 0xffff and 0xffffffff are NaN
    v_.assign(bytes_, 0xff);
  }

  KvLayer layer() {
    return {k_.data(),           v_.data(),       shape_.type, shape_.block_size,
            shape_.num_kv_heads, shape_.head_dim, 0,           shape_.kv_group};
  }
  const int32_t* tables() const { return tables_.data(); }
  int64_t table_stride() const { return blocks_per_slot_; }
  const std::vector<uint8_t>& k() const { return k_; }
  const std::vector<uint8_t>& v() const { return v_; }

  // Forgets the blocks of `slot` that lie wholly before `pos`, as a sliding window does.
  void drop_before(int slot, int pos) {
    for (int b = 0; b < pos / shape_.block_size; ++b) {
      int32_t& id = tables_[static_cast<size_t>(slot * blocks_per_slot_ + b)];
      std::memset(k_.data() + static_cast<size_t>(id) * block_bytes(), 0xff, block_bytes());
      std::memset(v_.data() + static_cast<size_t>(id) * block_bytes(), 0xff, block_bytes());
    }
  }

 private:
  size_t block_bytes() const {
    return static_cast<size_t>(shape_.num_kv_heads) *
           KvType(shape_.type, shape_.kv_group).head_bytes(shape_.head_dim, shape_.block_size);
  }

  CacheShape shape_;
  int blocks_per_slot_;
  size_t bytes_;
  std::vector<int32_t> tables_;
  std::vector<uint8_t> k_, v_;
};

// Slices of a step with the row arrays that go with them.
struct PagedBatch {
  struct Part {
    int slot, pos, count;
  };
  PagedBatch(const PagedCache& cache, const std::vector<Part>& parts) {
    for (const Part& p : parts) {
      slices.push_back({static_cast<int32_t>(positions.size()), p.count, p.pos, p.slot});
      for (int i = 0; i < p.count; ++i) {
        positions.push_back(p.pos + i);
        row_slot.push_back(p.slot);
      }
    }
    view.num_tokens = static_cast<int32_t>(positions.size());
    while (view.num_decode < static_cast<int32_t>(slices.size()) &&
           slices[static_cast<size_t>(view.num_decode)].count == 1) {
      ++view.num_decode;
    }
    view.positions = positions.data();
    view.row_slot = row_slot.data();
    view.slices = slices;
    view.tables = cache.tables();
    view.table_stride = cache.table_stride();
  }
  PagedBatch(const PagedBatch&) = delete;

  BatchView view;
  std::vector<SliceView> slices;
  std::vector<int32_t> positions, row_slot;
};

// A matrix that owns its memory. Rows are `gap` elements longer than cols, and all of it starts as
// NaN, so that reading what was not written, or writing beyond, shows.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t cols, int64_t gap = 0)
      : rows_(rows),
        cols_(cols),
        stride_(cols + gap),
        data_(static_cast<size_t>(rows * stride_), NAN) {}
  static Matrix random(int64_t rows, int64_t cols, uint32_t seed, float scale = 1) {
    Matrix m(rows, cols, 3);
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal(0, scale);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) m.row(r)[c] = normal(rng);
    }
    return m;
  }
  operator Tensor() { return {data_.data(), DType::f32, rows_, cols_, stride_}; }
  Act act() {
    Act a;
    a.f = *this;
    return a;
  }
  float* row(int64_t r) { return data_.data() + r * stride_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  const std::vector<float>& data() const { return data_; }

 private:
  int64_t rows_, cols_, stride_;
  std::vector<float> data_;
};

}  // namespace sluice
