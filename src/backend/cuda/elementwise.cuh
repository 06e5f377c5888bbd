// Row ops: embedding, norms, rotation and cache writes, activations. Queue kernels on a stream;
// capturable. Each output depends on its own row alone and on nothing else in the batch.
#pragma once

#include <cuda_runtime.h>

#include <span>

#include "backend/backend.h"
#include "backend/cuda/packed.cuh"

namespace sluice::cuda {

// out [n, cols] of its type = rows `tokens` of table [.., cols] in `type`
void embed(Tensor out, const void* table, DType type, const int32_t* tokens, cudaStream_t stream);
void rope_table(
    float* cos_sin, const RopeSpec& rope, const int32_t* positions, int64_t n, cudaStream_t stream);

// Into memory of the caller.
void quantize_rows(const CodesView& out, Tensor x, cudaStream_t stream);

struct NormArgs {
  Tensor out;    // any type
  Tensor x;      // any type; f32 where delta is added to it
  Tensor delta;  // data null: none
  const float* weight;
  const float* bias;  // not null: layer norm, with mean
  float eps;
  const int32_t* rows;  // not null: row i of out comes from row rows[i] of x
  CodesView codes;      // data not null: out once more, in 8 bits
  SplitOut split = {};  // out once more, in two bytes an element
  // Lets the next kernel start before the one before has ended. That pays where the next one has
  // one block per multiprocessor: it takes the place of the one that leaves, and its weights are on
  // their way while this kernel runs. Smaller blocks pile up where there is room first.
  bool early = false;
};
void norm(const NormArgs& args, cudaStream_t stream);

void add(Tensor x, Tensor delta, cudaStream_t stream);
void scale(Tensor x, float factor, cudaStream_t stream);
void softcap(Tensor x, float cap, cudaStream_t stream);
void add_bias(Tensor x, const float* bias, cudaStream_t stream);
void finish_qkv(Tensor qkv,
                const QkvSpec& spec,
                const BatchView& batch,
                const KvLayer& kv,
                cudaStream_t stream);
// out once more: in 8 bits, where codes.data is not null, and in two bytes an element.
struct ActivateOut {
  Tensor out;
  CodesView codes = {};
  SplitOut split = {};
};
void activate(const ActivateOut& to, Tensor x, Activation activation, cudaStream_t stream);
void activate_gated(const ActivateOut& to,
                    Tensor gate_up,
                    Activation activation,
                    cudaStream_t stream);
// For measuring: keeps the stream busy for so long; launches a kernel that does nothing; reads all
// of a buffer.
void hold(cudaStream_t stream, double seconds);
void nothing(cudaStream_t stream);
// *found becomes 0 where all bytes (a multiple of 4) are the same.
void find_difference(
    const void* a, const void* b, size_t bytes, uint32_t* found, cudaStream_t stream);
void read_all(const void* data, size_t bytes, void* out, cudaStream_t stream);
// Whole blocks of one plane.
void copy_blocks(const KvLayer& plane, std::span<const BlockCopy> copies, cudaStream_t stream);

}  // namespace sluice::cuda
