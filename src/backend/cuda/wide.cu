// Products of many rows of x whose bits do not depend on how many there are (skinny.cuh). A block
// has 128 weight rows and up to 192 rows of x: one warp copies boxes of both by tensor map through
// a ring in shared memory, two warpgroups multiply them, 64 weight rows each. A block adds up the
// ranges of columns one after the other; where there are few tiles, the product is spread: the
// blocks of a cluster have one range each. int8 uses this kernel only when spread (wide_int8.cuh).
#include <cooperative_groups.h>

#include "backend/cuda/boxed.cuh"
#include "backend/cuda/hopper.cuh"
#include "backend/cuda/skinny.cuh"
#include "backend/cuda/target.cuh"
#include "backend/cuda/wide_int8.cuh"

namespace sluice::cuda {

namespace {

constexpr int kWideThreads = 384;  // a warpgroup that copies (one warp of it), two that multiply
constexpr int kWidePitch = kTileRows + 4;  // of the sums, 4 bytes each
constexpr int kGroup = 8;                  // tiles of weights that share rows of x in the L2

template <typename T>
inline constexpr bool kExact = std::is_same_v<T, int8_t>;

template <int kTiles>
struct WideRing {
  static constexpr int kWeights = kTileRows * kRowBytes;
  static constexpr int kStage = kWeights + kTiles * 8 * kRowBytes;
  static constexpr int kStages = 224 * 1024 / kStage;
  static constexpr int kBytes = kStages * kStage + 1024;  // and room to align
  static_assert(kTiles * 8 * kWidePitch * 4 <= kStages * kStage);
};

struct WideArgs {
  BoxedArgs a;
  int splits;  // ranges of columns; spread: blocks of a cluster
  int row_tiles, x_tiles;
  bool in_pairs;  // two neighbours of a row of out can be stored at once
};

// Which tile a block has: groups of kGroup tiles of weights, all of x for each.
template <bool kSpread>
struct Place {
  int row, x, part = 0;
  __device__ explicit Place(const WideArgs& w) {
    int index = static_cast<int>(blockIdx.x);
    if constexpr (kSpread) {
      part = index % w.splits;
      index /= w.splits;
    }
    int group = index / (kGroup * w.x_tiles);
    int height = min(kGroup, w.row_tiles - group * kGroup);
    int inside = index - group * kGroup * w.x_tiles;
    row = (group * kGroup + inside % height) * kTileRows;
    x = inside / height;
  }
};

template <int kTiles>
__device__ inline void add_to(float (&total)[kTiles][4], const float (&sum)[kTiles][4]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int j = 0; j < 4; ++j) total[t][j] += sum[t][j];
  }
}

// Threads that multiply, and those of the whole cluster. The warps have different numbers of
// registers, so that each kind calls them in code of its own.
__device__ inline void sync_multiplying() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
__device__ inline void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

__device__ inline uint32_t packed(__half a, __half b) {
  return static_cast<uint32_t>(__half_as_ushort(a)) | static_cast<uint32_t>(__half_as_ushort(b))
                                                          << 16;
}
__device__ inline uint32_t packed(__nv_bfloat16 a, __nv_bfloat16 b) {
  return static_cast<uint32_t>(__bfloat16_as_ushort(a)) |
         static_cast<uint32_t>(__bfloat16_as_ushort(b)) << 16;
}

// Two neighbours of a row of out at once; T: out's type, or int8 where that is known later.
template <typename T>
__device__ inline void store_pair(const BoxedArgs& a, int64_t at, float left, float right) {
  if constexpr (std::is_same_v<T, int8_t>) {
    if (a.out_type == DType::f16) return store_pair<__half>(a, at, left, right);
    store_pair<__nv_bfloat16>(a, at, left, right);
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<T*>(a.out) + at) =
        packed(from_float<T>(left), from_float<T>(right));
  }
}

// Two neighbouring sums.
template <typename S>
struct alignas(8) SumPair {
  S x, y;
};

// Sums [row of x][weight row] from shared memory to out; spread, each block adds up those of all in
// ascending order for its share of x's rows.
template <typename T, int kTiles, bool kSpread>
__device__ void store_tile(const WideArgs& w, SumOf<T>* sums, const Place<kSpread>& place) {
  using Pair = SumPair<SumOf<T>>;
  namespace cg = cooperative_groups;
  const BoxedArgs& a = w.a;
  const int thread = static_cast<int>(threadIdx.x), first_x = place.x * kTiles * 8;
  const int num = min(kTiles * 8, a.n - first_x), parts = kSpread ? w.splits : 1;
  const int column = thread % 64 * 2, row = place.row + column;
  if (row >= a.rows) return;
  const RowTerms left(a, row), right(a, row + 1);
  for (int t = place.part + thread / 64 * parts; t < num; t += 4 * parts) {
    Pair total = {0, 0};
    if constexpr (kSpread) {
#if SLUICE_HAS_CLUSTERS
      for (int k = 0; k < parts; ++k) {
        const auto* from = cg::this_cluster().map_shared_rank(sums, static_cast<unsigned>(k));
        const Pair part = *reinterpret_cast<const Pair*>(from + t * kWidePitch + column);
        total.x += part.x;
        total.y += part.y;
      }
#endif
    } else {
      total = *reinterpret_cast<const Pair*>(sums + t * kWidePitch + column);
    }
    auto scaled = [&](auto sum) {
      if constexpr (!kExact<T>) return sum;
      return static_cast<float>(sum) * a.x_scale[first_x + t];
    };
    const float y0 = fmaf(scaled(total.x), left.scale, left.bias);
    const float y1 = fmaf(scaled(total.y), right.scale, right.bias);
    const int64_t at = (first_x + t) * a.out_stride + row;
    if (w.in_pairs && row + 1 < a.rows) {
      store_pair<T>(a, at, y0, y1);
      continue;
    }
    store_as(a.out, a.out_type, at, y0);
    if (row + 1 < a.rows) store_as(a.out, a.out_type, at + 1, y1);
  }
}

template <typename T, int kTiles, bool kSpread>
__global__ void __launch_bounds__(kWideThreads, 1)
    wide_kernel(const __grid_constant__ CUtensorMap weights,
                const __grid_constant__ CUtensorMap x,
                const __grid_constant__ WideArgs w) {
#if SLUICE_HAS_WGMMA
  using R = WideRing<kTiles>;
  constexpr int kBox = kRowBytes / static_cast<int>(sizeof(T));  // columns
  extern __shared__ uint8_t unaligned[];
  __shared__ uint64_t barriers[2 * R::kStages];
  let_next_start();
  const auto start = static_cast<uint32_t>(__cvta_generic_to_shared(unaligned));
  const uint32_t ring = (start + 1023) & ~1023u;
  const auto full = static_cast<uint32_t>(__cvta_generic_to_shared(barriers));
  const uint32_t empty = full + R::kStages * 8;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < R::kStages; ++i) {
      barrier_init(full + i * 8, 1);
      barrier_init(empty + i * 8, 8);
    }
    publish_barriers();
  }
  __syncthreads();

  const Place<kSpread> place(w);
  const int boxes = (w.a.cols + kBox - 1) / kBox;
  const int first_split = place.part, last_split = kSpread ? place.part + 1 : w.splits;
  const int first = kSpread ? boxes * place.part / w.splits : 0;
  const int num = kSpread ? boxes * last_split / w.splits - first : boxes;
  if (warp >= 8) {
    give_registers<24>();
    if (warp == 8 && lane == 0) {
      auto copy_weights = [&](int i) {
        uint32_t barrier = full + i % R::kStages * 8;
        barrier_expect(barrier, R::kStage);
        copy_box<Reuse::normal>(ring + i % R::kStages * R::kStage, weights, (first + i) * kBox,
                                place.row, barrier);
      };
      auto copy_inputs = [&](int i) {
        copy_box<Reuse::normal>(ring + i % R::kStages * R::kStage + R::kWeights, x,
                                (first + i) * kBox, place.x * kTiles * 8,
                                full + i % R::kStages * 8);
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
    if constexpr (kSpread) {
      __syncwarp();
      sync_cluster();
      sync_cluster();
    }
  } else {
    take_registers<240>();
    wait_for_inputs();
    const int half = warp / 4;  // of the weight rows
    SumOf<T> sum[kTiles][4] = {};
    auto add_boxes = [&](int begin, int end) {
      for (int i = begin; i < end; ++i) {
        const uint32_t stage = ring + i % R::kStages * R::kStage;
        barrier_wait(full + i % R::kStages * 8, i / R::kStages);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          product(sum, operand(stage + half * 64 * kRowBytes + k * 32),
                  operand(stage + R::kWeights + k * 32), i > begin || k > 0, T{});
        }
        wgmma_commit();
        // The box before has been read; this one is on its way.
        wgmma_wait<1>();
        if (i > begin && lane == 0) barrier_arrive(empty + (i - 1) % R::kStages * 8);
      }
      wgmma_wait<0>();
      pin(sum);
      if (begin < end && lane == 0) barrier_arrive(empty + (end - 1) % R::kStages * 8);
    };
    auto* sums = reinterpret_cast<SumOf<T>*>(unaligned + (ring - start));
    auto put = [&](const SumOf<T>(&all)[kTiles][4]) {
      sync_multiplying();  // all boxes have been read: the ring is free
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          sums[(t * 8 + lane % 4 * 2 + j % 2) * kWidePitch + warp * 16 + lane / 4 + j / 2 * 8] =
              all[t][j];
      }
    };
    if constexpr (kExact<T>) {
      add_boxes(0, num);
      put(sum);
    } else {
      float total[kTiles][4] = {};
      for (int split = first_split; split < last_split; ++split) {
        const int begin = boxes * split / w.splits - first;
        const int end = boxes * (split + 1) / w.splits - first;
        add_boxes(begin, end);
        if (begin < end) add_to(total, sum);
      }
      put(total);
    }
    if constexpr (kSpread) {
      sync_cluster();
      store_tile<T, kTiles>(w, sums, place);
      __syncwarp();
      sync_cluster();  // nobody leaves while others read
    } else {
      sync_multiplying();
      store_tile<T, kTiles>(w, sums, place);
    }
  }
#else
  __trap();
#endif
}

template <typename T, int kTiles, bool kSpread>
void run_wide(
    const BoxedArgs& a, const Tensor& x, const Tensor& weight, int splits, cudaStream_t stream) {
  using R = WideRing<kTiles>;
  constexpr auto kKernel = wide_kernel<T, kTiles, kSpread>;
  allow_shared<kKernel>(R::kBytes, "wide");
  WideArgs w{a, splits, (a.rows + kTileRows - 1) / kTileRows,
             (a.n + kTiles * 8 - 1) / (kTiles * 8)};
  w.in_pairs = a.out_type != DType::f32 && a.out_stride % 2 == 0 &&
               reinterpret_cast<uintptr_t>(a.out) % 4 == 0;
  const auto tiles = static_cast<unsigned>(w.row_tiles * w.x_tiles);
  const auto blocks = static_cast<unsigned>(splits);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {blocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = kSpread ? tiles * blocks : tiles;
  config.blockDim = kWideThreads;
  config.dynamicSmemBytes = R::kBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = kSpread ? 2 : 1;
  check(cudaLaunchKernelEx(&config, kKernel, tensor_map(weight, kTileRows),
                           tensor_map(x, kTiles * 8), w),
        "wide");
}

template <typename T>
void run_cut(const BoxedArgs& a,
             const Tensor& x,
             const Tensor& weight,
             int splits,
             int num_sms,
             cudaStream_t stream) {
  if (splits > 1 && wide_spreads(a.rows, a.n, num_sms))
    return run_wide<T, 16, true>(a, x, weight, splits, stream);
  if constexpr (kExact<T>) {
    wide_int8(a, x, weight, num_sms, stream);
  } else {
    // The larger tile computes faster, where not too many of its rows are empty.
    auto padded = [&](int size) { return (a.n + size - 1) / size * size; };
    if (padded(128) * 100 < padded(192) * 95)
      return run_wide<T, 16, false>(a, x, weight, splits, stream);
    run_wide<T, 24, false>(a, x, weight, splits, stream);
  }
}

}  // namespace

bool can_wide(const Tensor& x, const GemmWeight& w) {
  return w.type != DType::f8 && fits_boxes(x, w) && has_wgmma();
}

bool wide_spreads(int64_t rows, int64_t n, int num_sms) {
  return (rows + kTileRows - 1) / kTileRows * ((n + 127) / 128) * 2 <= num_sms;
}

void wide(Tensor out,
          Tensor x,
          const float* x_scale,
          const GemmWeight& w,
          int splits,
          int num_sms,
          cudaStream_t stream) {
  const BoxedArgs a = boxed_args(out, x_scale, w);
  const Tensor weight{const_cast<void*>(w.data), w.type, w.rows, w.cols, w.cols};
  if (w.type == DType::f16) return run_cut<__half>(a, x, weight, splits, num_sms, stream);
  if (w.type == DType::i8) return run_cut<int8_t>(a, x, weight, splits, num_sms, stream);
  run_cut<__nv_bfloat16>(a, x, weight, splits, num_sms, stream);
}

}  // namespace sluice::cuda
