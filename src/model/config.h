// Hyperparameters of the decoders we run, read from a checkpoint's metadata and checked.
#pragma once

#include <string>

#include "backend/backend.h"
#include "base/result.h"
#include "tensor/checkpoint.h"

namespace sluice {

struct DecoderConfig {
  std::string arch;
  int num_layers = 0, hidden = 0, ffn = 0, vocab = 0;
  int num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int max_len = 0;
  int window = 0;  // sliding window, 0 = none
  float eps = 0;
  RopeSpec rope;

  int q_dim() const { return num_heads * head_dim; }
  int kv_dim() const { return num_kv_heads * head_dim; }
};

// `interleaved`: the family's rotary layout in GGUF files. `data` reads the tensors that carry
// hyperparameters; null when only the shape matters.
Result<DecoderConfig> read_decoder_config(const Checkpoint& checkpoint,
                                          Checkpoint* data,
                                          bool interleaved);

}  // namespace sluice
