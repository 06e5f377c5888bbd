// Quantisation of weights at load: --quantize and its exclude list, resolved for each tensor. Plain
// values; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backend/cpu/matmul/weight_quant.h"
#include "base/result.h"
#include "tensor/checkpoint.h"

namespace sluice {

// Of the formats with 32 codes of 4 bits and a scale, the one that comes closest to the weights:
// the relative error of stories15M is 0.091, with int4 0.099 (its zero point is a whole number of
// steps) and with q4_0 0.130 (4.5 bits instead of 5).
inline constexpr Format kW4Format = Format::q4_1;
// Longest rows whose products add up within 32 bits: 127 * 127 * cols < 2^31.
inline constexpr int64_t kMaxW8Cols = int64_t{1} << 17;

struct LoadQuant {
  WeightQuant kind = WeightQuant::none;
  // Names of tensors that keep their format: parts of the name, or patterns where there is a `*`,
  // `?` or `[`, of the whole name with or without ".weight".
  std::vector<std::string> exclude;

  // What this tensor becomes: none for vectors and position embeddings, where it is excluded, where
  // its rows do not fit, and for w4 where it has no more bits already.
  WeightQuant of(const TensorInfo& tensor) const;
};

bool matches_name(std::string_view pattern, std::string_view tensor);

// From --quantize KIND and --quantize-exclude LIST (names separated by commas). A name that fits no
// matrix of the model is an error.
Result<LoadQuant> load_quant(std::string_view kind,
                             std::string_view exclude,
                             const std::vector<TensorInfo>& tensors);

}  // namespace sluice
