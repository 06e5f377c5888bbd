// How a GPU keeps weights and activations: rules that the CUDA backend follows and that
// cuda_weight_sizes() plans memory by. Plain functions; any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/matmul/load_quant.h"
#include "backend/cuda_packed.h"

namespace sluice {

// Types of a GPU's weights, as CudaOptions has them.
struct CudaTypes {
  DType activations = DType::bf16;  // and of weights that are not in 8 bits
  bool fp8_weights = false;
  bool stored_weights = false;  // quantised formats stay as they are (cuda_packed.h)
  bool deterministic = false;
  LoadQuant int8 = {};  // w8a8 or none
};

// The type of matmul outputs that are not the input of another matmul. With f16 activations it is
// f32: sums keep their precision on the way to the residual stream.
inline DType cuda_output_type(const CudaTypes& types) {
  return types.activations == DType::f16 ? DType::f32 : types.activations;
}

// Neighbouring rows of a weight that one product computes.
struct CudaWeightPart {
  Format format = Format::q8_0;
  int64_t rows = 0;
};

struct CudaWeightPlan {
  int64_t rows = 0, cols = 0;
  bool layer = false;  // belongs to a layer; the embedding and the output matrix do not
  DType type = DType::bf16;
  uint8_t act = kActF32;              // ActNeeds
  size_t bytes = 0;                   // elements, and in 8 bits one f32 scale per row
  std::vector<CudaWeightPart> parts;  // as the file stores them; empty: elements of `type`
  std::vector<size_t> part_of;        // each segment's
};

// Stored weights of many rows of x are decoded to 16 bits, so many bytes at a time at most.
inline constexpr size_t kMostDecoded = size_t{256} << 20;
// Rows of a weight that are decoded together.
inline int64_t decoded_rows(int64_t rows, int64_t cols) {
  constexpr int64_t kStep = 256;
  const auto most = static_cast<int64_t>(kMostDecoded / sizeof(uint16_t)) / cols / kStep * kStep;
  if (rows <= most) return rows;
  const int64_t pieces = (rows + most - 1) / std::max(most, kStep);
  return (rows + pieces * kStep - 1) / (pieces * kStep) * kStep;
}
// Scratch that products with this weight need: split rows of x (always, if deterministic), or
// decoded weights.
inline size_t stored_scratch(const CudaWeightPlan& p, const CudaTypes& types) {
  if (p.parts.empty()) return 0;
  const auto few = static_cast<size_t>(split_bytes(kMaxStreamed, p.cols));
  if (types.deterministic) return few;
  return std::max(few,
                  static_cast<size_t>(decoded_rows(p.rows, p.cols) * p.cols) * sizeof(uint16_t));
}

// Form of x that products of few rows with this format read beside x itself; Q4_1's read none.
constexpr uint8_t split_needs(Format f) {
  if (packed_format(f).supers > 0) return kActSplitK;
  return f == Format::q4_1 ? 0 : kActSplit;
}

// Segments of one format are one part where whole tiles allow it.
inline void plan_parts(std::span<const WeightSegment> segments, CudaWeightPlan& p) {
  for (const WeightSegment& s : segments) {
    const bool joins = !p.parts.empty() && p.parts.back().format == s.tensor->format &&
                       p.parts.back().rows % kPackedRows == 0;
    if (!joins) p.parts.push_back({s.tensor->format, 0});
    p.parts.back().rows += s.tensor->rows;
    p.part_of.push_back(p.parts.size() - 1);
  }
  p.bytes = 0;
  for (const CudaWeightPart& part : p.parts)
    p.bytes += PackedShape(part.format, part.rows, p.cols).bytes();
}

// A weight of several tensors is one product: where one of them stays, all do.
inline bool becomes_int8(std::span<const WeightSegment> segments, const LoadQuant& quant) {
  return std::all_of(segments.begin(), segments.end(), [&](const WeightSegment& s) {
    return quant.of(*s.tensor) == WeightQuant::w8a8;
  });
}

// 8 bits are for layers' matrices alone: the embedding and the output matrix are few and matter
// most.
inline CudaWeightPlan plan_cuda_weight(std::span<const WeightSegment> segments,
                                       const CudaTypes& types) {
  CudaWeightPlan p;
  for (const WeightSegment& s : segments) p.rows += s.tensor->rows;
  p.cols = segments[0].tensor->cols;
  p.layer = segments[0].tensor->name.starts_with("blk.");
  const bool f8 = types.fp8_weights && p.layer && p.rows % 16 == 0 && p.cols % 16 == 0;
  const bool i8 = p.layer && becomes_int8(segments, types.int8);
  p.type = f8 ? DType::f8 : i8 ? DType::i8 : types.activations;
  p.act = f8 ? kActF32 | kActF8 : i8 ? kActI8 : kActF32;
  const auto rows = static_cast<size_t>(p.rows), cols = static_cast<size_t>(p.cols);
  p.bytes = rows * cols * dtype_bytes(p.type) + (f8 || i8 ? rows * sizeof(float) : 0);
  const bool stored = types.stored_weights && !f8 && !i8 && types.activations != DType::f32 &&
                      std::all_of(segments.begin(), segments.end(), [](const WeightSegment& s) {
                        return is_packed(s.tensor->format);
                      });
  if (stored) {
    plan_parts(segments, p);
    for (const CudaWeightPart& part : p.parts) p.act |= split_needs(part.format);
  }
  return p;
}

}  // namespace sluice
