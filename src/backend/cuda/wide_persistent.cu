// Products by blocks that stay, one on each multiprocessor. A block takes one tile of 128 weight
// rows by up to 256 rows of x after the other: the next tile's boxes are copied while sums are
// scaled and stored (wide_store.cuh), for which there is memory beside the ring. As in wide.cu one
// warp copies, and two warpgroups multiply, 64 weight rows each. Tiles that are left when all
// blocks have had the same number may be cut: 2 or 4 blocks then have a part of x's rows each. Two
// blocks may be a cluster, with neighbouring weight rows and the same rows of x: each copies half
// of these to both, so that x leaves the L2 cache once for 256 weight rows. Large products run at
// the power limit, and this saves some of it.
#include "backend/cuda/wide_persistent.cuh"

#include <algorithm>
#include <cstdint>

#include "backend/cuda/cluster.cuh"
#include "backend/cuda/hopper.cuh"
#include "backend/cuda/wide_copy.cuh"
#include "backend/cuda/wide_multiply.cuh"
#include "backend/cuda/wide_store.cuh"
#include "base/check.h"

namespace sluice::cuda {

namespace {

// Whether tiles of this width have a kernel for pairs of blocks: at 192 rows of x they gain
// nothing.
template <int kTiles>
inline constexpr bool kPairs = kTiles == 32;

// A thread's own place in shared memory. As instructions that keep their order, so that few are on
// their way at a time: there are no registers for more.
__device__ inline void load_four(float (&v)[4], uint32_t at) {
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(at)
               : "memory");
}
__device__ inline void store_four(uint32_t at, const float (&v)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(v[0]), "f"(v[1]), "f"(v[2]),
               "f"(v[3])
               : "memory");
}

// Whether sums over all columns are made in one go: of integers, which are exact however they are
// added up, and where registers have no room for another set of sums, unless that spills. f8 has
// one set more (kFewBits).
template <typename T, int kTiles, bool kSpills>
inline constexpr bool kOneRange = std::is_same_v<T, int8_t> ||
                                  (!kSpills && kTiles > (kFewBits<T> ? 16 : 24));

// Tile by tile.
template <typename T, int kTiles, int kBlocks, bool kSpills>
struct TileMultiplier : Multiplier<T, kTiles, kBlocks, kSpills> {
  using Base = Multiplier<T, kTiles, kBlocks, kSpills>;
  using R = typename Base::R;
  using Base::add_boxes, Base::half;

  // all = the sums over all ranges, in ascending order, of a whole tile that spills. `memory`: of
  // this warpgroup, from which its last tile may still be stored. (The last range is added behind
  // the loop but multiplied in it: added there, the compiler spills registers; multiplied behind
  // it, the matrix instructions wait for each other, of which ptxas warns as C7515.)
  __device__ __forceinline__ void add_ranges(const PersistentArgs& s,
                                             int boxes,
                                             uint32_t memory,
                                             float (&all)[kTiles][4]) {
    constexpr int kKept = R::Sums::kKept;
    const uint32_t spilled = memory + threadIdx.x % 128 * 16;
    auto place = [&](int t) { return spilled + (t - kKept) * 128 * 16; };
    float sum[kTiles][4] = {}, kept[kKept][4] = {};
    int begin = 0;
#pragma unroll 1
    for (int split = 1;; ++split) {
      const int end = boxes * split / s.splits;
      if (end == begin) continue;  // not the last
      add_boxes(sum, end - begin);
      if (split == s.splits) break;
      if (begin == 0) {
        if (threadIdx.x % 128 == 0) wait_until_read<0>();
        sync_half(half);
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if (t < kKept) {
          add(kept[t % kKept], sum[t]);
          continue;
        }
        float total[4] = {};
        if (begin > 0) load_four(total, place(t));
        add(total, sum[t]);
        store_four(place(t), total);
      }
      begin = end;
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      all[t][0] = all[t][1] = all[t][2] = all[t][3] = 0;
      if (t < kKept) {
        add(all[t], kept[t % kKept]);
      } else if (begin > 0) {
        load_four(all[t], place(t));
      }
      add(all[t], sum[t]);
    }
  }
  template <int kNow>
  __device__ __forceinline__ void run_tile(const PersistentArgs& s,
                                           const CUtensorMap& out,
                                           int boxes,
                                           uint8_t* memory,
                                           const PersistentPlace& place) {
    const TwoTerms terms(s.a, place.row + half * kPersistentHalf);
    auto store = [&](const auto& sum) { this->store_tile(s, out, sum, terms, memory, place); };
    SumOf<T> sum[kNow][4] = {};
    if constexpr (kOneRange<T, kTiles, kSpills>) {
      add_boxes(sum, boxes);
      store(sum);
    } else if constexpr (kSpills && kNow == kTiles) {
      // Not the registers that the tensor cores add to, which nobody else may write.
      add_ranges(s, boxes, static_cast<uint32_t>(__cvta_generic_to_shared(memory)), sum);
      store(sum);
    } else {
      float total[kNow][4] = {};
      for (int split = 0; split < s.splits; ++split) {
        const int num = boxes * (split + 1) / s.splits - boxes * split / s.splits;
        add_boxes(sum, num);
        if (num > 0) add_to(total, sum);
      }
      store(total);
    }
  }
};

template <typename T, int kTiles, int kBlocks, bool kSpills>
__global__ void __launch_bounds__(kTileThreads, 1)
    wide_persistent_kernel(const __grid_constant__ CUtensorMap weights,
                           const __grid_constant__ CUtensorMap x,
                           const __grid_constant__ CUtensorMap x_quarters,
                           const __grid_constant__ CUtensorMap out,
                           const __grid_constant__ PersistentArgs s) {
#if SLUICE_HAS_WGMMA
  using R = PersistentRing<kTiles, kSpills>;
  constexpr int kBox = kRowBytes / static_cast<int>(sizeof(T));  // columns
  extern __shared__ uint8_t unaligned[];
  __shared__ uint64_t barriers[2 * R::kStages];
  let_next_start();
  const RingPlace at = make_ring<R, kBlocks>(unaligned, barriers);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int rank = kBlocks > 1 ? block_in_cluster() : 0;
  auto sync_pair = [] {  // the other's barriers are there, or it is done with this block's memory
    if constexpr (kBlocks > 1) {
      __syncwarp();
      cluster_arrive();
      cluster_wait();
    }
  };
  sync_pair();
  const int boxes = (s.a.cols + kBox - 1) / kBox;
  const auto first = static_cast<int>(blockIdx.x) / kBlocks;
  const auto step = static_cast<int>(gridDim.x) / kBlocks;
  if (warp >= 8) {
    give_registers<24>();
    if (warp == 8 && lane == 0) {
      const Copier<T, kTiles, kBlocks, kSpills> copier{s, weights, x, x_quarters, at, rank};
      copier.run(s, first, step, boxes);
    }
    sync_pair();
    return;
  }
  take_registers<240>();
  wait_for_inputs();
  const int half = warp / 4;
  uint8_t* memory = room_of<R>(unaligned, at, half);
  TileMultiplier<T, kTiles, kBlocks, kSpills> m{{at, half, lane}};
  for (int item = first; item < s.items; item += step) {
    const PersistentPlace place = place_of(s, item, R::kWidth, kBlocks, rank);
    if constexpr (kCuts<kTiles>) {
      if (place.parts == 4) {
        m.template run_tile<kTiles / 4>(s, out, boxes, memory, place);
        continue;
      }
      if (place.parts == 2) {
        m.template run_tile<kTiles / 2>(s, out, boxes, memory, place);
        continue;
      }
    }
    m.template run_tile<kTiles>(s, out, boxes, memory, place);
  }
  if (threadIdx.x % 128 == 0) wait_until_stored();
  sync_pair();
#else
  __trap();
#endif
}

// How the tiles of a product are cut for blocks that stay: `whole` tiles, and others in `parts`.
struct TileCut {
  int whole, parts, items;
};
TileCut cut_tiles(int tiles, int width, int num_sms) {
  const int left = tiles % num_sms;
  if (width < 128 || left == 0 || left * 2 > num_sms) return {tiles, 1, tiles};
  const int parts = left * 4 <= num_sms ? 4 : 2;
  return {tiles - left, parts, tiles - left + left * parts};
}

// Tiles of weights whose blocks share rows of x: about as many bytes of weights as of x are read by
// all blocks at a time.
constexpr int kInGroup = 16;
int tiles_in_group(int row_tiles, int most) {
  return ceil_div(row_tiles, ceil_div(row_tiles, most));
}

template <typename T, int kTiles, int kBlocks, bool kSpills>
void run_persistent(const BoxedArgs& a,
                    const Tensor& x,
                    const Tensor& weight,
                    int splits,
                    int num_sms,
                    cudaStream_t stream) {
  using R = PersistentRing<kTiles, kSpills>;
  constexpr auto kKernel = wide_persistent_kernel<T, kTiles, kBlocks, kSpills>;
  allow_shared<kKernel>(R::kBytes, "wide");
  CHECK(!a.gated || (kGates<T, R::kWidth>));
  const int row_tiles = ceil_div(a.rows, kBlocks * kTileRows), x_tiles = ceil_div(a.n, R::kWidth);
  const int at_once = num_sms / kBlocks;
  const TileCut cut = cut_tiles(row_tiles * x_tiles, R::kWidth, at_once);
  const int group = tiles_in_group(row_tiles, kInGroup / kBlocks);
  const PersistentArgs s{
      {a, splits, row_tiles, x_tiles, group, tile_stored_at_once(a, weight.type)},
      cut.whole,
      cut.parts,
      cut.items};
  const CUtensorMap weights = weight_map(weight, a.gated);
  const CUtensorMap out = out_map<R>(s, weights);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {kBlocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(std::min(at_once, s.items) * kBlocks);
  config.blockDim = kTileThreads;
  config.dynamicSmemBytes = R::kBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = kBlocks > 1 ? 2 : 1;
  check(cudaLaunchKernelEx(&config, kKernel, weights, tensor_map(x, R::kWidth / kBlocks),
                           tensor_map(x, R::kQuarter), out, s),
        "wide");
}

// About how many clocks it takes with tiles of so many rows of x, measured on an H200: a box waits
// for its copies or for the tensor cores, and a tile has an end beside them.
int64_t clocks_of(int64_t rows, int64_t n, int64_t boxes, int width, bool spills, int num_sms) {
  const TileCut cut = cut_tiles(ceil_div(rows, kTileRows) * ceil_div(n, width), width, num_sms);
  const int least = spills ? 600 : 420;  // with a shorter ring
  auto clocks = [&](int w) { return boxes * std::max(least, 4 * w + (w == 256 ? 80 : 96)) + 7000; };
  const int64_t last = cut.parts > 1 ? clocks(width / cut.parts) + 1500 : 0;
  return ceil_div(cut.whole, num_sms) * clocks(width) + last;
}

// As registers allow.
int widest(DType type, int splits) {
  if (type == DType::f8) return splits == 1 ? 192 : 128;
  return 256;
}

// Whether sums of several ranges go through shared memory (Totals).
bool spills(DType type, int width, int splits) {
  return width == 256 && splits > 1 && dtype_bytes(type) == 2;
}

int best_width(int64_t rows, int64_t n, int64_t boxes, DType type, int splits, int num_sms) {
  const int most = widest(type, splits);
  int best = 0;
  int64_t least = INT64_MAX;
  for (int width : {256, 192, 128, 64, 32}) {
    if (width > most || (width > 32 && width >= 2 * n)) continue;
    const int64_t clocks = clocks_of(rows, n, boxes, width, spills(type, width, splits), num_sms);
    if (clocks < least) best = width, least = clocks;
  }
  return best;
}

// Pairs of blocks where they have no more to do than single ones.
int blocks_of(int64_t rows, int64_t n, int width, int num_sms) {
  const int row_tiles = ceil_div(rows, kTileRows), x_tiles = ceil_div(n, width);
  if (num_sms < 2 || row_tiles % 2 != 0 || row_tiles * x_tiles < 2 * num_sms) return 1;
  const TileCut one = cut_tiles(row_tiles * x_tiles, width, num_sms);
  const TileCut two = cut_tiles(row_tiles / 2 * x_tiles, width, num_sms / 2);
  const bool same = ceil_div(two.items, num_sms / 2) == ceil_div(one.items, num_sms);
  return same && two.parts == one.parts ? 2 : 1;
}

template <typename T>
void run_typed(const BoxedArgs& a,
               const Tensor& x,
               const Tensor& weight,
               int splits,
               int num_sms,
               cudaStream_t stream,
               PersistentWay way) {
  const int64_t boxes = ceil_div(a.cols * static_cast<int>(sizeof(T)), kRowBytes);
  CHECK(way.width <= widest(weight.type, splits));
  if (way.width == 0) way.width = best_width(a.rows, a.n, boxes, weight.type, splits, num_sms);
  auto with_tiles = [&](auto tiles) {
    constexpr int kTiles = decltype(tiles)::value;
    auto with_blocks = [&](auto num) {
      constexpr int kBlocks = decltype(num)::value;
      if constexpr (kTiles == 32 && sizeof(T) == 2) {
        if (splits > 1)
          return run_persistent<T, kTiles, kBlocks, true>(a, x, weight, splits, num_sms, stream);
      }
      run_persistent<T, kTiles, kBlocks, false>(a, x, weight, splits, num_sms, stream);
    };
    if constexpr (kPairs<kTiles>) {
      const int blocks = way.blocks ? way.blocks : blocks_of(a.rows, a.n, way.width, num_sms);
      if (blocks == 2) return with_blocks(std::integral_constant<int, 2>{});
    }
    with_blocks(std::integral_constant<int, 1>{});
  };
  if (way.width == 32) return with_tiles(std::integral_constant<int, 4>{});
  if (way.width == 64) return with_tiles(std::integral_constant<int, 8>{});
  if (way.width == 128) return with_tiles(std::integral_constant<int, 16>{});
  if (way.width == 192) return with_tiles(std::integral_constant<int, 24>{});
  CHECK(way.width == 256);
  if constexpr (!kFewBits<T>) with_tiles(std::integral_constant<int, 32>{});
}

}  // namespace

int64_t persistent_clocks(const GemmWeight& w, int64_t n, int splits, int num_sms) {
  const int64_t boxes = num_boxes(w);
  const int width = best_width(w.rows, n, boxes, w.type, splits, num_sms);
  return clocks_of(w.rows, n, boxes, width, spills(w.type, width, splits), num_sms);
}

void wide_persistent(const BoxedArgs& a,
                     const Tensor& x,
                     const Tensor& weight,
                     int splits,
                     int num_sms,
                     cudaStream_t stream,
                     PersistentWay way) {
  if (weight.type == DType::i8) splits = 1;  // exact however they are added up
  with_boxed_type(weight.type, [&](auto type) {
    run_typed<decltype(type)>(a, x, weight, splits, num_sms, stream, way);
  });
}

}  // namespace sluice::cuda
