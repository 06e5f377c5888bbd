// Which format each tensor of a model gets, and why. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "tensor/checkpoint.h"

namespace sluice {

struct QuantizeRules {
  Format type = Format::q8_0;
  std::optional<Format> output_type;  // absent: chosen by `type`
  bool keep_embedding = false;        // as it is in the source
};

struct PlannedTensor {
  const TensorInfo* source = nullptr;
  TensorInfo target;
  // Where the rows are no multiple of the wanted format's block.
  bool fell_back = false;
  Format wanted = Format::f32;
};

// Vectors, norms and position embeddings stay F32. The output matrix, or the embedding that stands
// in for it, gets Q6_K where the rest has 4 bits. Rows that are no multiple of the block get the
// next finer format that fits: Q4_K -> Q5_0, Q6_K -> Q8_0, blocks of 32 -> F16.
std::vector<PlannedTensor> plan_formats(const std::vector<TensorInfo>& tensors,
                                        const QuantizeRules& rules);

// The source's metadata with what describes its old format replaced.
Meta quantized_meta(const Meta& source, Format type);

}  // namespace sluice
