// Hyperparameters of the decoders we run, read from a checkpoint's metadata and checked.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/result.h"
#include "model/model.h"
#include "tensor/checkpoint.h"

namespace sluice {

// What differs between the families and the metadata does not say: one constant per family's file.
struct DecoderTraits {
  bool rotary = true;             // or learned positions
  bool rope_interleaved = false;  // rotary layout in GGUF files
  bool layer_norm = false;        // with mean and bias, or RMS norm
  bool qkv_bias = false;
  bool qk_norm = false;           // q and k normalised per head before rotation
  bool fused_tensors = false;     // q, k, v in one tensor, gate and up in one
  bool post_norms = false;        // attention's and MLP's outputs normalised before they are added
  bool scale_embeddings = false;  // by sqrt(hidden)
  Activation activation = Activation::silu;
  // Defaults of what the metadata may say; 0 is none.
  int window = 0;
  float attention_softcap = 0, final_softcap = 0;
  // Where there is a window: every n-th layer sees everything; 0 means no layer does.
  int window_period = 0;
  // Windowed layers rotate by rope.freq_base_swa, 10000 when absent, without scaling.
  bool window_rope = false;
  // The size, by its number of layers, whose queries are scaled by 1 / sqrt(hidden / heads).
  int layers_scaled_by_width = 0;
};

struct DecoderConfig {
  std::string arch;
  int num_layers = 0, hidden = 0, ffn = 0, vocab = 0;
  int num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int max_len = 0;
  std::vector<int> windows;  // per layer, 0 = sees all positions
  float eps = 0;
  float attention_scale = 1, attention_softcap = 0, final_softcap = 0;  // caps: 0 = none
  RopeSpec rope;                                                        // no dims when not rotary
  std::optional<RopeSpec> window_rope;  // of windowed layers, where theirs differs

  int q_dim() const { return num_heads * head_dim; }
  int kv_dim() const { return num_kv_heads * head_dim; }
  ModelShape shape() const {
    return {arch,         num_layers, hidden,  vocab,   num_heads,
            num_kv_heads, head_dim,   max_len, windows, ffn};
  }
};

// `data` reads the tensors that carry hyperparameters; null when only the shape matters. `max_len`
// is the longest sequence that will run, 0 for what the model allows: it decides between longrope's
// two sets of divisors.
Result<DecoderConfig> read_decoder_config(const Checkpoint& checkpoint,
                                          Checkpoint* data,
                                          const DecoderTraits& traits,
                                          int max_len = 0);

}  // namespace sluice
