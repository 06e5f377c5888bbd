// quantization_config of a Hugging Face model: how its matrices are stored, as far as their tensors
// do not show it. No state.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace sluice {

struct HfQuant {
  enum class Method : uint8_t { awq, gptq, compressed_tensors, fp8 };
  Method method = Method::gptq;
  int bits = 4;                        // awq, gptq
  int zero_offset = 0;                 // gptq: added to stored zero points
  bool dynamic = false;                // gptq: bits and group of some modules differ, shapes tell
  int group = 0;                       // awq, gptq: columns that share a scale; 0: all
  std::vector<int> groups;             // compressed-tensors: the same of every config group
  int block_rows = 0, block_cols = 0;  // of a block that shares a scale; 0: there are none
};

// The object quantization_config of a config.json.
Result<HfQuant> parse_hf_quant(const json::object& config);

}  // namespace sluice
