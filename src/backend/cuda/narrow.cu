#include <cooperative_groups.h>

#include "backend/cuda/skinny.cuh"
#include "backend/cuda/streamed.cuh"

namespace sluice::cuda {

namespace {

namespace cg = cooperative_groups;

constexpr int kWarps = 8;
constexpr int kRows = 16 * kWarps;  // weight rows per block
constexpr int kStages = 3;          // of x in shared memory

// x of one step in shared memory: kTiles * 8 rows of kCols columns. Rows are 64 bytes longer than
// they need be, so that neighbouring rows lie in different banks. Of f8 the eight-column groups of
// a lane are apart by four lanes, so that each access of a warp is 16 neighbouring bytes per lane.
template <bool kF8, int kTiles>
struct Staged {
  static constexpr int kGroups = Streamed<kF8>::kCols / 8;  // of eight columns, 16 bytes
  static constexpr int kRowBytes = kGroups * 16 + 64;
  static constexpr int kBytes = kTiles * 8 * kRowBytes;

  // Where group j of a row goes.
  __device__ static int place(int j) {
    if (!kF8) return j * 16;
    return (j / 8 * 8 + j % 2 * 4 + j % 8 / 2) * 16;
  }
};

__device__ inline void copy_16(uint32_t to, const void* from, bool real) {
  int bytes = real ? 16 : 0;  // the rest becomes zero
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}

template <typename T, bool kF8, int kTiles>
__device__ inline void stage_x(const ProductArgs<T>& a, uint32_t to, int column) {
  using X = Staged<kF8, kTiles>;
  for (int i = static_cast<int>(threadIdx.x); i < kTiles * 8 * X::kGroups; i += kWarps * 32) {
    int row = i / X::kGroups, j = i % X::kGroups;
    bool real = row < a.n && column + 8 * j < a.cols;
    const T* from = real ? a.x + row * a.x_stride + column + 8 * j : a.x;
    copy_16(to + static_cast<uint32_t>(row * X::kRowBytes + X::place(j)), from, real);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <typename T, bool kF8, int kTiles>
__global__ void __launch_bounds__(kWarps * 32, 2)
    narrow_kernel(const __grid_constant__ ProductArgs<T> a, int splits) {
  using S = Streamed<kF8>;
  using X = Staged<kF8, kTiles>;
  extern __shared__ __align__(128) uint8_t smem[];
  let_next_start();
  int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int group = lane / 4, ahead = lane % 4 * S::kLane;
  int split = static_cast<int>(blockIdx.x);
  int first = static_cast<int>(blockIdx.y) * kRows;
  WeightRows w = weight_rows<T, kF8>(a, first + warp * 16 + group);
  int stride = splits * S::kCols;
  int begin = split * S::kCols;

  Piece now = load_piece<kF8>(w, begin + ahead, a.cols);
  Piece next = load_piece<kF8>(w, begin + ahead + stride, a.cols);
  wait_for_inputs();
  auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(smem));
  for (int k = 0; k < kStages - 1; ++k)
    stage_x<T, kF8, kTiles>(a, shared + static_cast<uint32_t>(k * X::kBytes), begin + k * stride);

  float acc[kTiles][4] = {};
  int stage = 0;
  for (int base = begin; base < a.cols; base += stride) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
    __syncthreads();  // this stage is there, and nobody reads the one that is filled next
    int filled = stage == 0 ? kStages - 1 : stage - 1;
    stage_x<T, kF8, kTiles>(a, shared + static_cast<uint32_t>(filled * X::kBytes),
                            base + (kStages - 1) * stride);
    Piece after = load_piece<kF8>(w, base + ahead + 2 * stride, a.cols);
    const uint8_t* x = smem + stage * X::kBytes + group * X::kRowBytes + lane % 4 * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      multiply<T, kF8, kTiles>(acc, now, i, [&](int t, int h) {
        constexpr int kPartBytes = S::kPart * 2;
        return *reinterpret_cast<const uint4*>(x + t * 8 * X::kRowBytes + i * kPartBytes + h * 64);
      });
    }
    now = next;
    next = after;
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();

  // Sums [token][row] in shared memory; blocks of a cluster add theirs in ascending order, each for
  // its share of the tokens.
  auto* sums = reinterpret_cast<float*>(smem);
  constexpr int kTokens = kTiles * 8, kPitch = kRows + 4;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sums[(t * 8 + lane % 4 * 2 + i % 2) * kPitch + warp * 16 + group + i / 2 * 8] = acc[t][i];
  }
  cg::cluster_group cluster = cg::this_cluster();
  if (splits > 1) {
    cluster.sync();
  } else {
    __syncthreads();
  }
  for (int i = static_cast<int>(threadIdx.x); i < kTokens / splits * kRows; i += kWarps * 32) {
    int row = i % kRows, token = i / kRows * splits + split;
    if (token >= a.n || first + row >= a.rows) continue;
    float sum = 0;
    for (int k = 0; k < splits; ++k) {
      const float* other =
          splits > 1 ? cluster.map_shared_rank(sums, static_cast<unsigned>(k)) : sums;
      sum += other[token * kPitch + row];
    }
    store_sum<T, kF8>(a, token, first + row, sum);
  }
  if (splits > 1) cluster.sync();  // nobody leaves while others read
}

template <typename T, bool kF8, int kTiles>
void run(const ProductArgs<T>& a, int splits, cudaStream_t stream) {
  constexpr int kX = kStages * Staged<kF8, kTiles>::kBytes;
  constexpr int kSums = kTiles * 8 * (kRows + 4) * static_cast<int>(sizeof(float));
  constexpr int kShared = kX > kSums ? kX : kSums;
  auto kernel = narrow_kernel<T, kF8, kTiles>;
  allow_shared<narrow_kernel<T, kF8, kTiles>>(kShared, "narrow");
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(splits), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(splits), static_cast<unsigned>((a.rows + kRows - 1) / kRows));
  config.blockDim = kWarps * 32;
  config.dynamicSmemBytes = kShared;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  check(cudaLaunchKernelEx(&config, kernel, a, splits), "narrow");
}

template <typename T, bool kF8>
void run_tiles(const ProductArgs<T>& a, int splits, cudaStream_t stream) {
  if (a.n <= 16) return run<T, kF8, 2>(a, splits, stream);
  run<T, kF8, 4>(a, splits, stream);
}

template <typename T>
void run_as(Tensor out, Tensor x, const GemmWeight& w, int splits, cudaStream_t stream) {
  ProductArgs<T> a = product_args<T>(out, x, w);
  if (w.type == DType::f8) return run_tiles<T, true>(a, splits, stream);
  run_tiles<T, false>(a, splits, stream);
}

}  // namespace

void narrow(Tensor out, Tensor x, const GemmWeight& w, int splits, cudaStream_t stream) {
  if (x.type == DType::f16) return run_as<__half>(out, x, w, splits, stream);
  run_as<__nv_bfloat16>(out, x, w, splits, stream);
}

}  // namespace sluice::cuda
