// Carves a model's activation buffer into tensors. Used while a model reserves memory and runs, on
// the device thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backend/backend.h"

namespace sluice {

// Hands out aligned pieces of one buffer, activations in `type`; with a null base it only counts.
class Carver {
 public:
  Carver(std::byte* base, DType type) : base_(base), type_(type) {}
  void* take(size_t bytes) {
    size_t at = used_;
    used_ += (bytes + 255) & ~size_t{255};
    return base_ ? base_ + at : nullptr;
  }
  Tensor tensor(int64_t rows, int64_t cols) { return tensor(rows, cols, type_); }
  Tensor of(DType type, int64_t rows, int64_t cols) { return tensor(rows, cols, type); }
  Tensor f32(int64_t rows, int64_t cols) { return tensor(rows, cols, DType::f32); }
  Act act(int64_t rows, int64_t cols, uint8_t needs) {
    Act a;
    a.f = {nullptr, type_, rows, cols, cols};
    a.q.rows = a.r.rows = a.s.rows = rows;
    a.q.cols = a.r.cols = a.s.cols = cols;
    if (needs & (kActF32 | kActI8)) a.f = tensor(rows, cols);
    if (needs & kActQ8) {
      auto blocks = static_cast<size_t>(rows * (cols / kActBlock));
      a.q.q = static_cast<int8_t*>(take(static_cast<size_t>(rows * cols)));
      a.q.scale = static_cast<float*>(take(blocks * 4));
      a.q.sum = static_cast<int32_t*>(take(blocks * 4));
    }
    if (needs & kActRow8) {
      a.r.q = static_cast<int8_t*>(take(static_cast<size_t>(rows * cols)));
      a.r.scale = static_cast<float*>(take(static_cast<size_t>(rows) * 4));
      a.r.sum = static_cast<int32_t*>(take(static_cast<size_t>(rows) * 4));
    }
    if (needs & kActSuper8) {
      a.s.q = static_cast<int8_t*>(take(static_cast<size_t>(rows * cols)));
      a.s.scale = static_cast<float*>(take(static_cast<size_t>(rows * (cols / kActSuper)) * 4));
      a.s.sum = static_cast<int16_t*>(take(static_cast<size_t>(rows * (cols / kActSum)) * 2));
    }
    if (needs & (kActF8 | kActI8)) {
      a.f8.type = needs & kActI8 ? DType::i8 : DType::f8;
      a.f8.alone = !(needs & kActF32);
      a.f8.data = take(static_cast<size_t>(rows * cols));
      a.f8.scale = static_cast<float*>(take(static_cast<size_t>(rows) * 4));
    }
    if (needs & (kActSplit | kActSplitK)) {
      a.split.data =
          take(static_cast<size_t>(split_bytes(std::min<int64_t>(rows, kMaxStreamed), cols)));
      a.split.k_format = needs & kActSplitK;
    }
    return a;
  }
  size_t used() const { return used_; }

 private:
  Tensor tensor(int64_t rows, int64_t cols, DType type) {
    return {take(static_cast<size_t>(rows * cols) * dtype_bytes(type)), type, rows, cols, cols};
  }

  std::byte* base_;
  DType type_;
  size_t used_ = 0;
};

inline Act first_rows_of(Act a, int64_t n) {
  a.f.rows = a.q.rows = a.r.rows = a.s.rows = n;
  return a;
}

}  // namespace sluice
