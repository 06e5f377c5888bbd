// A Hugging Face config.json of the families we run, checked: every number is in range and the
// shapes fit together.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/checkpoint.h"

namespace sluice {

struct HfRope {
  int dims = 0;  // of a head that rotate; 0: no rotary positions
  double theta = 10000;
  std::string scaling;  // "", "linear", "llama3", "yarn" or "longrope"
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double attention_factor = 0;                       // yarn, longrope; 0: the usual one
  double beta_fast = 32, beta_slow = 1;              // yarn
  int original_context = 0;                          // llama3, yarn, longrope
  std::vector<float> short_factor, long_factor;      // longrope: divisors, one per rotated pair
};

struct HfConfig {
  std::string arch;  // as GGUF says it: mistral is llama
  int num_layers = 0, hidden = 0, ffn = 0, vocab = 0, context = 0;
  int num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int window = 0;  // 0: none
  double eps = 0;
  bool tied = false;  // the output matrix is the embedding
  bool qkv_bias = false, qk_norm = false;
  HfRope rope;
  // What only this family has, under GGUF's keys without the architecture.
  std::map<std::string, MetaValue> extra;
};

Result<HfConfig> parse_hf_config(std::string_view json_text);

// The configuration as a GGUF file of that model has it.
void write_meta(const HfConfig& config, Meta& meta);

// What "llama3" scaling divides each pair's frequency by: 1 for short wavelengths, `factor` for
// long ones, and between them so that the frequency is interpolated. [dims / 2]
std::vector<float> llama3_divisors(const HfRope& rope);

}  // namespace sluice
