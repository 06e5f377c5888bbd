// The blocks of a decoder layer, shared by the families: attention and MLP as free functions over
// their weights and a step's activations, and the memory of those activations. Device thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"
#include "model/config.h"
#include "model/scratch.h"
#include "model/weights.h"

namespace sluice {

struct AttentionBlock {
  Projection qkv;               // [q_dim + 2 kv_dim, hidden]
  Weight o;                     // [hidden, q_dim]
  DeviceVector q_norm, k_norm;  // [head_dim], or empty
};

// Two matrices around an activation; gated: the first gives gate and up, and gate is activated.
struct MlpBlock {
  Projection in;  // [ffn or 2 ffn, hidden]
  Weight down;    // [hidden, ffn]
  bool gated = false;
  Activation activation = Activation::silu;
};

// Activations of a step, n rows each. Every matmul input exists in the forms its weights read.
struct BlockScratch {
  Tensor x;       // [n, hidden] the residual stream
  Act normed;     // [n, hidden] input of either block
  Tensor qkv;     // [n, q_dim + 2 kv_dim]
  Tensor q;       // [n, q_dim]: columns of qkv, or apart where that is more exact
  Act attended;   // [n, q_dim]
  Tensor inner;   // [n, ffn], or [n, 2 ffn] gated
  Act activated;  // [n, ffn]
  Tensor delta;   // [n, hidden] output of either block
  Act final;      // [outputs, hidden] input of the output matrix
};

// What the sizes above depend on: the model's dimensions, the backend's types and the forms
// (ActNeeds) that its weights read.
struct BlockSizes {
  BlockSizes(const DecoderConfig& config, bool gated, const WeightStore& store);
  void add(const AttentionBlock& block);
  void add(const MlpBlock& block);

  int64_t hidden, q_dim, kv_dim, ffn, inner;
  DType act_type, out_type;  // of matmuls' inputs and outputs
  uint8_t normed = 0, attended = 0, activated = 0, final = 0;
};

BlockScratch carve_blocks(Carver& carver, const BlockSizes& sizes, int max_tokens, int max_outputs);
// The same memory for a step of n rows.
BlockScratch first_rows_of(BlockScratch s, int64_t n);

// s.delta = attention over s.normed; writes K and V of the step. spec.q is set here.
void run_attention(Backend& backend,
                   const AttentionBlock& block,
                   QkvSpec spec,
                   const BatchView& batch,
                   KvLayer kv,
                   const BlockScratch& s);

// s.delta = MLP of s.normed
void run_mlp(Backend& backend, const MlpBlock& block, const BlockScratch& s);

}  // namespace sluice
