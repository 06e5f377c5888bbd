// Pieces of a model's one activation buffer. Used while a model reserves memory and runs, on the
// device thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"

namespace sluice {

// Hands out aligned pieces of one buffer; with a null base it only counts.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  void* take(size_t bytes) {
    size_t at = used_;
    used_ += (bytes + 63) & ~size_t{63};
    return base_ ? base_ + at : nullptr;
  }
  Tensor tensor(int64_t rows, int64_t cols) {
    return {take(static_cast<size_t>(rows * cols) * 4), DType::f32, rows, cols, cols};
  }
  Act act(int64_t rows, int64_t cols, uint8_t needs) {
    Act a;
    a.f = {nullptr, DType::f32, rows, cols, cols};
    a.q.rows = rows;
    a.q.cols = cols;
    if (needs & kActF32) a.f.data = take(static_cast<size_t>(rows * cols) * 4);
    if (needs & kActQ8) {
      auto blocks = static_cast<size_t>(rows * (cols / kActBlock));
      a.q.q = static_cast<int8_t*>(take(static_cast<size_t>(rows * cols)));
      a.q.scale = static_cast<float*>(take(blocks * 4));
      a.q.sum = static_cast<int32_t*>(take(blocks * 4));
    }
    return a;
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

inline Act first_rows_of(Act a, int64_t n) {
  a.f.rows = a.q.rows = n;
  return a;
}

}  // namespace sluice
