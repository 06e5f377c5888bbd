// Arguments, shared memory and barriers that the warps of a block of decode_stack.cu share. Device
// code.
#pragma once

#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/decode_stack_plan.cuh"
#include "backend/cuda/hopper.cuh"
#include "backend/cuda/relay.cuh"

namespace sluice::cuda {

inline constexpr int kComputeThreads = kStackWarps * 32;
// Beside those that compute: one warp copies weights, one K and V, one fetches weights into the L2.
inline constexpr int kStackThreads = kComputeThreads + 96;

struct StackArgs {
  StackPlan plan;
  StackShape shape;
  float* x;
  int64_t x_stride;
  const float* cos_sin;
  const int32_t* positions;
  const int32_t* row_slot;
  const int32_t* tables;
  int64_t table_stride, first_block;
  int64_t table_at;
  float per_hidden;        // 1 / hidden
  int block_shift, group;  // group: heads that share K and V
  uint32_t* relay;
  StackLayer layer[kMaxStackLayers];
};
static_assert(sizeof(StackArgs) <= 16 * 1024);

// A block's share of a product: rows [begin, end) of its weight.
struct Job {
  int begin, end, tiles, chunks, first_unit, pitch, cols, group, tile;
};

// A block's share of attention: positions of one sequence for one kv head, the same in every layer.
struct Share {
  int row, kv_head, split, splits;  // splits == 0: none
  int first, end;                   // positions
  int position;                     // of the token
  int64_t cell;                     // where its K and V go, in elements
};

inline constexpr int kMostIds = 32;  // blocks of K and V that a share holds at a time

// Beside weights, K and V, inputs and sums in shared memory.
struct Small {
  uint64_t full[kMaxStackUnits], empty[kMaxStackUnits], kv_full, kv_empty;
  uint32_t unit_at[kMaxStackUnits];
  alignas(16) uint8_t q[8 * 128 * 2];
  float squares[2][kStackWarps][16];
  float2 merge[kStackWarps][8];
  float4 split[256];
  float residual[8][32];
  float turn[128];  // cosines and sines of the share's token
  int32_t ids[kMostIds];
  Job job[4];
  Share share;
  int progress;  // products begun
};
static_assert(sizeof(Small) <= kStackSmall);

// A thread's view of its block.
struct Block {
  const StackArgs& a;
  uint8_t* memory;
  uint32_t shared;  // memory's address
  Small& small;
  int thread, warp, lane, g, t;
  float* bias;   // [layers, bias_rows] of q, k and v
  int sums = 0;  // groups of tiles so far

  __device__ uint32_t full(int unit) const { return smem_address(&small.full[unit]); }
  __device__ uint32_t empty(int unit) const { return smem_address(&small.empty[unit]); }
  __device__ float* sum_buffer() const {
    return reinterpret_cast<float*>(memory + a.plan.sums_at + (sums & 1) * a.plan.sums_bytes);
  }
};

__device__ inline void meet() { asm volatile("bar.sync 1, %0;" ::"n"(kComputeThreads) : "memory"); }

// By lane 0, once the whole warp is there.
__device__ inline void release(const Block& b, uint32_t barrier) {
  __syncwarp();
  asm volatile(
      "{.reg .pred p; setp.eq.s32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 _, [%0];}" ::"r"(
          barrier),
      "r"(b.lane)
      : "memory");
}

}  // namespace sluice::cuda
