// Weights with so many rows that every multiprocessor has hundreds: its block keeps all of x in
// shared memory and streams its rows past it in tiles of up to 128, one tile after the other
// through one ring of stages, so that nothing starts or ends in between and every block has the
// same to do.
#include "backend/cuda/boxed.cuh"
#include "backend/cuda/hopper.cuh"
#include "backend/cuda/skinny.cuh"
#include "backend/cuda/target.cuh"

namespace sluice::cuda {

namespace {

constexpr int kThreads = 160;  // a warpgroup that multiplies, a warp that copies
constexpr int kBoxRows = 32;   // weight rows of one copy
constexpr int kMaxStages = 16, kMaxBoxes = 120;
constexpr int kShared = 220 * 1024;
constexpr int kSlack = (kTileRows - kBoxRows) * kRowBytes;  // a short tile is read as a whole one

struct TallArgs {
  BoxedArgs a;
  int block_rows, tile_rows;  // multiples of kBoxRows
  int boxes, stages;
};

template <typename T, int kTiles>
__global__ void __launch_bounds__(kThreads, 1) tall_kernel(const __grid_constant__ CUtensorMap w,
                                                           const __grid_constant__ CUtensorMap x,
                                                           const __grid_constant__ TallArgs t) {
#if SLUICE_HAS_WGMMA
  constexpr int kBox = kRowBytes / static_cast<int>(sizeof(T));  // columns
  constexpr int kInputBytes = kTiles * 8 * kRowBytes;
  extern __shared__ uint8_t unaligned[];
  __shared__ uint64_t barriers[2 * kMaxStages + kMaxBoxes];
  __shared__ float x_scale[kTiles * 8];
  let_next_start();
  auto start = static_cast<uint32_t>(__cvta_generic_to_shared(unaligned));
  uint32_t inputs = (start + 1023) & ~1023u, ring = inputs + t.boxes * kInputBytes;
  auto full = static_cast<uint32_t>(__cvta_generic_to_shared(barriers));
  uint32_t empty = full + kMaxStages * 8, arrived = empty + kMaxStages * 8;
  int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(threadIdx.x); i < t.boxes; i += kThreads)
    barrier_init(arrived + i * 8, 1);
  if (static_cast<int>(threadIdx.x) < t.stages) {
    barrier_init(full + threadIdx.x * 8, 1);
    barrier_init(empty + threadIdx.x * 8, 4);
  }
  publish_barriers();
  __syncthreads();

  const int first = static_cast<int>(blockIdx.x) * t.block_rows;
  const int last = min(first + t.block_rows, t.a.rows);
  const int tiles = (last - first + t.tile_rows - 1) / t.tile_rows, num = tiles * t.boxes;
  const uint32_t stage_bytes = t.tile_rows * kRowBytes;
  if (warp == 4) {
    if (lane == 0) {
      auto weights = [&](int i) {
        int row = first + i / t.boxes * t.tile_rows, column = i % t.boxes * kBox;
        int end = min(row + t.tile_rows, first + t.block_rows);
        uint32_t stage = ring + i % t.stages * stage_bytes, barrier = full + i % t.stages * 8;
        barrier_expect(barrier, (end - row) * kRowBytes);
        for (; row < end; row += kBoxRows, stage += kBoxRows * kRowBytes)
          copy_box<Reuse::once>(stage, w, column, row, barrier);
      };
      int ahead = min(num, t.stages);
      for (int i = 0; i < ahead; ++i) weights(i);
      wait_for_inputs();
      for (int i = 0; i < t.boxes; ++i) {
        barrier_expect(arrived + i * 8, kInputBytes);
        copy_box<Reuse::often>(inputs + i * kInputBytes, x, i * kBox, 0, arrived + i * 8);
      }
      for (int i = ahead; i < num; ++i) {
        barrier_wait(empty + i % t.stages * 8, i / t.stages - 1);
        weights(i);
      }
    }
    return;
  }

  wait_for_inputs();
  auto thread = static_cast<int>(threadIdx.x);
  if (thread < kTiles * 8)
    x_scale[thread] = t.a.x_scale && thread < t.a.n ? t.a.x_scale[thread] : 1;
  asm volatile("bar.sync 1, 128;" ::: "memory");  // the warpgroup alone
  for (int tile = 0, i = 0; tile < tiles; ++tile) {
    int begin = first + tile * t.tile_rows, end = min(begin + t.tile_rows, last);
    int row = begin + warp * 16 + lane / 4;  // and 8, 64, 72 further
    const RowTerms terms[4] = {{t.a, row}, {t.a, row + 8}, {t.a, row + 64}, {t.a, row + 72}};
    SumOf<T> part[2][kTiles][4] = {}, sum[2][kTiles][4] = {};
    for (int box = 0; box < t.boxes; ++box, ++i) {
      if (tile == 0) barrier_wait(arrived + box * 8, 0);
      barrier_wait(full + i % t.stages * 8, i / t.stages);
      multiply_box<T, kTiles>(sum, part, ring + i % t.stages * stage_bytes,
                              inputs + box * kInputBytes);
      if (lane == 0) barrier_arrive(empty + i % t.stages * 8);
    }
    if constexpr (!kFewBits<T>) add_parts(sum, part);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int s = 0; s < kTiles; ++s) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          int token = s * 8 + lane % 4 * 2 + j % 2, at = row + h * 64 + j / 2 * 8;
          if (token < t.a.n && at < end)
            store_sum(t.a, token, at, static_cast<float>(sum[h][s][j]), terms[h * 2 + j / 2],
                      x_scale[token]);
        }
      }
    }
  }
#else
  __trap();
#endif
}

template <typename T, int kTiles>
void run(const Tensor& x, const Tensor& w, TallArgs t, cudaStream_t stream) {
  allow_shared<tall_kernel<T, kTiles>>(kShared, "tall");
  int left = kShared - 1024 - kSlack - t.boxes * kTiles * 8 * kRowBytes;
  t.stages = std::min(left / (t.tile_rows * kRowBytes), kMaxStages);
  auto blocks = static_cast<unsigned>((t.a.rows + t.block_rows - 1) / t.block_rows);
  launch("tall", tall_kernel<T, kTiles>, blocks, kThreads, kShared, stream, tensor_map(w, kBoxRows),
         tensor_map(x, kTiles * 8), t);
}

template <typename T>
void run_tiles(const Tensor& x, const Tensor& w, const TallArgs& t, cudaStream_t stream) {
  if (t.a.n <= 8) return run<T, 1>(x, w, t, stream);
  if (t.a.n <= 16) return run<T, 2>(x, w, t, stream);
  run<T, 4>(x, w, t, stream);
}

}  // namespace

bool can_tall(const Tensor& x, const GemmWeight& w) {
  int64_t boxes = num_boxes(w), padded = x.rows <= 8 ? 8 : x.rows <= 16 ? 16 : 32;
  return x.rows <= kMaxTall && boxes <= kMaxBoxes &&
         boxes * padded * kRowBytes <= kShared / 2 + 8192 && fits_boxes(x, w) && has_wgmma();
}

void tall(Tensor out,
          Tensor x,
          const float* x_scale,
          const GemmWeight& w,
          int num_sms,
          cudaStream_t stream) {
  TallArgs t{boxed_args(out, x_scale, w), 0, 0, num_boxes(w), 0};
  auto up = [](int n, int to) { return (n + to - 1) / to * to; };
  t.block_rows = up((t.a.rows + num_sms - 1) / num_sms, kBoxRows);
  int tiles = (t.block_rows + kTileRows - 1) / kTileRows;
  t.tile_rows = up((t.block_rows + tiles - 1) / tiles, kBoxRows);
  Tensor weight{const_cast<void*>(w.data), w.type, w.rows, w.cols, w.cols};
  with_boxed_type(w.type, [&](auto type) { run_tiles<decltype(type)>(x, weight, t, stream); });
}

}  // namespace sluice::cuda
