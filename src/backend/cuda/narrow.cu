// Blocks of 128 weight rows: one warp copies boxes of 128 bytes of columns by tensor map through a
// ring in shared memory, weights before it waits for x, and a warpgroup multiplies them on the
// tensor cores. Blocks of a cluster may share out the columns and add up through shared memory.
#include <cooperative_groups.h>

#include "backend/cuda/boxed.cuh"
#include "backend/cuda/hopper.cuh"
#include "backend/cuda/skinny.cuh"
#include "backend/cuda/target.cuh"

namespace sluice::cuda {

namespace {

namespace cg = cooperative_groups;

constexpr int kThreads = 160;          // a warpgroup that multiplies, a warp that copies
constexpr int kPitch = kTileRows + 4;  // of the sums, 4 bytes each

template <int kTiles>
struct Ring {
  static constexpr int kWeights = kTileRows * kRowBytes;
  static constexpr int kStage = kWeights + kTiles * 8 * kRowBytes;
  // Two blocks fit a multiprocessor: one can begin while the other ends.
  static constexpr int kStages = 108 * 1024 / kStage;
  static constexpr int kBytes = kStages * kStage + 1024;  // and room to align
  static_assert(kTiles * 8 * kPitch * 4 <= kStages * kStage);
};

template <typename T, int kTiles>
__global__ void __launch_bounds__(kThreads, 2) narrow_kernel(const __grid_constant__ CUtensorMap w,
                                                             const __grid_constant__ CUtensorMap x,
                                                             const __grid_constant__ BoxedArgs a,
                                                             int splits,
                                                             bool in_order) {
#if SLUICE_HAS_WGMMA
  using R = Ring<kTiles>;
  constexpr int kBox = kRowBytes / static_cast<int>(sizeof(T));  // columns
  extern __shared__ uint8_t unaligned[];
  __shared__ uint64_t barriers[2 * R::kStages];
  __shared__ float x_scale[kTiles * 8];
  let_next_start();
  auto start = static_cast<uint32_t>(__cvta_generic_to_shared(unaligned));
  uint32_t ring = (start + 1023) & ~1023u;
  auto full = static_cast<uint32_t>(__cvta_generic_to_shared(barriers));
  uint32_t empty = full + R::kStages * 8;
  int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  init_ring_barriers(full, empty, R::kStages, 4);

  auto split = static_cast<int>(blockIdx.x);
  int first = static_cast<int>(blockIdx.y) * kTileRows;
  int row = static_cast<int>(threadIdx.x);  // of the block's; the copying warp has none
  RowTerms terms(a, row < kTileRows ? first + row : a.rows);
  int boxes = (a.cols + kBox - 1) / kBox;
  int begin = boxes * split / splits, num = boxes * (split + 1) / splits - begin;
  // Neighbours begin at different columns: x is the same for all, and its lines are few.
  int shift = num > 0 && !in_order ? static_cast<int>(blockIdx.y) * 5 % num : 0;
  auto column = [&](int i) {
    int at = i + shift;
    return (begin + (at < num ? at : at - num)) * kBox;
  };
  SumOf<T> sum[2][kTiles][4] = {};
  if (warp == 4) {
    if (lane == 0) {
      prefetch_map(x);
      auto weights = [&](int i) {
        uint32_t barrier = full + i % R::kStages * 8;
        barrier_expect(barrier, R::kStage);
        copy_weight_box<Reuse::once>(ring + i % R::kStages * R::kStage, w, a.gated, column(i),
                                     first, barrier);
      };
      auto inputs = [&](int i) {
        copy_box<Reuse::often>(ring + i % R::kStages * R::kStage + R::kWeights, x, column(i), 0,
                               full + i % R::kStages * 8);
      };
      int ahead = min(num, R::kStages);
      for (int i = 0; i < ahead; ++i) weights(i);
      wait_for_inputs();
      for (int i = 0; i < ahead; ++i) inputs(i);
      for (int i = ahead; i < num; ++i) {
        barrier_wait(empty + i % R::kStages * 8, i / R::kStages - 1);
        weights(i);
        inputs(i);
      }
    }
    __syncwarp();
  } else {
    wait_for_inputs();
    auto thread = static_cast<int>(threadIdx.x);
    if (thread < kTiles * 8) x_scale[thread] = a.x_scale && thread < a.n ? a.x_scale[thread] : 1;
    SumOf<T> part[2][kTiles][4] = {};
    for (int i = 0; i < num; ++i) {
      uint32_t stage = ring + i % R::kStages * R::kStage;
      barrier_wait(full + i % R::kStages * 8, i / R::kStages);
      multiply_box<T, kTiles>(sum, part, stage, stage + R::kWeights);
      if (lane == 0) barrier_arrive(empty + i % R::kStages * 8);
    }
    if constexpr (!kFewBits<T>) add_parts(sum, part);
  }
  __syncthreads();  // all copies have come and been read

  // Sums [row of x][weight row] in shared memory; blocks of a cluster add theirs in ascending
  // order, each for its share of x's rows.
  auto* sums = reinterpret_cast<SumOf<T>*>(unaligned + (ring - start));
  if (warp < 4) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          sums[(t * 8 + lane % 4 * 2 + j % 2) * kPitch + h * 64 + warp * 16 + lane / 4 +
               j / 2 * 8] = sum[h][t][j];
      }
    }
  }
  cg::cluster_group cluster = cg::this_cluster();
  if (splits > 1) {
    cluster.sync();
  } else {
    __syncthreads();
  }
  auto total_of = [&](int token, int at) {
    SumOf<T> total = 0;
    for (int k = 0; k < splits; ++k) {
      const SumOf<T>* other =
          splits > 1 ? cluster.map_shared_rank(sums, static_cast<unsigned>(k)) : sums;
      total += other[token * kPitch + at];
    }
    return total;
  };
  if constexpr (sizeof(T) == 2) {
    const int c = row % 64, at = gate_row(c);
    if (a.gated && row < kTileRows && first + at < a.rows) {
#pragma unroll 4
      for (int token = split + row / 64 * splits; token < a.n; token += 2 * splits) {
        const float y = gated<T>(a, total_of(token, at), total_of(token, at + 8));
        static_cast<T*>(a.out)[token * a.out_stride + first / 2 + c] = from_float<T>(y);
      }
    }
  }
  if (!a.gated && row < kTileRows && first + row < a.rows) {
#pragma unroll 4
    for (int token = split; token < a.n; token += splits)
      store_sum(a, token, first + row, static_cast<float>(total_of(token, row)), terms,
                x_scale[token]);
  }
  if (splits > 1) cluster.sync();  // nobody leaves while others read
#else
  __trap();
#endif
}

template <typename T, int kTiles>
void run(const BoxedArgs& a,
         const Tensor& x,
         const Tensor& w,
         int splits,
         bool in_order,
         cudaStream_t stream) {
  using R = Ring<kTiles>;
  auto kernel = narrow_kernel<T, kTiles>;
  allow_shared<narrow_kernel<T, kTiles>>(R::kBytes, "narrow");
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(splits), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(splits),
                        static_cast<unsigned>((a.rows + kTileRows - 1) / kTileRows));
  config.blockDim = kThreads;
  config.dynamicSmemBytes = R::kBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  check(cudaLaunchKernelEx(&config, kernel, weight_map(w, a.gated), tensor_map(x, kTiles * 8), a,
                           splits, in_order),
        "narrow");
}

template <typename T>
void run_tiles(const BoxedArgs& a,
               const Tensor& x,
               const Tensor& w,
               int splits,
               bool in_order,
               cudaStream_t stream) {
  if (a.n <= 8) return run<T, 1>(a, x, w, splits, in_order, stream);
  if (a.n <= 16) return run<T, 2>(a, x, w, splits, in_order, stream);
  if (a.n <= 32) return run<T, 4>(a, x, w, splits, in_order, stream);
  run<T, 8>(a, x, w, splits, in_order, stream);
}

}  // namespace

bool can_narrow(const Tensor& x, const GemmWeight& w) {
  return x.rows <= kMaxNarrow && fits_boxes(x, w) && has_wgmma();
}

void narrow(Tensor out,
            Tensor x,
            const float* x_scale,
            const GemmWeight& w,
            int splits,
            bool in_order,
            cudaStream_t stream) {
  BoxedArgs a = boxed_args(out, x_scale, w);
  Tensor weight{const_cast<void*>(w.data), w.type, w.rows, w.cols, w.cols};
  with_boxed_type(w.type, [&](auto type) {
    run_tiles<decltype(type)>(a, x, weight, splits, in_order, stream);
  });
}

}  // namespace sluice::cuda
