// The tensors of a model by its config.json: their names in Hugging Face's and in GGUF's files, and
// the conversion between the two.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "load/hf_config.h"

namespace sluice {

enum class HfChange : uint8_t {
  none,
  interleave,  // rows j and j + d/2 of a head, which rotate together, become rows 2j and 2j + 1
  transpose,   // stored [cols, rows]
  plus_one,    // gemma multiplies by 1 + weight, GGUF holds the sum
};

struct HfTensor {
  std::string name;  // without the prefix: "layers.0.self_attn.q_proj.weight"
  std::string gguf;  // "blk.0.attn_q.weight"
  bool vector = false;
  int64_t rows = 0, cols = 0;  // as in GGUF; a vector has one row
  HfChange change = HfChange::none;
  int heads = 0;  // interleave
};

std::vector<HfTensor> hf_tensors(const HfConfig& config);

// What a GGUF file has as tensors and config.json as numbers: divisors of rotary frequencies.
std::vector<std::pair<std::string, std::vector<float>>> hf_rope_tensors(const HfConfig& config);

// A name without what stands before it in some files ("model.", "transformer.",
// "language_model.model."...).
std::string_view strip_prefix(std::string_view name);

// Buffers and parts of other modalities that text needs nothing of.
bool is_harmless(std::string_view name);

}  // namespace sluice
