// All layers of a step of few decodes in one kernel: norms, products, rotation, attention and
// residual sums. Each multiprocessor has one block, which stays for the whole step. One warp copies
// the block's share of the weights into shared memory, as far ahead as there is room and whatever
// product it belongs to; the others compute. Queues one kernel on a stream; capturable.
//
// Blocks hand activations to each other through a relay in global memory that is filled with
// kNothing before the step: a reader looks until each word is something else. So a value costs one
// trip through the L2 cache, and no block waits for all others at a barrier. Every layer has its
// own part of the relay, so nothing in it is written twice in a step.
//
// One such kernel may run at a time on a device: blocks of two would wait for each other's places.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "backend/cuda/gemm_weight.cuh"

namespace sluice::cuda {

inline constexpr int kMaxStackRows = 8;     // of x
inline constexpr int kMaxStackLayers = 64;  // per kernel
inline constexpr int kMaxStackUnits = 96;   // copies of a layer's weights

struct StackLayer {
  const void* qkv = nullptr;
  const void* o = nullptr;
  const void* gate_up = nullptr;
  const void* down = nullptr;
  const float* qkv_bias = nullptr;  // where the shape has biases
  const float* attn_norm = nullptr;
  const float* ffn_norm = nullptr;
  const float* q_norm = nullptr;  // where it has head_norms
  const float* k_norm = nullptr;
  void* k = nullptr;
  void* v = nullptr;
};

// The sizes and types of every layer.
struct StackShape {
  DType type = DType::bf16;  // of weights, K and V
  int hidden = 0, ffn = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int rope_dims = 0;
  bool interleaved = false;
  float scale = 1, eps = 0;
  Activation activation = Activation::silu;
  int block_size = 16;
  bool biases = false;      // of q, k and v
  bool head_norms = false;  // of q and k

  constexpr int q_dim() const { return heads * head_dim; }
  constexpr int qkv_dim() const { return (heads + 2 * kv_heads) * head_dim; }
};

// Whether the kernel runs on the current GPU, and whether it computes layers of this shape there.
bool has_stack();
bool can_stack(const StackShape& shape, int rows, int layers);
// Bytes of relay that such a step needs.
size_t stack_relay_bytes(const StackShape& shape, int rows, int layers);

struct StackStep {
  BatchView batch;
  Tensor x;  // [rows, hidden] f32, in and out
  const float* cos_sin = nullptr;
  int64_t table_at = 0;   // KvLayer's, of all layers
  void* relay = nullptr;  // stack_relay_bytes(), aligned to 128
};
void run_stack(const StackShape& shape,
               const StackStep& step,
               std::span<const StackLayer> layers,
               cudaStream_t stream);

}  // namespace sluice::cuda
