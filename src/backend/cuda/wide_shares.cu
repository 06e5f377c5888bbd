// Products of few rows of x in even shares. Their time goes into copying weights, and with whole
// tiles some blocks would have one more to copy than others. So each block, one on a
// multiprocessor, has the same number of boxes (BoxShare). It first begins the tile that the next
// block ends; that block takes over its sums and goes on adding, so that columns are added up in
// the same order. As in wide_persistent.cu one warp copies and two warpgroups multiply.
#include "backend/cuda/wide_shares.cuh"

#include <algorithm>
#include <cstdint>

#include "backend/cuda/hopper.cuh"
#include "backend/cuda/wide_copy.cuh"
#include "backend/cuda/wide_multiply.cuh"
#include "backend/cuda/wide_store.cuh"
#include "base/check.h"

namespace sluice::cuda {

namespace {

struct ShareArgs : TileArgs {
  Handover handover;
};

// A flag in global memory that another block sets.
__device__ inline void wait_for_flag(const uint32_t* flag) {
  uint32_t set = 0;
  const WaitBound bound;
  do {
    bound.check();
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(set) : "l"(flag) : "memory");
  } while (set == 0);
}
__device__ inline void set_flag(uint32_t* flag) {
  asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(flag), "r"(1) : "memory");
}

// Sums as they are, in memory.
__device__ inline float bits_of(float v) { return v; }
__device__ inline float bits_of(int32_t v) { return __int_as_float(v); }
__device__ inline void set_bits(float& to, float v) { to = v; }
__device__ inline void set_bits(int32_t& to, float v) { to = __float_as_int(v); }

// Memory for the sums that a block gives the next, four of a thread at a time.
template <int kTiles>
inline constexpr int kOfHalf = kTiles * 128;
template <int kTiles>
inline constexpr int64_t kGivenBytes = int64_t{2} * kOfHalf<kTiles> * 16;

// A warpgroup of a block that has a share.
template <typename T, int kTiles>
struct ShareMultiplier : Multiplier<T, kTiles, 1, false> {
  using Base = Multiplier<T, kTiles, 1, false>;
  using R = typename Base::R;
  using Base::add_boxes, Base::half;
  using Sums = SumOf<T>[kTiles][4];
  const ShareArgs& s;
  const CUtensorMap& out;
  uint8_t* memory;
  int block;

  // The sums that a block gives, and their flag.
  __device__ float4* given(int by) const {
    return static_cast<float4*>(s.handover.sums) + (by * 2 + half) * kOfHalf<kTiles> +
           threadIdx.x % 128;
  }
  __device__ uint32_t* flag_of(int by) const { return s.handover.flags + by * 2 + half; }

  __device__ __forceinline__ void give(const Sums& sum) const {
    float4* to = given(block);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      __stcg(to + t * 128,
             {bits_of(sum[t][0]), bits_of(sum[t][1]), bits_of(sum[t][2]), bits_of(sum[t][3])});
    }
    __threadfence();
    sync_half(half);
    if (threadIdx.x % 128 == 0) set_flag(flag_of(block));
  }
  __device__ __forceinline__ void take(Sums& sum) const {
    if (threadIdx.x % 128 == 0) {
      uint32_t* flag = flag_of(block - 1);
      wait_for_flag(flag);
      *flag = 0;  // for the next kernel
      __threadfence();
    }
    sync_half(half);
    const float4* from = given(block - 1);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const float4 v = __ldcg(from + t * 128);
      set_bits(sum[t][0], v.x), set_bits(sum[t][1], v.y);
      set_bits(sum[t][2], v.z), set_bits(sum[t][3], v.w);
    }
  }

  // Two calls of add_boxes(), since with one the matrix instructions wait for each other (C7515).
  __device__ __forceinline__ void run(const BoxShare::Run& run) {
    SumOf<T> sum[kTiles][4] = {};
    if (run.takes) {
      take(sum);
      pin(sum);
      add_boxes(sum, run.end - run.box, true);
    } else {
      add_boxes(sum, run.end - run.box, false);
    }
    if (run.gives) return give(sum);
    const PersistentPlace place{run.tile * kTileRows, 0, 1};
    SumOf<T> total[kTiles][4] = {};
    add_to(total, sum);  // as of several ranges
    this->store_tile(s, out, total, TwoTerms(s.a, place.row + half * kPersistentHalf), memory,
                     place);
  }
};

template <typename T, int kTiles>
__global__ void __launch_bounds__(kTileThreads, 1)
    wide_shares_kernel(const __grid_constant__ CUtensorMap weights,
                       const __grid_constant__ CUtensorMap x,
                       const __grid_constant__ CUtensorMap out,
                       const __grid_constant__ ShareArgs s) {
#if SLUICE_HAS_WGMMA
  using R = PersistentRing<kTiles, false>;
  constexpr int kBox = kRowBytes / static_cast<int>(sizeof(T));  // columns
  extern __shared__ uint8_t unaligned[];
  __shared__ uint64_t barriers[2 * R::kStages];
  let_next_start();
  const RingPlace at = make_ring<R, 1>(unaligned, barriers);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto block = static_cast<int>(blockIdx.x);
  const BoxShare share(s.row_tiles, (s.a.cols + kBox - 1) / kBox, block,
                       static_cast<int>(gridDim.x));
  if (warp >= 8) {
    give_registers<24>();
    if (warp == 8 && lane == 0) Copier<T, kTiles, 1, false>{s, weights, x, x, at, 0}.run(share);
    return;
  }
  take_registers<240>();
  wait_for_inputs();
  const int half = warp / 4;
  ShareMultiplier<T, kTiles> m{{at, half, lane}, s, out, room_of<R>(unaligned, at, half), block};
#pragma unroll 1
  for (int k = 0; k < share.runs(); ++k) m.run(share.run(k));
  if (threadIdx.x % 128 == 0) wait_until_stored();
#else
  __trap();
#endif
}

template <typename T, int kTiles>
void run_shares(const BoxedArgs& a,
                const Tensor& x,
                const Tensor& weight,
                int num_sms,
                cudaStream_t stream,
                const Handover& handover) {
  using R = PersistentRing<kTiles, false>;
  constexpr auto kKernel = wide_shares_kernel<T, kTiles>;
  allow_shared<kKernel>(R::kBytes, "wide");
  CHECK(!a.gated || (kGates<T, R::kWidth>));
  const ShareArgs s{{a, 1, ceil_div(a.rows, kTileRows), 1, 1, tile_stored_at_once(a, weight.type)},
                    handover};
  const CUtensorMap weights = weight_map(weight, a.gated);
  launch("wide", kKernel, static_cast<unsigned>(num_sms), kTileThreads, R::kBytes, stream, weights,
         tensor_map(x, R::kWidth), out_map<R>(s, weights), s);
}

}  // namespace

bool can_share(
    const GemmWeight& w, int64_t n, int splits, int width, int num_sms, const Handover& handover) {
  const int tiles = ceil_div(w.rows, kTileRows);
  if (splits > 1 || n > width || width > 64) return false;
  if (tiles <= num_sms || tiles % num_sms == 0) return false;
  return num_sms * 2 <= Handover::kFlags && handover.bytes >= num_sms * kGivenBytes<8>;
}

void wide_shares(const BoxedArgs& a,
                 const Tensor& x,
                 const Tensor& weight,
                 int width,
                 int num_sms,
                 cudaStream_t stream,
                 const Handover& handover) {
  with_boxed_type(weight.type, [&](auto type) {
    using T = decltype(type);
    if (width == 32) return run_shares<T, 4>(a, x, weight, num_sms, stream, handover);
    run_shares<T, 8>(a, x, weight, num_sms, stream, handover);
  });
}

int64_t share_clocks(const GemmWeight& w, int num_sms) {
  const int64_t boxes = int64_t{ceil_div(w.rows, kTileRows)} * num_boxes(w);
  return ceil_div(boxes, num_sms) * int64_t{420} + 12000;
}

}  // namespace sluice::cuda
