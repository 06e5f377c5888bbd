// Products of many rows of x in int8. As in wide.cu a block has 128 weight rows and up to 256 rows
// of x, but blocks stay and take one tile after the other: the next tile's boxes are copied while
// sums are scaled and stored, for which they have memory beside the ring.
#include "backend/cuda/boxed.cuh"
#include "backend/cuda/hopper.cuh"
#include "backend/cuda/wide_int8.cuh"

namespace sluice::cuda {

namespace {

constexpr int kPersistentThreads =
    384;                             // a warpgroup that copies (one warp of it), two that multiply
constexpr int kPersistentHalf = 64;  // weight rows of a warpgroup
constexpr int kPersistentRows = 32;  // rows of x that it stores at a time
constexpr int kPersistentPitch = kPersistentHalf + 4;
constexpr int kPersistentGroup = 8;  // tiles of weights that share rows of x in the L2

template <int kTiles>
struct PersistentRing {
  static constexpr int kWeights = kTileRows * kRowBytes;
  static constexpr int kStage = kWeights + kTiles * 8 * kRowBytes;
  static constexpr int kSums = 2 * kPersistentRows * kPersistentPitch * 4;
  static constexpr int kStages = (224 * 1024 - kSums) / kStage;
  static constexpr int kBytes = kStages * kStage + kSums + 1024;  // and room to align
};

struct PersistentArgs {
  BoxedArgs a;
  int row_tiles, x_tiles;
  bool in_pairs;  // two neighbours of a row of out, in 16 bits, can be stored at once
};

// A tile's first weight row and first row of x: groups of tiles of weights, all of x for each.
struct PersistentPlace {
  int row, x;
  __device__ PersistentPlace(const PersistentArgs& s, int tile, int width) {
    const int group = tile / (kPersistentGroup * s.x_tiles);
    const int height = min(kPersistentGroup, s.row_tiles - group * kPersistentGroup);
    const int inside = tile - group * kPersistentGroup * s.x_tiles;
    row = (group * kPersistentGroup + inside % height) * kTileRows;
    x = inside / height * width;
  }
};

// The threads of one of the two warpgroups.
__device__ inline void sync_half(int half) {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + half) : "memory");
}

__device__ inline void store_two(
    const PersistentArgs& s, int64_t at, int row, float left, float right) {
  const BoxedArgs& a = s.a;
  if (s.in_pairs && row + 1 < a.rows) {
    if (a.out_type == DType::f16) {
      *reinterpret_cast<Pack<__half, 2>*>(static_cast<__half*>(a.out) + at) = {
          {from_float<__half>(left), from_float<__half>(right)}};
    } else {
      *reinterpret_cast<Pack<__nv_bfloat16, 2>*>(static_cast<__nv_bfloat16*>(a.out) + at) = {
          {from_float<__nv_bfloat16>(left), from_float<__nv_bfloat16>(right)}};
    }
    return;
  }
  store_as(a.out, a.out_type, at, left);
  if (row + 1 < a.rows) store_as(a.out, a.out_type, at + 1, right);
}

// A warpgroup's sums to out, kPersistentRows rows of x at a time through `memory`: a warp stores a
// row.
template <int kTiles>
__device__ inline void store_half(const PersistentArgs& s,
                                  const int32_t (&sum)[kTiles][4],
                                  int32_t* memory,
                                  const PersistentPlace& place,
                                  int half) {
  const BoxedArgs& a = s.a;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = place.row + half * kPersistentHalf + lane * 2;
  const RowTerms left(a, row), right(a, row + 1);
#pragma unroll
  for (int first = 0; first < kTiles; first += kPersistentRows / 8) {
    sync_half(half);  // what was there has been read
#pragma unroll
    for (int t = 0; t < kPersistentRows / 8; ++t) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        memory[(t * 8 + lane % 4 * 2 + j % 2) * kPersistentPitch + warp * 16 + lane / 4 +
               j / 2 * 8] = sum[first + t][j];
    }
    sync_half(half);
#pragma unroll
    for (int i = 0; i < kPersistentRows / 4; ++i) {
      const int t = warp + i * 4, x = place.x + first * 8 + t;
      if (x >= a.n || row >= a.rows) continue;
      const int2 two = *reinterpret_cast<const int2*>(memory + t * kPersistentPitch + lane * 2);
      const float x_scale = a.x_scale[x];
      store_two(s, x * a.out_stride + row, row,
                fmaf(static_cast<float>(two.x) * x_scale, left.scale, left.bias),
                fmaf(static_cast<float>(two.y) * x_scale, right.scale, right.bias));
    }
    __syncwarp();
  }
}

template <int kTiles>
__global__ void __launch_bounds__(kPersistentThreads, 1)
    wide_int8_kernel(const __grid_constant__ CUtensorMap weights,
                     const __grid_constant__ CUtensorMap x,
                     const __grid_constant__ PersistentArgs s) {
#if SLUICE_HAS_WGMMA
  using R = PersistentRing<kTiles>;
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

  const int boxes = (s.a.cols + kRowBytes - 1) / kRowBytes, tiles = s.row_tiles * s.x_tiles;
  const auto first_tile = static_cast<int>(blockIdx.x), step = static_cast<int>(gridDim.x);
  if (warp >= 8) {
    give_registers<24>();
    if (warp == 8 && lane == 0) {
      wait_for_inputs();
      int i = 0;  // boxes so far
      for (int tile = first_tile; tile < tiles; tile += step) {
        const PersistentPlace place(s, tile, kTiles * 8);
        for (int box = 0; box < boxes; ++box, ++i) {
          const uint32_t stage = ring + i % R::kStages * R::kStage;
          const uint32_t barrier = full + i % R::kStages * 8;
          if (i >= R::kStages) barrier_wait(empty + i % R::kStages * 8, i / R::kStages - 1);
          barrier_expect(barrier, R::kStage);
          copy_box<Reuse::normal>(stage, weights, box * kRowBytes, place.row, barrier);
          copy_box<Reuse::normal>(stage + R::kWeights, x, box * kRowBytes, place.x, barrier);
        }
      }
    }
    return;
  }
  take_registers<240>();
  wait_for_inputs();
  const int half = warp / 4;  // of the weight rows
  auto* memory = reinterpret_cast<int32_t*>(unaligned + (ring - start) + R::kStages * R::kStage) +
                 half * kPersistentRows * kPersistentPitch;
  int32_t sum[kTiles][4] = {};
  int i = 0;
  for (int tile = first_tile; tile < tiles; tile += step) {
    for (int box = 0; box < boxes; ++box, ++i) {
      const uint32_t stage = ring + i % R::kStages * R::kStage;
      barrier_wait(full + i % R::kStages * 8, i / R::kStages);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        product(sum, operand(stage + half * kPersistentHalf * kRowBytes + k * 32),
                operand(stage + R::kWeights + k * 32), box > 0 || k > 0, int8_t{});
      }
      wgmma_commit();
      // The box before has been read; this one is on its way.
      wgmma_wait<1>();
      if (box > 0 && lane == 0) barrier_arrive(empty + (i - 1) % R::kStages * 8);
    }
    wgmma_wait<0>();
    pin(sum);
    if (lane == 0) barrier_arrive(empty + (i - 1) % R::kStages * 8);
    store_half(s, sum, memory, PersistentPlace(s, tile, kTiles * 8), half);
  }
#else
  __trap();
#endif
}

template <int kTiles>
void run_stay(
    const BoxedArgs& a, const Tensor& x, const Tensor& weight, int num_sms, cudaStream_t stream) {
  using R = PersistentRing<kTiles>;
  allow_shared<wide_int8_kernel<kTiles>>(R::kBytes, "wide_int8");
  PersistentArgs s{a, ceil_div(a.rows, kTileRows), ceil_div(a.n, kTiles * 8), false};
  s.in_pairs = a.out_type != DType::f32 && a.out_stride % 2 == 0 &&
               reinterpret_cast<uintptr_t>(a.out) % 4 == 0;
  launch("wide_int8", wide_int8_kernel<kTiles>,
         static_cast<unsigned>(std::min(num_sms, s.row_tiles * s.x_tiles)), kPersistentThreads,
         R::kBytes, stream, tensor_map(weight, kTileRows), tensor_map(x, kTiles * 8), s);
}

// The width of a tile of x: the fewest turns of all blocks, each as long as its width and what a
// tile takes beside that.
int stay_width(const BoxedArgs& a, int num_sms) {
  constexpr int kBeside = 32;
  int best = 128, least = INT32_MAX;
  for (int width : {256, 192, 128}) {
    const int tiles = ceil_div(a.rows, kTileRows) * ceil_div(a.n, width);
    const int cost = ceil_div(tiles, num_sms) * (width + kBeside);
    if (cost < least) best = width, least = cost;
  }
  return best;
}

}  // namespace

void wide_int8(
    const BoxedArgs& a, const Tensor& x, const Tensor& weight, int num_sms, cudaStream_t stream) {
  const int width = stay_width(a, num_sms);
  if (width == 128) return run_stay<16>(a, x, weight, num_sms, stream);
  if (width == 192) return run_stay<24>(a, x, weight, num_sms, stream);
  run_stay<32>(a, x, weight, num_sms, stream);
}

}  // namespace sluice::cuda
