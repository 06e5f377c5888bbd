// A Hugging Face config.json of the families we run, checked: every number is in range and the
// shapes fit together.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice {

struct HfRope {
  double theta = 10000;
  std::string scaling;  // "", "linear", "llama3" or "yarn"
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double attention_factor = 0;                       // yarn; 0: the usual one
  double beta_fast = 32, beta_slow = 1;              // yarn
  int original_context = 0;                          // llama3, yarn
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
};

Result<HfConfig> parse_hf_config(std::string_view json_text);

}  // namespace sluice
