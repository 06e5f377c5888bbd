// Products of many rows of x whose bits do not depend on how many there are (skinny.cuh). Where
// there are few tiles the product is spread, here: the blocks of a cluster have one or two ranges
// of columns each. A block has 128 weight rows and up to 256 rows of x: one warp copies boxes of
// both by tensor map through a ring in shared memory, two warpgroups multiply them, 64 weight rows
// each. Where there are more tiles, wide_persistent.cu and wide_shares.cu have other kernels.
#include <cooperative_groups.h>

#include <algorithm>
#include <type_traits>

#include "backend/cuda/boxed.cuh"
#include "backend/cuda/hopper.cuh"
#include "backend/cuda/skinny.cuh"
#include "backend/cuda/target.cuh"
#include "backend/cuda/wide_persistent.cuh"
#include "backend/cuda/wide_shares.cuh"
#include "base/check.h"

namespace sluice::cuda {

namespace {

constexpr int kWideThreads = 384;  // a warpgroup that copies (one warp of it), two that multiply
constexpr int kWidePitch = kTileRows + 4;  // of the sums, 4 bytes each

// How a product is cut: tiles of eight rows of x in a block's tile, blocks of a cluster, and ranges
// of columns of a block; apart: Spread.
template <int kTiles_, int kCluster_, int kRanges_, bool kApart_ = false>
struct Cut {
  static constexpr bool kApart = kApart_;
  static constexpr int kTiles = kTiles_, kWidth = 8 * kTiles, kCluster = kCluster_;
  static constexpr int kRanges = kRanges_, kSplits = kCluster * kRanges;
};

// Shared memory: the ring, behind it the sums of all ranges of a block but its last, which are put
// where the ring was.
template <typename C>
struct WideRing {
  static constexpr int kWeights = kTileRows * kRowBytes;
  static constexpr int kStage = kWeights + C::kWidth * kRowBytes;
  static constexpr int kSums = C::kWidth * kWidePitch * 4;
  static constexpr int kStages = (224 * 1024 - (C::kRanges - 1) * kSums) / kStage;
  static constexpr int kSumsAt = kStages * kStage;
  static constexpr int kBytes = kSumsAt + (C::kRanges - 1) * kSums + 1024;  // and room to align
  static_assert(kSums <= kSumsAt);
};

struct WideArgs {
  BoxedArgs a;
  int row_tiles, x_tiles;
  int at_once;  // neighbours of a row of out that can be stored: stored_at_once()
  Handover handover;
};

// A block's tile, its first weight row, and its place in its cluster.
struct Place : TilePlace {
  int part;
  __device__ Place(const WideArgs& w, int cluster)
      : TilePlace(static_cast<int>(blockIdx.x) / cluster, w.row_tiles, w.x_tiles, 8),
        part(static_cast<int>(blockIdx.x) % cluster) {
    row *= kTileRows;
  }
};

// Threads that multiply, and those of the whole cluster. The warps have different numbers of
// registers, so that each kind calls them in code of its own.
__device__ inline void sync_multiplying() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
__device__ inline void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

// Four neighbouring sums.
template <typename S>
struct alignas(16) FourSums {
  S v[4];
};

// The sums of all ranges at (t, column) of the tile, in ascending order, all on their way before
// the first is added. `memory`: of the ring.
template <typename T, typename C>
__device__ FourSums<SumOf<T>> add_ranges(uint8_t* memory, int t, int column) {
  using Four = FourSums<SumOf<T>>;
  using R = WideRing<C>;
  Four part[C::kSplits];
#if SLUICE_HAS_CLUSTERS
#pragma unroll
  for (int k = 0; k < C::kSplits; ++k) {
    const int range = k % C::kRanges;
    const int at = range + 1 < C::kRanges ? R::kSumsAt + range * R::kSums : 0;
    const auto* from = cooperative_groups::this_cluster().map_shared_rank(
        memory + at + (t * kWidePitch + column) * 4, static_cast<unsigned>(k / C::kRanges));
    part[k] = *reinterpret_cast<const Four*>(from);
  }
#endif
  Four total = {};
#pragma unroll
  for (int k = 0; k < C::kSplits; ++k) {
#pragma unroll
    for (int j = 0; j < 4; ++j) total.v[j] += part[k].v[j];
  }
  return total;
}

// Four neighbours of a row, the first of weight row `row`.
__device__ inline void store_four(const WideArgs& w, int64_t at, int row, const float (&y)[4]) {
  const BoxedArgs& a = w.a;
  if (w.at_once == 4) {
    *reinterpret_cast<float4*>(static_cast<float*>(a.out) + at) = {y[0], y[1], y[2], y[3]};
    return;
  }
  if (w.at_once == 8) {
    const bool f16 = a.out_type == DType::f16;
    *reinterpret_cast<uint2*>(static_cast<__half*>(a.out) + at) =
        f16 ? uint2{two_of<__half>(y[0], y[1]), two_of<__half>(y[2], y[3])}
            : uint2{two_of<__nv_bfloat16>(y[0], y[1]), two_of<__nv_bfloat16>(y[2], y[3])};
    return;
  }
  store_two(a, w.at_once == 2, at, row, y[0], y[1]);
  if (row + 2 < a.rows) store_two(a, w.at_once == 2, at + 2, row + 2, y[2], y[3]);
}

// Gates times ups. A row has 64 of them in a tile.
template <typename T, typename C>
__device__ void store_gated_tile(const WideArgs& w, uint8_t* memory, const Place& place) {
  const BoxedArgs& a = w.a;
  const int thread = static_cast<int>(threadIdx.x), first_x = place.x * C::kWidth;
  const int num = min(C::kWidth, a.n - first_x);
  const int column = thread % 16 * 4, at = gate_row(column);
  if (place.row + at >= a.rows) return;
  T* out = static_cast<T*>(a.out) + first_x * a.out_stride + place.row / 2 + column;
#pragma unroll 2
  for (int t = place.part + thread / 16 * C::kCluster; t < num; t += 16 * C::kCluster) {
    const FourSums<float> gate = add_ranges<T, C>(memory, t, at);
    const FourSums<float> up = add_ranges<T, C>(memory, t, at + 8);
    float y[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) y[j] = gated<T>(a, gate.v[j], up.v[j]);
    *reinterpret_cast<uint2*>(out + t * a.out_stride) = {two_of<T>(y[0], y[1]),
                                                         two_of<T>(y[2], y[3])};
  }
}

// Sums [row of x][weight row] to out: each block adds up those of all ranges for its share of x's
// rows.
template <typename T, typename C>
__device__ void store_tile(const WideArgs& w, uint8_t* memory, const Place& place) {
  const BoxedArgs& a = w.a;
  const int thread = static_cast<int>(threadIdx.x), first_x = place.x * C::kWidth;
  const int num = min(C::kWidth, a.n - first_x);
  const int column = thread % 32 * 4, row = place.row + column;
  if (row >= a.rows) return;
  const RowTerms terms[4] = {{a, row}, {a, row + 1}, {a, row + 2}, {a, row + 3}};
#pragma unroll 2
  for (int t = place.part + thread / 32 * C::kCluster; t < num; t += 8 * C::kCluster) {
    const FourSums<SumOf<T>> total = add_ranges<T, C>(memory, t, column);
    float y[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      auto sum = static_cast<float>(total.v[j]);
      if constexpr (sizeof(T) == 1) sum *= a.x_scale[first_x + t];
      y[j] = fmaf(sum, terms[j].scale, terms[j].bias);
    }
    store_four(w, (first_x + t) * a.out_stride + row, row, y);
  }
}

template <typename T, typename C>
__device__ void store_tiles(const WideArgs& w, uint8_t* memory, const Place& place) {
  if constexpr (kGates<T, C::kWidth>) {
    if (w.a.gated) return store_gated_tile<T, C>(w, memory, place);
  }
  store_tile<T, C>(w, memory, place);
}

template <int kTiles, typename S>
__device__ __forceinline__ void put_sums(S* sums, const S (&sum)[kTiles][4], int warp, int lane) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      sums[(t * 8 + lane % 4 * 2 + j % 2) * kWidePitch + warp * 16 + lane / 4 + j / 2 * 8] =
          sum[t][j];
  }
}

// Leaves a block's sums for the last block of its tile to finish. Returns true in that block, with
// `sum` added up over all of them. By all threads that multiply.
template <typename C>
__device__ __forceinline__ bool gather(const Handover& h, float (&sum)[C::kTiles][4]) {
  constexpr int kThreads = 256;
  __shared__ bool last;
  const auto block = static_cast<int>(blockIdx.x), tile = block / C::kCluster;
  auto place = [&](int part, int t) {
    const int64_t at = static_cast<int64_t>(tile * C::kCluster + part) * C::kTiles + t;
    return static_cast<float4*>(h.sums) + at * kThreads + threadIdx.x;
  };
#pragma unroll
  for (int t = 0; t < C::kTiles; ++t)
    __stcg(place(block % C::kCluster, t), {sum[t][0], sum[t][1], sum[t][2], sum[t][3]});
  __threadfence();
  sync_multiplying();
  if (threadIdx.x == 0) {
    last = atomicAdd(h.flags + tile, 1u) == C::kCluster - 1;
    if (last) h.flags[tile] = 0;  // for the next kernel
    __threadfence();
  }
  sync_multiplying();
  if (!last) return false;
#pragma unroll
  for (int t = 0; t < C::kTiles; ++t) {
    float4 part[C::kCluster];
#pragma unroll
    for (int k = 0; k < C::kCluster; ++k) part[k] = __ldcg(place(k, t));
    float total[4] = {};
#pragma unroll
    for (int k = 0; k < C::kCluster; ++k)
      total[0] += part[k].x, total[1] += part[k].y, total[2] += part[k].z, total[3] += part[k].w;
#pragma unroll
    for (int j = 0; j < 4; ++j) sum[t][j] = total[j];
  }
  return true;
}

template <typename T, typename C>
__global__ void __launch_bounds__(kWideThreads, 1)
    wide_kernel(const __grid_constant__ CUtensorMap weights,
                const __grid_constant__ CUtensorMap x,
                const __grid_constant__ WideArgs w) {
#if SLUICE_HAS_WGMMA
  using R = WideRing<C>;
  constexpr int kBox = kRowBytes / static_cast<int>(sizeof(T));  // columns
  extern __shared__ uint8_t unaligned[];
  __shared__ uint64_t barriers[2 * R::kStages];
  let_next_start();
  const auto start = static_cast<uint32_t>(__cvta_generic_to_shared(unaligned));
  const uint32_t ring = (start + 1023) & ~1023u;
  const auto full = static_cast<uint32_t>(__cvta_generic_to_shared(barriers));
  const uint32_t empty = full + R::kStages * 8;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  init_ring_barriers(full, empty, R::kStages, 8);

  const Place place(w, C::kCluster);
  const int boxes = (w.a.cols + kBox - 1) / kBox;
  auto range_at = [&](int i) { return boxes * (place.part * C::kRanges + i) / C::kSplits; };
  const int first = range_at(0), num = range_at(C::kRanges) - first;
  if (warp >= 8) {
    give_registers<24>();
    if (warp == 8 && lane == 0) {
      prefetch_map(x);
      auto copy_weights = [&](int i) {
        uint32_t barrier = full + i % R::kStages * 8;
        barrier_expect(barrier, R::kStage);
        copy_weight_box<Reuse::normal>(ring + i % R::kStages * R::kStage, weights, w.a.gated,
                                       (first + i) * kBox, place.row, barrier);
      };
      auto copy_inputs = [&](int i) {
        copy_box<Reuse::normal>(ring + i % R::kStages * R::kStage + R::kWeights, x,
                                (first + i) * kBox, place.x * C::kWidth, full + i % R::kStages * 8);
      };
      const int ahead = min(num, R::kStages);
      for (int i = 0; i < ahead; ++i) copy_weights(i);
      wait_for_inputs();
      for (int i = 0; i < ahead; ++i) copy_inputs(i);
      for (int i = ahead; i < num; ++i) {
        barrier_wait(empty + i % R::kStages * 8, i / R::kStages - 1);
        copy_weights(i);
        copy_inputs(i);
      }
    }
    __syncwarp();
    if constexpr (!C::kApart) {
      sync_cluster();
      sync_cluster();
    }
  } else {
    take_registers<240>();
    wait_for_inputs();
    const int half = warp / 4;  // of the weight rows
    uint8_t* memory = unaligned + (ring - start);
    int i = 0;  // boxes so far
#pragma unroll 1
    for (int range = 0; range < C::kRanges; ++range) {
      SumOf<T> sum[C::kTiles][4] = {};
      const int begin = i, end = range_at(range + 1) - first;
      auto multiply = [&](SumOf<T>(&d)[C::kTiles][4], bool add) {
        const uint32_t stage = ring + i % R::kStages * R::kStage;
        barrier_wait(full + i % R::kStages * 8, i / R::kStages);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          product(d, operand(stage + half * 64 * kRowBytes + k * 32),
                  operand(stage + R::kWeights + k * 32), add || k > 0, T{});
        }
        wgmma_commit();
      };
      if constexpr (kFewBits<T>) {
        for (; i < end; ++i) {
          SumOf<T> part[C::kTiles][4];
          multiply(part, false);
          wgmma_wait<0>();
          pin(part);
          if (lane == 0) barrier_arrive(empty + i % R::kStages * 8);
#pragma unroll
          for (int t = 0; t < C::kTiles; ++t) {
#pragma unroll
            for (int j = 0; j < 4; ++j) sum[t][j] += part[t][j];
          }
        }
      } else {
        for (; i < end; ++i) {
          multiply(sum, i > begin);
          // The box before has been read; this one is on its way.
          wgmma_wait<1>();
          if (i > begin && lane == 0) barrier_arrive(empty + (i - 1) % R::kStages * 8);
        }
        wgmma_wait<0>();
        pin(sum);
        if (begin < end && lane == 0) barrier_arrive(empty + (end - 1) % R::kStages * 8);
      }
      const bool last = range + 1 == C::kRanges;
      if (last) sync_multiplying();  // all boxes have been read: the ring is free
      auto* sums = reinterpret_cast<SumOf<T>*>(memory + (last ? 0 : R::kSumsAt + range * R::kSums));
      if constexpr (C::kApart) {
        if (!gather<C>(w.handover, sum)) return;
      }
      put_sums(sums, sum, warp, lane);
    }
    if constexpr (C::kApart) {
      using One = Cut<C::kTiles, 1, 1>;
      sync_multiplying();
      Place all = place;
      all.part = 0;
      store_tiles<T, One>(w, memory, all);
    } else {
      sync_cluster();
      store_tiles<T, C>(w, memory, place);
      __syncwarp();
      sync_cluster();  // nobody leaves while others read
    }
  }
#else
  __trap();
#endif
}

template <typename T, typename C>
void run_wide(const BoxedArgs& a,
              const Tensor& x,
              const Tensor& weight,
              cudaStream_t stream,
              const Handover& handover = {}) {
  using R = WideRing<C>;
  constexpr auto kKernel = wide_kernel<T, C>;
  allow_shared<kKernel>(R::kBytes, "wide");
  CHECK(!a.gated || (kGates<T, C::kWidth>));
  const WideArgs w{a, ceil_div(a.rows, kTileRows), ceil_div(a.n, C::kWidth), stored_at_once(a),
                   handover};
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {C::kApart ? 1 : C::kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(w.row_tiles * w.x_tiles * C::kCluster);
  config.blockDim = kWideThreads;
  config.dynamicSmemBytes = R::kBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  check(cudaLaunchKernelEx(&config, kKernel, weight_map(weight, a.gated), tensor_map(x, C::kWidth),
                           w),
        "wide");
}

template <typename T>
void run_typed(const BoxedArgs& a,
               const Tensor& x,
               const Tensor& weight,
               const Spread& s,
               cudaStream_t stream,
               const Handover& handover) {
  if constexpr (sizeof(T) == 2) {
    if (s.apart) {
      auto apart = [&](auto tiles) {
        constexpr int kTiles = decltype(tiles)::value;
        if (s.cluster == 2)
          return run_wide<T, Cut<kTiles, 2, 1, true>>(a, x, weight, stream, handover);
        CHECK(s.cluster == 3);
        run_wide<T, Cut<kTiles, 3, 1, true>>(a, x, weight, stream, handover);
      };
      if (s.width == 64) return apart(std::integral_constant<int, 8>{});
      if (s.width == 128) return apart(std::integral_constant<int, 16>{});
      CHECK(s.width == 256);
      return apart(std::integral_constant<int, 32>{});
    }
  }
  CHECK(!s.apart);
  auto with_tiles = [&](auto tiles) {
    constexpr int kTiles = decltype(tiles)::value;
    if (s.ranges == 2) return run_wide<T, Cut<kTiles, 4, 2>>(a, x, weight, stream);
    if (s.cluster == 4) return run_wide<T, Cut<kTiles, 4, 1>>(a, x, weight, stream);
    if (s.cluster == 3) return run_wide<T, Cut<kTiles, 3, 1>>(a, x, weight, stream);
    CHECK(s.cluster == 2);
    run_wide<T, Cut<kTiles, 2, 1>>(a, x, weight, stream);
  };
  if (s.width == 32) return with_tiles(std::integral_constant<int, 4>{});
  if (s.width == 64) return with_tiles(std::integral_constant<int, 8>{});
  if (s.width == 128) return with_tiles(std::integral_constant<int, 16>{});
  CHECK(s.width == 256 && s.ranges == 1);
  if constexpr (!kFewBits<T>) {
    if (s.cluster == 8) return run_wide<T, Cut<32, 8, 1>>(a, x, weight, stream);
    if (s.cluster == 4) return run_wide<T, Cut<32, 4, 1>>(a, x, weight, stream);
    if (s.cluster == 3) return run_wide<T, Cut<32, 3, 1>>(a, x, weight, stream);
    run_wide<T, Cut<32, 2, 1>>(a, x, weight, stream);
  }
}

template <int kCluster>
int count_clusters() {
  using C = Cut<4, kCluster, 1>;
  constexpr auto kKernel = wide_kernel<__nv_bfloat16, C>;
  allow_shared<kKernel>(WideRing<C>::kBytes, "wide");
  cudaLaunchAttribute size{};
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = kCluster * 1024;
  config.blockDim = kWideThreads;
  config.dynamicSmemBytes = WideRing<C>::kBytes;
  config.attrs = &size;
  config.numAttrs = 1;
  int num = 0;
  check(cudaOccupancyMaxActiveClusters(&num, kKernel, &config), "wide");
  return std::max(num, 1);
}

// About how many clocks it takes, measured on an H200: boxes one after the other, and what comes
// before and behind them.
int64_t spread_clocks(const GemmWeight& w, int64_t n, const Spread& s, int num_sms) {
  const int64_t tiles = int64_t{ceil_div(w.rows, kTileRows)} * ceil_div(n, s.width);
  if (s.apart) {
    const int64_t box = s.width == 64 ? 420 : s.width == 128 ? 640 : 1104;
    const int64_t behind = 18000 + 20 * s.width;  // sums go through the L2 cache
    return ceil_div(tiles * s.cluster, num_sms) *
           (ceil_div(num_boxes(w), s.cluster) * box + behind);
  }
  const int64_t at_once = std::clamp(num_sms / s.cluster, 1, clusters_at_once(s.cluster));
  const int64_t of_two = s.ranges == 2 ? 800 : 700;  // with a shorter ring, and a longer one
  const int64_t box = s.width <= 64 ? 420 : s.width == 128 ? of_two : 1104;
  return ceil_div(tiles, at_once) * (ceil_div(num_boxes(w), s.cluster) * box + 15000);
}

// Whether there is memory for blocks that are no cluster.
bool can_be_apart(const GemmWeight& w, int64_t n, const Spread& s, const Handover& handover) {
  const int64_t tiles = int64_t{ceil_div(w.rows, kTileRows)} * ceil_div(n, s.width);
  return dtype_bytes(w.type) == 2 && (s.cluster == 2 || s.cluster == 3) &&
         tiles <= Handover::kFlags && tiles * s.cluster * s.width * kTileRows * 4 <= handover.bytes;
}

}  // namespace

int clusters_at_once(int blocks) {
  if (!has_wgmma()) return std::max(1, target().num_sms / blocks);  // nobody will start them
  static const int num[] = {count_clusters<2>(), count_clusters<3>(), count_clusters<4>()};
  return blocks == 8 ? num[2] / 2 : num[std::clamp(blocks, 2, 4) - 2];
}

bool can_wide(const Tensor& x, const GemmWeight& w) {
  return fits_boxes(x, w) && (dtype_bytes(w.type) > 1 || w.scale) && has_wgmma();
}

Spread wide_spread(
    const GemmWeight& w, int64_t n, int splits, int num_sms, const Handover& handover) {
  Spread best;
  int64_t least = persistent_clocks(w, n, splits, num_sms);
  if (splits == 1) {
    const int width = n <= 32 ? 32 : 64;
    if (can_share(w, n, splits, width, num_sms, handover) && share_clocks(w, num_sms) < least)
      best = {1, 1, width, false, true};
    return best;
  }
  const Spread some = splits == 8 ? Spread{4, 2} : Spread{splits, 1};
  auto consider = [&](const Spread& s) {
    const int64_t clocks = spread_clocks(w, n, s, num_sms);
    if (clocks < least) best = s, least = clocks;
  };
  consider({some.cluster, some.ranges, n <= 32 ? 32 : n <= 64 ? 64 : 128});
  if (n > 128 && w.type != DType::f8) consider({splits, 1, 256});
  for (int width : {64, 128, 256}) {
    const Spread apart{splits, 1, width, true};
    if ((width == 64 || n > width / 2) && can_be_apart(w, n, apart, handover)) consider(apart);
  }
  return best;
}

void wide(Tensor out,
          Tensor x,
          const float* x_scale,
          const GemmWeight& w,
          int splits,
          int num_sms,
          cudaStream_t stream,
          std::optional<Spread> spread,
          Handover handover) {
  const BoxedArgs a = boxed_args(out, x_scale, w);
  const Tensor weight{const_cast<void*>(w.data), w.type, w.rows, w.cols, w.cols};
  const Spread s = spread ? *spread : wide_spread(w, a.n, splits, num_sms, handover);
  if (s.even) {
    CHECK(can_share(w, a.n, splits, s.width, num_sms, handover));
    return wide_shares(a, x, weight, s.width, num_sms, stream, handover);
  }
  if (s.cluster == 1) return wide_persistent(a, x, weight, splits, num_sms, stream);
  CHECK(s.cluster * s.ranges == splits && (!s.apart || can_be_apart(w, a.n, s, handover)));
  with_boxed_type(w.type,
                  [&](auto type) { run_typed<decltype(type)>(a, x, weight, s, stream, handover); });
}

}  // namespace sluice::cuda
