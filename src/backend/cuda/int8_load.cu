// Rows of Q8_0 on their way to int8 with a scale per row.
#include <algorithm>

#include "backend/cuda/codes.cuh"
#include "backend/cuda/weights.cuh"
#include "tensor/formats/all.h"
#include "tensor/formats/f16.h"
#include "tensor/formats/q8_0.h"

namespace sluice::cuda {

namespace {

constexpr int kRowThreads = 128;

// A block per row. Files of int8 with a scale per channel come here as rows of one scale.
__global__ void __launch_bounds__(kRowThreads)
    int8_rows_kernel(CodesView to, const BlockQ8_0* blocks, int per_row) {
  __shared__ float shared[32];
  const BlockQ8_0* row = blocks + static_cast<int64_t>(blockIdx.x) * per_row;
  auto* codes = static_cast<uint8_t*>(to.data) +
                static_cast<int64_t>(blockIdx.x) * per_row * BlockQ8_0::kElems;
  float most = 0;
  bool same = true;
  for (int i = static_cast<int>(threadIdx.x); i < per_row; i += kRowThreads) {
    float values[BlockQ8_0::kElems];
    decode(row[i], values);
    for (float v : values) most = larger(most, v);
    same = same && row[i].d == row[0].d;
  }
  const Unit unit(block_max(most, shared), DType::i8);
  const bool keeps = __syncthreads_and(same) != 0;
  if (threadIdx.x == 0) to.scale[blockIdx.x] = keeps ? f16_to_f32(row[0].d) : unit.value;
  for (int i = static_cast<int>(threadIdx.x); i < per_row; i += kRowThreads) {
    float values[BlockQ8_0::kElems];
    decode(row[i], values);
    for (int k = 0; k < BlockQ8_0::kElems; ++k)
      codes[i * BlockQ8_0::kElems + k] =
          keeps ? static_cast<uint8_t>(row[i].qs[k]) : unit.code(values[k]);
  }
}

}  // namespace

void Uploader::int8_rows(const CodesView& to, const WeightSegment& s) {
  const size_t row = row_bytes(Format::q8_0, s.tensor->cols);
  const auto rows = static_cast<size_t>(s.tensor->rows), cols = static_cast<size_t>(s.tensor->cols);
  const size_t step = kStageBytes / row;
  if (step == 0) throw std::runtime_error("CUDA: " + s.tensor->name + " has rows too long");
  for (size_t at = 0; at < rows; at += step) {
    const size_t some = std::min(step, rows - at);
    copy(raw_, s.data.data() + at * row, some * row);
    const CodesView part{static_cast<std::byte*>(to.data) + at * cols, to.scale + at, DType::i8};
    int8_rows_kernel<<<static_cast<unsigned>(some), kRowThreads, 0, stream_>>>(
        part, reinterpret_cast<const BlockQ8_0*>(raw_),
        static_cast<int>(s.tensor->cols) / BlockQ8_0::kElems);
    check_launch("int8 rows");
  }
}

}  // namespace sluice::cuda
