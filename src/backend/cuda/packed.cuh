// Weights that stay on the GPU in their file's format (cuda_packed.h has the layout).
// Three products serve few rows of x; each reads every weight once and decodes in registers:
//   streamed()         codes times x as it is, scaled group by group in f32; every packed format
//   half_product()     codes times scales in halves, x under one scale per 256 columns; K formats
//   integer_product()  codes times x in two bytes, exact integer sums; all but Q4_1
// The last two read x as SplitRows, from the op that makes it or from a kernel of their own. In
// each, the bits of a row of x do not depend on the number of rows: warps take tiles of columns
// in a fixed order, and their sums are added in order. The three differ in their last bits, so
// deterministic mode keeps to one of them per format (few_rows()). For many rows decode_packed()
// gives the products of skinny.cuh and cuBLAS their 16 bits.
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda_packed.h"
#include "tensor/tensor.h"

namespace sluice::cuda {

// Rows of one format, whole or a range of a weight's.
struct PackedPart {
  Format format = Format::q8_0;
  uint8_t* data = nullptr;  // PackedShape(format, rows, cols).bytes()
  int64_t rows = 0, cols = 0;
};

// Rows [first, first + rows) of the part from blocks in the file's order; `first` a multiple of 16.
void pack(const PackedPart& to, int64_t first, int64_t rows, const void* raw, cudaStream_t stream);

// out [n, rows] = x [n, cols] · wᵀ + bias. x of a half type, rows of 8 bytes' alignment; out of
// x's type or f32; bias [rows] or null.
void streamed(Tensor out, Tensor x, const PackedPart& w, const float* bias, cudaStream_t stream);

// Rows of x for the two products below, 256 columns under one scale.
struct SplitRows {
  SplitRows() = default;
  SplitRows(void* memory, int64_t rows, int64_t cols)  // split_bytes()
      : codes(static_cast<uint8_t*>(memory)) {
    const int64_t blocks = rows * ((cols + kSplitCols - 1) / kSplitCols);
    sums = codes + blocks * kSplitCodes;
    scales = reinterpret_cast<float*>(sums + blocks * kSplitSums);
  }
  uint8_t* codes = nullptr;  // two bytes an element
  uint8_t* sums = nullptr;   // of 32 columns each
  float* scales = nullptr;
};

// K formats, whose scales are integers.
constexpr bool has_half_product(Format f) {
  return f == Format::q4_k || f == Format::q5_k || f == Format::q6_k;
}

enum class FewRows { streamed, halves, integers };

// Split rows that a kernel which makes x writes beside it.
struct SplitOut {
  SplitRows rows;
  FewRows kind = FewRows::streamed;  // none
};
// The same by a kernel of its own, from x; does nothing for `streamed`.
void fill_split(const SplitOut& to, Tensor x, cudaStream_t stream);

// Rows of tiles that a block computes at once in the products below; the bits do not depend on it.
// two: where there is a kernel for that. kept: of K formats by halves, one row at a time while up
// to 16 rows of x stay in shared memory. best: by the rows of the weight and of x
// (packed_ring.cuh).
enum class RowTiles { best, one, two, kept };

// x as streamed() takes it, its rows aligned to 16 bytes.
SplitRows halve_rows(void* memory, Tensor x, cudaStream_t stream);
void half_product(Tensor out,
                  const SplitRows& x,
                  const PackedPart& w,
                  const float* bias,
                  cudaStream_t stream,
                  RowTiles tiles = RowTiles::best);

// All but Q4_1. Sums over 32 columns are exact integers.
constexpr bool has_integer_product(Format f) { return is_packed(f) && f != Format::q4_1; }
// x = scale * (128 * high + low) within half a step, 1/32512 of the largest of 256 columns. Where
// one of them is not finite, the scale is NaN. Rows aligned to 8 bytes.
SplitRows split_rows(void* memory, Tensor x, cudaStream_t stream);
void integer_product(Tensor out,
                     const SplitRows& x,
                     const PackedPart& w,
                     const float* bias,
                     cudaStream_t stream,
                     RowTiles tiles = RowTiles::best);
// The same of x as it is, if takes_unsplit(x): every block splits it, which is little for a row or
// two of few columns and spares a kernel. The same bits.
bool takes_unsplit(const Tensor& x);
void integer_product(
    Tensor out, const Tensor& x, const PackedPart& w, const float* bias, cudaStream_t stream);

// The fastest of the three, by measurement (docs/performance.md); if deterministic, the choice does
// not depend on n.
constexpr FewRows few_rows(Format f, int64_t n, bool deterministic) {
  if (f == Format::q4_1) return FewRows::streamed;
  if (has_half_product(f)) return deterministic || n > 8 ? FewRows::halves : FewRows::integers;
  return deterministic || n <= 16 ? FewRows::integers : FewRows::streamed;
}

// out [num, cols] of a half type: rows [first, first + num) of w.
void decode_packed(
    void* out, DType type, const PackedPart& w, int64_t first, int64_t num, cudaStream_t stream);

// out [n, cols] = rows `tokens` of the table.
void embed_packed(Tensor out, const PackedPart& table, const int32_t* tokens, cudaStream_t stream);

}  // namespace sluice::cuda
