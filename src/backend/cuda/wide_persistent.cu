// Products by blocks that stay, one on each multiprocessor. A block takes one
// tile of 128 weight rows by up to 256 rows of x after the other: the next tile's boxes are copied
// while sums are scaled and stored, for which there is memory beside the ring. As in wide.cu one
// warp copies, and two warpgroups multiply, 64 weight rows each.
#include "backend/cuda/wide_persistent.cuh"

#include <algorithm>
#include <cstdint>

#include "backend/cuda/hopper.cuh"
#include "base/check.h"

namespace sluice::cuda {

namespace {

constexpr int kPersistentThreads = 384;  // a warpgroup that copies, two that multiply
constexpr int kPersistentHalf = 64;      // weight rows of a warpgroup
// Rows of x that a warpgroup stores at a time: of 16 bits, and of sums in 32. With the pitch of
// their rows in bytes, padded against bank conflicts.
constexpr int kStoreRows = 64, kStorePitch = kPersistentHalf * 2 + 16;
constexpr int kSumRows = 32, kSumPitch = (kPersistentHalf + 4) * 4;
constexpr int kStoreBytes = kStoreRows * kStorePitch;
static_assert(kSumRows * kSumPitch <= kStoreBytes);

template <int kTiles>
struct PersistentRing {
  static constexpr int kWeights = kTileRows * kRowBytes;
  static constexpr int kStage = kWeights + kTiles * 8 * kRowBytes;
  static constexpr int kStages = (224 * 1024 - 2 * kStoreBytes) / kStage;
  static constexpr int kBytes = kStages * kStage + 2 * kStoreBytes + 1024;  // and room to align
};

struct PersistentArgs {
  BoxedArgs a;
  int splits;  // ranges of columns
  int row_tiles, x_tiles;
  int store_at_once;  // neighbours of a row of out: 8 or 2 of 16 bits, or 1
};

// A tile's first weight row and first row of x.
struct PersistentPlace {
  int row, x;
  __device__ PersistentPlace(const PersistentArgs& s, int tile, int width) {
    const TilePlace place(tile, s.row_tiles, s.x_tiles);
    row = place.row;
    x = place.x * width;
  }
};

// The threads of one of the two warpgroups.
__device__ inline void sync_half(int half) {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + half) : "memory");
}

template <int kTiles>
__device__ inline void add_to(float (&total)[kTiles][4], const float (&sum)[kTiles][4]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int j = 0; j < 4; ++j) total[t][j] += sum[t][j];
  }
}

// T: of the operands; those of 8 bits have a scale for each row of x.
template <typename T>
__device__ inline float scaled(const BoxedArgs& a, SumOf<T> sum, int x, const RowTerms& terms) {
  auto y = static_cast<float>(sum);
  if constexpr (sizeof(T) == 1) y *= a.x_scale[min(x, a.n - 1)];
  return fmaf(y, terms.scale, terms.bias);
}

// Four matrices of 8 x 8, transposed: lane l has the address of row l % 8 of matrix l / 8.
__device__ inline void stmatrix_trans(uint32_t address, const uint32_t (&r)[4]) {
#if SLUICE_HAS_WGMMA
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
#endif
}

// A warpgroup's sums to out in 16 bits, eight neighbours of a row at once, by way of `memory`.
template <typename T, typename Out, int kTiles>
__device__ inline void store_eights(const BoxedArgs& a,
                                    const SumOf<T> (&sum)[kTiles][4],
                                    uint8_t* memory,
                                    const PersistentPlace& place,
                                    int half) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_row = place.row + half * kPersistentHalf;
  const int row = first_row + warp * 16 + lane / 4;
  const RowTerms upper(a, row), lower(a, row + 8);
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(memory)) +
                      (lane / 16 * 8 + lane % 8) * kStorePitch + warp * 32 + lane / 8 % 2 * 16;
  constexpr int kNow = kTiles < kStoreRows / 8 ? kTiles : kStoreRows / 8;  // tiles at a time
#pragma unroll
  for (int first = 0; first < kTiles; first += kNow) {
    sync_half(half);  // what was there has been read
#pragma unroll
    for (int t = 0; t < kNow; t += 2) {
      uint32_t r[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const SumOf<T>(&d)[4] = sum[first + t + i];
        const int x = place.x + (first + t + i) * 8 + lane % 4 * 2;
        r[i * 2] = two_of<Out>(scaled<T>(a, d[0], x, upper), scaled<T>(a, d[1], x + 1, upper));
        r[i * 2 + 1] = two_of<Out>(scaled<T>(a, d[2], x, lower), scaled<T>(a, d[3], x + 1, lower));
      }
      stmatrix_trans(to + t * 8 * kStorePitch, r);
    }
    sync_half(half);
#pragma unroll
    for (int i = 0; i < kNow / 2; ++i) {
      const int at = i * 16 + warp * 4 + lane / 8, x = place.x + first * 8 + at;
      const int column = first_row + lane % 8 * 8;
      if (x >= a.n || column >= a.rows) continue;
      *reinterpret_cast<uint4*>(static_cast<Out*>(a.out) + x * a.out_stride + column) =
          *reinterpret_cast<const uint4*>(memory + at * kStorePitch + lane % 8 * 16);
    }
    __syncwarp();
  }
}

// The same for every type and place of out: a warp stores a row.
template <typename T, int kTiles>
__device__ inline void store_any(const PersistentArgs& s,
                                 const SumOf<T> (&sum)[kTiles][4],
                                 uint8_t* memory,
                                 const PersistentPlace& place,
                                 int half) {
  const BoxedArgs& a = s.a;
  constexpr int kPitch = kSumPitch / 4;
  auto* sums = reinterpret_cast<SumOf<T>*>(memory);
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = place.row + half * kPersistentHalf + lane * 2;
  const RowTerms left(a, row), right(a, row + 1);
#pragma unroll
  for (int first = 0; first < kTiles; first += kSumRows / 8) {
    sync_half(half);  // what was there has been read
#pragma unroll
    for (int t = 0; t < kSumRows / 8; ++t) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        sums[(t * 8 + lane % 4 * 2 + j % 2) * kPitch + warp * 16 + lane / 4 + j / 2 * 8] =
            sum[first + t][j];
    }
    sync_half(half);
#pragma unroll
    for (int i = 0; i < kSumRows / 4; ++i) {
      const int t = warp + i * 4, x = place.x + first * 8 + t;
      if (x >= a.n || row >= a.rows) continue;
      const SumOf<T>* two = sums + t * kPitch + lane * 2;
      store_two(a, s.store_at_once == 2, x * a.out_stride + row, row, scaled<T>(a, two[0], x, left),
                scaled<T>(a, two[1], x, right));
    }
    __syncwarp();
  }
}

template <typename T, int kTiles>
__device__ inline void store_half(const PersistentArgs& s,
                                  const SumOf<T> (&sum)[kTiles][4],
                                  uint8_t* memory,
                                  const PersistentPlace& place,
                                  int half) {
  if (s.store_at_once < 8) return store_any<T>(s, sum, memory, place, half);
  if (s.a.out_type == DType::f16) return store_eights<T, __half>(s.a, sum, memory, place, half);
  store_eights<T, __nv_bfloat16>(s.a, sum, memory, place, half);
}

// Whether sums over all columns are made in one go: of integers, which are exact however they are
// added up, and where there is no room for another set of sums. f8 has one more (kFewBits).
template <typename T, int kTiles>
inline constexpr bool kOneRange = std::is_same_v<T, int8_t> || kTiles > (kFewBits<T> ? 16 : 24);

template <typename T, int kTiles>
__global__ void __launch_bounds__(kPersistentThreads, 1)
    wide_persistent_kernel(const __grid_constant__ CUtensorMap weights,
                           const __grid_constant__ CUtensorMap x,
                           const __grid_constant__ PersistentArgs s) {
#if SLUICE_HAS_WGMMA
  using R = PersistentRing<kTiles>;
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

  const int boxes = (s.a.cols + kBox - 1) / kBox, tiles = s.row_tiles * s.x_tiles;
  const auto first_tile = static_cast<int>(blockIdx.x), step = static_cast<int>(gridDim.x);
  if (warp >= 8) {
    give_registers<24>();
    if (warp > 8 || lane > 0) return;
    auto stage = [&](int i) { return ring + i % R::kStages * R::kStage; };
    auto copy_weights = [&](int i, const PersistentPlace& place, int box) {
      const uint32_t barrier = full + i % R::kStages * 8;
      barrier_expect(barrier, R::kStage);
      if (s.x_tiles == 1)
        return copy_box<Reuse::once>(stage(i), weights, box * kBox, place.row, barrier);
      copy_box<Reuse::normal>(stage(i), weights, box * kBox, place.row, barrier);
    };
    auto copy_inputs = [&](int i, const PersistentPlace& place, int box) {
      copy_box<Reuse::normal>(stage(i) + R::kWeights, x, box * kBox, place.x,
                              full + i % R::kStages * 8);
    };
    const int ahead = min(boxes, R::kStages);
    const PersistentPlace first_place(s, first_tile, kTiles * 8);
    for (int i = 0; i < ahead; ++i) copy_weights(i, first_place, i);
    wait_for_inputs();
    for (int i = 0; i < ahead; ++i) copy_inputs(i, first_place, i);
    int i = ahead, box = ahead;
    for (int tile = first_tile; tile < tiles; tile += step, box = 0) {
      const PersistentPlace place(s, tile, kTiles * 8);
      for (; box < boxes; ++box, ++i) {
        if (i >= R::kStages) barrier_wait(empty + i % R::kStages * 8, i / R::kStages - 1);
        copy_weights(i, place, box);
        copy_inputs(i, place, box);
      }
    }
    return;
  }
  take_registers<240>();
  wait_for_inputs();
  const int half = warp / 4;  // of the weight rows
  uint8_t* memory = unaligned + (ring - start) + R::kStages * R::kStage + half * kStoreBytes;
  SumOf<T> sum[kTiles][4] = {};
  int i = 0;  // boxes so far
  // d = or += the box that has arrived, on its way when it returns.
  auto multiply = [&](SumOf<T>(&d)[kTiles][4], bool add) {
    const uint32_t stage = ring + i % R::kStages * R::kStage;
    barrier_wait(full + i % R::kStages * 8, i / R::kStages);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      product(d, operand(stage + half * kPersistentHalf * kRowBytes + k * 32),
              operand(stage + R::kWeights + k * 32), add || k > 0, T{});
    }
    wgmma_commit();
  };
  auto add_boxes = [&](int num) {
    if constexpr (kFewBits<T>) {
      // While these are added the other warpgroup multiplies.
#pragma unroll
      for (int t = 0; t < kTiles; ++t) sum[t][0] = sum[t][1] = sum[t][2] = sum[t][3] = 0;
      for (int box = 0; box < num; ++box, ++i) {
        SumOf<T> part[kTiles][4];
        multiply(part, false);
        wgmma_wait<0>();
        pin(part);
        if (lane == 0) barrier_arrive(empty + i % R::kStages * 8);
        add_to(sum, part);
      }
    } else {
      for (int box = 0; box < num; ++box, ++i) {
        multiply(sum, box > 0);
        // The box before has been read; this one is on its way.
        wgmma_wait<1>();
        if (box > 0 && lane == 0) barrier_arrive(empty + (i - 1) % R::kStages * 8);
      }
      wgmma_wait<0>();
      pin(sum);
      if (num > 0 && lane == 0) barrier_arrive(empty + (i - 1) % R::kStages * 8);
    }
  };
  for (int tile = first_tile; tile < tiles; tile += step) {
    const PersistentPlace place(s, tile, kTiles * 8);
    if constexpr (kOneRange<T, kTiles>) {
      add_boxes(boxes);
      store_half<T>(s, sum, memory, place, half);
    } else {
      float total[kTiles][4] = {};
      for (int split = 0; split < s.splits; ++split) {
        const int num = boxes * (split + 1) / s.splits - boxes * split / s.splits;
        add_boxes(num);
        if (num > 0) add_to(total, sum);
      }
      store_half<T>(s, total, memory, place, half);
    }
  }
#else
  __trap();
#endif
}

template <typename T, int kTiles>
void run_persistent(const BoxedArgs& a,
                    const Tensor& x,
                    const Tensor& weight,
                    int splits,
                    int num_sms,
                    cudaStream_t stream) {
  using R = PersistentRing<kTiles>;
  constexpr auto kKernel = wide_persistent_kernel<T, kTiles>;
  allow_shared<kKernel>(R::kBytes, "wide");
  const PersistentArgs s{a, splits, ceil_div(a.rows, kTileRows), ceil_div(a.n, kTiles * 8),
                         stored_at_once(a)};
  launch("wide", kKernel, static_cast<unsigned>(std::min(num_sms, s.row_tiles * s.x_tiles)),
         kPersistentThreads, R::kBytes, stream, tensor_map(weight, kTileRows),
         tensor_map(x, kTiles * 8), s);
}

// About how many clocks it takes with tiles of so many rows of x, measured on an H200: a box waits
// for its copies or for the tensor cores, and a tile has an end beside them.
int64_t clocks_of(int64_t rows, int64_t n, int64_t boxes, int width, int num_sms) {
  const int64_t turns = ceil_div(ceil_div(rows, kTileRows) * ceil_div(n, width), num_sms);
  return turns * (boxes * std::max(420, 4 * width + 80) + 6000);
}

// As registers allow.
int widest(DType type, int splits) {
  if (type == DType::f8) return splits == 1 ? 192 : 128;
  return splits == 1 || type == DType::i8 ? 256 : 192;
}

int best_width(int64_t rows, int64_t n, int64_t boxes, DType type, int splits, int num_sms) {
  const int most = widest(type, splits);
  int best = 0;
  int64_t least = INT64_MAX;
  for (int width : {256, 192, 128, 64, 32}) {
    if (width > most || (width > 32 && width >= 2 * n)) continue;
    const int64_t clocks = clocks_of(rows, n, boxes, width, num_sms);
    if (clocks < least) best = width, least = clocks;
  }
  return best;
}

template <typename T>
void run_typed(const BoxedArgs& a,
               const Tensor& x,
               const Tensor& weight,
               int splits,
               int num_sms,
               cudaStream_t stream,
               int width) {
  const int64_t boxes = ceil_div(a.cols * static_cast<int>(sizeof(T)), kRowBytes);
  CHECK(width <= widest(weight.type, splits));
  if (width == 0) width = best_width(a.rows, a.n, boxes, weight.type, splits, num_sms);
  if (width == 32) return run_persistent<T, 4>(a, x, weight, splits, num_sms, stream);
  if (width == 64) return run_persistent<T, 8>(a, x, weight, splits, num_sms, stream);
  if (width == 128) return run_persistent<T, 16>(a, x, weight, splits, num_sms, stream);
  if (width == 192) return run_persistent<T, 24>(a, x, weight, splits, num_sms, stream);
  CHECK(width == 256);
  if constexpr (!kFewBits<T>) run_persistent<T, 32>(a, x, weight, splits, num_sms, stream);
}

}  // namespace

int64_t persistent_clocks(const GemmWeight& w, int64_t n, int splits, int num_sms) {
  const int64_t boxes = num_boxes(w);
  const int width = best_width(w.rows, n, boxes, w.type, splits, num_sms);
  return clocks_of(w.rows, n, boxes, width, num_sms);
}

void wide_persistent(const BoxedArgs& a,
                     const Tensor& x,
                     const Tensor& weight,
                     int splits,
                     int num_sms,
                     cudaStream_t stream,
                     int width) {
  if (weight.type == DType::i8) return run_typed<int8_t>(a, x, weight, 1, num_sms, stream, width);
  if (weight.type == DType::f8)
    return run_typed<__nv_fp8_e4m3>(a, x, weight, splits, num_sms, stream, width);
  if (weight.type == DType::f16)
    return run_typed<__half>(a, x, weight, splits, num_sms, stream, width);
  run_typed<__nv_bfloat16>(a, x, weight, splits, num_sms, stream, width);
}

}  // namespace sluice::cuda
