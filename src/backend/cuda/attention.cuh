// Attention over the paged cache. Queues kernels on a stream; capturable.
#pragma once

#include <cuda_runtime.h>

#include "backend/backend.h"
#include "backend/cuda/elementwise.cuh"

namespace sluice::cuda {

// K and V of a layer: [blocks, kv_heads, block_size, head_dim] both, in kv_type; int8 has its
// scales behind each head's part of a block (attention_int8.cuh).
struct AttentionArgs {
  void* out;  // [rows, heads * head_dim] of `type`
  int64_t out_stride;
  const void* q;  // [rows, heads * head_dim] of `type`
  int64_t q_stride;
  DType type;  // f16, bf16, or f32 (tests only: any speed)
  const void* k;
  const void* v;
  KvType kv_type;  // `type`, f8 (e4m3, scale 1) or i8
  int block_size;
  AttentionSpec spec;
  // Block tables of the layer's cache group. Block b of a slot is tables[slot * stride + b]; where
  // tables is null it is first_block + slot * stride + b.
  const int32_t* tables;
  int64_t table_stride, first_block;
  const int32_t* positions;  // [rows], device
  const int32_t* row_slot;   // [rows], device
  bool deterministic;        // bits of a row do not depend on the batch, chunking or decoding
  int max_positions;         // of a row, as attention_workspace() was told
  void* workspace;           // of attention_workspace() bytes, zeroed once at allocation
  int num_sms;
  CodesView codes = {};  // of out, where attend_decode makes them
  // Prefixes that decode rows share, and memory for their states: prefix_bytes(). `workspace` is
  // then as for `deterministic`.
  PrefixView prefixes = {};
  float* prefix_states = nullptr;
};

// Whether attend_decode can leave `num` rows of output in e4m3 or i8 too: all kv heads of a row are
// then a cluster, which finds the row's largest element.
bool decode_makes_codes(const AttentionArgs& args, int num);

// Rows [0, num) have one query each, at positions[row], in slot row_slot[row].
void attend_decode(const AttentionArgs& args, int num, cudaStream_t stream);

// Slices with any number of queries: `slices` for the host to plan the grid, and the same on the
// device. Row numbers are those of the batch. K and V of the queries' own positions are already in
// the cache.
void attend_prefill(const AttentionArgs& args,
                    std::span<const SliceView> slices,
                    const SliceView* device_slices,
                    cudaStream_t stream);

// For steps of up to max_decode decode rows, of up to max_positions each.
size_t attention_workspace(
    const AttentionSpec& spec, int max_decode, int max_positions, int num_sms, bool deterministic);

}  // namespace sluice::cuda
