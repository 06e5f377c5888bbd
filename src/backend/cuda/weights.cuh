// Weights on their way to the device: bytes from the page cache through pinned memory, decoded or
// converted there; random weights made there. Used by the thread that loads.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <span>

#include "backend/backend.h"
#include "backend/cuda/packed.cuh"

namespace sluice::cuda {

class Uploader {
 public:
  static constexpr size_t kStageBytes = 32 << 20;  // that go to the device at a time

  explicit Uploader(cudaStream_t stream);
  ~Uploader();
  Uploader(const Uploader&) = delete;

  // Copies host bytes to the device; returns when `from` may go away.
  void copy(void* to, const void* from, size_t bytes);
  // to [rows, cols] in `type` from a tensor in its file's format.
  void convert(void* to, DType type, const WeightSegment& segment);
  // The same of rows [first_row, first_row + rows), `first_row` a multiple of four.
  void convert_rows(
      void* to, DType type, const WeightSegment& segment, int64_t first_row, int64_t rows);
  // Codes and scales of a matrix in Q8_0, as quantize_rows() makes them of its values. A row that
  // has one scale keeps it, and its codes.
  void int8_rows(const CodesView& to, const WeightSegment& segment);
  // Rows [first, ...) of `to` from a tensor in its format; `first` a multiple of 16.
  void pack(const PackedPart& to, int64_t first, const WeightSegment& segment);

 private:
  static constexpr int kNumStages = 4;

  cudaStream_t stream_;
  std::byte* pinned_[kNumStages] = {};
  cudaEvent_t free_[kNumStages] = {};
  std::byte* raw_ = nullptr;  // on the device, kStageBytes: what is to be decoded
  int next_ = 0;
};

// Whether convert() makes this format's random weights.
inline bool makes_random(Format f) {
  return f == Format::f32 || f == Format::f16 || f == Format::bf16;
}

}  // namespace sluice::cuda
