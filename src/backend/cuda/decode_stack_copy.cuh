// The warps of decode_stack.cu that bring weights: one copies them into the ring, in the order in
// which they are read, whenever there is room; one has the L2 cache fetch what comes after the
// ring.
#pragma once

#include "backend/cuda/decode_stack_block.cuh"

namespace sluice::cuda {

__device__ inline void copy_row(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(static_cast<uint64_t>(Reuse::once))
      : "memory");
}

__device__ inline void wait_for_place(const Block& b, int unit, int layer) {
  const int v = b.a.plan.unit_waits[unit];
  if (v < unit) {
    barrier_wait(b.empty(v), layer);
  } else if (layer > 0) {
    barrier_wait(b.empty(v), layer - 1);
  }
}

__device__ inline void copy_product(const Block& b, int which, const void* w, int layer) {
  const Job& j = b.small.job[which];
  const bool gated = which == kStackGateUp;
  const int tile_rows = b.a.plan.product[which].tile;
  const int r = gated ? b.lane & 7 : b.lane;
  const int64_t half = gated && b.lane >= 8 ? b.a.plan.product[which].rows : 0;
  int unit = j.first_unit;
#pragma unroll 1
  for (int tile = 0; tile < j.tiles; ++tile) {
    const int first = j.begin + tile * tile_rows, rows = max(0, min(tile_rows, j.end - first));
    const bool mine = b.lane < (gated ? 16 : tile_rows) && r < rows;
    const auto* from = static_cast<const uint8_t*>(w) + (first + r + half) * j.cols * 2;
#pragma unroll 1
    for (int chunk = 0; chunk < j.chunks; ++chunk, ++unit) {
      const uint32_t bytes =
          static_cast<uint32_t>(min(kStackUnitCols, j.cols - chunk * kStackUnitCols)) * 2;
      wait_for_place(b, unit, layer);
      if (b.lane == 0)
        barrier_expect(b.full(unit), bytes * static_cast<uint32_t>(gated ? 2 * rows : rows));
      __syncwarp();
      if (mine)
        copy_row(b.shared + b.small.unit_at[unit] + static_cast<uint32_t>(b.lane * j.pitch),
                 from + chunk * kStackUnitCols * 2, bytes, b.full(unit));
    }
  }
}

__device__ inline void copy_vector(
    const Block& b, int unit, const float* first, const float* second, int each, int layer) {
  wait_for_place(b, unit, layer);
  if (b.lane != 0) return;
  const auto bytes = static_cast<uint32_t>(each) * 4;
  const uint32_t to = b.shared + b.small.unit_at[unit];
  barrier_expect(b.full(unit), second ? 2 * bytes : bytes);
  copy_row(to, first, bytes, b.full(unit));
  if (second) copy_row(to + bytes, second, bytes, b.full(unit));
}

__device__ inline const void* weight_of(const StackLayer& l, int product) {
  return product == kStackQkv      ? l.qkv
         : product == kStackO      ? l.o
         : product == kStackGateUp ? l.gate_up
                                   : l.down;
}

// The block's rows of a weight on their way into the L2 cache, while the ring is full.
__device__ inline void fetch_rows(const Block& b, const Job& j, const void* w, int64_t from) {
  const int bytes = (j.end - j.begin) * j.cols * 2;
  const auto* p = static_cast<const uint8_t*>(w) + (j.begin + from) * j.cols * 2;
#pragma unroll 1
  for (int at = b.lane * 128; at < bytes; at += 32 * 128)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p + at));
}
__device__ inline void fetch_weights(const Block& b) {
  constexpr int kAhead = 5;  // products
#pragma unroll 1
  for (int i = 3; i < 4 * b.a.plan.layers; ++i) {
    while (*reinterpret_cast<volatile int*>(&b.small.progress) + kAhead < i) __nanosleep(100);
    const int product = i % 4;
    const void* w = weight_of(b.a.layer[i / 4], product);
    fetch_rows(b, b.small.job[product], w, 0);
    if (product == kStackGateUp) fetch_rows(b, b.small.job[product], w, b.a.shape.ffn);
  }
}

__device__ inline void copy_weights(const Block& b) {
  const StackPlan& plan = b.a.plan;
#pragma unroll 1
  for (int i = 0; i < 4 * plan.layers; ++i) {
    const int l = i / 4, product = i % 4;
    const StackLayer& w = b.a.layer[l];
    if (product == kStackQkv)
      copy_vector(b, plan.norm_unit[0], w.attn_norm, nullptr, b.a.shape.hidden, l);
    if (product == kStackGateUp)
      copy_vector(b, plan.norm_unit[1], w.ffn_norm, nullptr, b.a.shape.hidden, l);
    copy_product(b, product, weight_of(w, product), l);
    if (product == kStackQkv && b.a.shape.head_norms)
      copy_vector(b, plan.head_unit, w.q_norm, w.k_norm, b.a.shape.head_dim, l);
  }
}

}  // namespace sluice::cuda
