// A warpgroup of wide_persistent.cu or wide_shares.cu. It multiplies the boxes of its block, adds
// up, and stores a tile's sums. Device code.
#pragma once

#include <cstdint>

#include "backend/cuda/boxed.cuh"
#include "backend/cuda/cluster.cuh"
#include "backend/cuda/hopper.cuh"
#include "backend/cuda/wide_copy.cuh"
#include "backend/cuda/wide_store.cuh"

namespace sluice::cuda {

template <typename S>
__device__ inline void add(S (&total)[4], const S (&sum)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) total[j] += sum[j];
}
template <typename S, int kTiles>
__device__ inline void add_to(S (&total)[kTiles][4], const S (&sum)[kTiles][4]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) add(total[t], sum[t]);
}

// `half` of the weight rows.
template <typename T, int kTiles, int kBlocks, bool kSpills>
struct Multiplier {
  using R = PersistentRing<kTiles, kSpills>;
  RingPlace at;
  int half, lane;
  int i = 0;  // boxes so far

  // d = or += the box that has arrived, on its way when it returns. kNow: tiles of x of this one.
  template <int kNow>
  __device__ __forceinline__ void multiply(SumOf<T> (&d)[kNow][4], bool add) {
    const uint32_t stage = at.ring + i % R::kStages * R::kStage;
    barrier_wait(at.full + i % R::kStages * 8, i / R::kStages);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      product(d, operand(stage + half * kPersistentHalf * kRowBytes + k * 32),
              operand(stage + R::kWeights + k * 32), add || k > 0, T{});
    }
    wgmma_commit();
  }
  // The box has been read by this warp.
  __device__ __forceinline__ void release(int box) const {
    const uint32_t barrier = at.empty + box % R::kStages * 8;
    if constexpr (kBlocks == 1) {
      if (lane == 0) barrier_arrive(barrier);
    } else {
      if (lane < kBlocks) barrier_arrive_in_cluster(in_block(barrier, lane));
    }
  }
  // sum = the sums over `num` boxes, or += them, where it goes on.
  template <int kNow>
  __device__ __forceinline__ void add_boxes(SumOf<T> (&sum)[kNow][4],
                                            int num,
                                            bool goes_on = false) {
    if constexpr (kFewBits<T>) {
      // While these are added the other warpgroup multiplies.
#pragma unroll
      for (int t = 0; t < kNow && !goes_on; ++t) sum[t][0] = sum[t][1] = sum[t][2] = sum[t][3] = 0;
      for (int box = 0; box < num; ++box, ++i) {
        SumOf<T> part[kNow][4];
        multiply(part, false);
        wgmma_wait<0>();
        pin(part);
        release(i);
        add_to(sum, part);
      }
    } else {
      for (int box = 0; box < num; ++box, ++i) {
        multiply(sum, goes_on || box > 0);
        // The box before has been read; this one is on its way.
        wgmma_wait<1>();
        if (box > 0) release(i - 1);
      }
      wgmma_wait<0>();
      pin(sum);
      if (num > 0) release(i - 1);
    }
  }
  template <int kNow>
  __device__ __forceinline__ void store_tile(const TileArgs& s,
                                             const CUtensorMap& out,
                                             const SumOf<T> (&sum)[kNow][4],
                                             const TwoTerms& terms,
                                             uint8_t* memory,
                                             const PersistentPlace& place) const {
    using Room = typename R::Room;
    constexpr bool kWhole = kNow == kTiles;
    const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
    if constexpr (kGates<T, R::kWidth>) {
      if (s.a.gated) return store_gated<T, Room, kWhole>(s.a, out, sum, to, place, half);
    }
    if (s.store_at_once < 4) {
      store_any<T, Room>(s.a, s.store_at_once == 2, sum, memory, place, half);
    } else if constexpr (sizeof(T) == 2) {  // out is of the same type or f32
      if (s.store_at_once == 4) {
        store_floats<T, Room, kWhole>(s.a, out, sum, terms, to, place, half);
      } else {
        store_boxes<T, T, Room, kWhole>(s.a, out, sum, terms, to, place, half);
      }
    } else if (s.a.out_type == DType::f16) {
      store_boxes<T, __half, Room, kWhole>(s.a, out, sum, terms, to, place, half);
    } else {
      store_boxes<T, __nv_bfloat16, Room, kWhole>(s.a, out, sum, terms, to, place, half);
    }
  }
};

}  // namespace sluice::cuda
