// The product of few rows with packed weights (packed.cuh).
#include <algorithm>
#include <stdexcept>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/packed.cuh"
#include "backend/cuda/packed_tile.cuh"

namespace sluice::cuda {

namespace {

constexpr int kStreamWarps = 8;  // share a row of tiles, every eighth tile each

template <typename T>
struct StreamedArgs {
  void* out;  // of T, or f32
  int64_t out_stride;
  bool f32_out;
  const T* x;
  int64_t x_stride;
  const float* bias;
  int n;
  Planes w;
};

// A block's share: kTokens times eight rows of x, kTiles times 16 rows of w. The bits do not depend
// on either.
template <Format F, int kTokens, int kTiles>
struct StreamedShape {
  static constexpr int kRows = kTiles * kPackedRows, kN = kTokens * 8;
  // Tiles read ahead, and blocks per multiprocessor: as registers allow.
  static constexpr int kDepth = kTiles > 1 ? 2 : packed_format(F).supers > 0 ? 3 : 4;
  static constexpr int kBlocks = kTiles == 1 ? 3 : kTokens <= 2 ? 2 : 1;
};

// A lane's share of 64 columns of x: of each 16 columns four, of row lane / 4 of every eight.
template <typename T, int kTokens>
struct XTile {
  uint2 of[kTokens][4];

  __device__ void load(const StreamedArgs<T>& a, int first_token, int tile, int lane) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const int token = first_token + 8 * t + lane / 4;
      const int col = tile * kPackedCols + lane % 4 * 4;
      const T* from = a.x + token * a.x_stride + col;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        of[t][j] = {};
        // Columns end with a whole 32, the first 32 of a tile are always there.
        if (token < a.n && (j < 2 || col + 32 < a.w.cols))
          of[t][j] = *reinterpret_cast<const uint2*>(from + 16 * j);
      }
    }
  }
};

template <typename T, Format F, int kTokens, int kTiles>
struct Sums {
  float of[kTiles][kTokens][4] = {};

  static __device__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint2 x, bool first) {
    if (first) return first_mma(c, a, x.x, x.y, T{});
    mma(c, a, x.x, x.y, T{});
  }
  __device__ void add(const LaneTile<F> (&w)[kTiles], const XTile<T, kTokens>& x) {
    using Tile = LaneTile<F>;
    constexpr int kSteps = Tile::f.group / 16;
    const uint32_t ones[4] = {Pairs<T>::kOnes, Pairs<T>::kOnes, Pairs<T>::kOnes, Pairs<T>::kOnes};
#pragma unroll
    for (int g = 0; g < Tile::kGroups; ++g) {
      float x_sum[kTokens][4];
      if constexpr (Tile::f.has_min) {
#pragma unroll
        for (int k = 0; k < kSteps; ++k)
#pragma unroll
          for (int t = 0; t < kTokens; ++t)
            multiply(x_sum[t], ones, x.of[t][g * kSteps + k], k == 0);
      }
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        float c[kTokens][4];
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          uint32_t a[4];
          w[r].template integers<T>(g * kSteps + k, a);
#pragma unroll
          for (int t = 0; t < kTokens; ++t) multiply(c[t], a, x.of[t][g * kSteps + k], k == 0);
        }
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
          const ScaleAndMin s = w[r].scale(upper, g);
#pragma unroll
          for (int t = 0; t < kTokens; ++t)
#pragma unroll
            for (int i = 2 * upper; i < 2 * upper + 2; ++i) {
              of[r][t][i] = fmaf(s.scale, c[t][i], of[r][t][i]);
              if constexpr (Tile::f.has_min) of[r][t][i] = fmaf(-s.min, x_sum[t][i], of[r][t][i]);
            }
        }
      }
    }
  }
};

template <typename T, Format F, int kTokens, int kTiles>
__global__ void __launch_bounds__(kStreamWarps * 32, StreamedShape<F, kTokens, kTiles>::kBlocks)
    streamed_kernel(const __grid_constant__ StreamedArgs<T> a) {
  using S = StreamedShape<F, kTokens, kTiles>;
  __shared__ float partial[kStreamWarps][S::kN][S::kRows];
  let_next_start();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first_token = static_cast<int>(blockIdx.x) * S::kN;
  const int num = (a.w.row_tiles + kTiles - 1) / kTiles, step = static_cast<int>(gridDim.y);
  constexpr int kRound = S::kDepth * kStreamWarps;
  const int rounds = (a.w.tiles + kRound - 1) / kRound;

  LaneTile<F> ahead[S::kDepth][kTiles];
  const auto fetch = [&](LaneTile<F>(&to)[kTiles], int block, int tile) {
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
      const int row_tile = block * kTiles + r;
      if (tile < a.w.tiles && row_tile < a.w.row_tiles) {
        to[r].load(a.w, row_tile, tile, lane);
      } else {
        to[r].clear();
      }
    }
  };
  int block = static_cast<int>(blockIdx.y);
#pragma unroll
  for (int d = 0; d < S::kDepth; ++d) fetch(ahead[d], block, warp + d * kStreamWarps);
  wait_for_inputs();
  XTile<T, kTokens> x;
  if (warp < a.w.tiles) x.load(a, first_token, warp, lane);

  // Reading does not stop between rows of tiles: the last round fetches the next row's first.
  for (; block < num; block += step) {
    Sums<T, F, kTokens, kTiles> sums;
    for (int round = 0; round < rounds; ++round) {
#pragma unroll
      for (int d = 0; d < S::kDepth; ++d) {
        const int tile = warp + round * kRound + d * kStreamWarps;
        if (tile < a.w.tiles) {
          XTile<T, kTokens> next;
          const int later = tile + kStreamWarps;
          next.load(a, first_token, later < a.w.tiles ? later : warp, lane);
          sums.add(ahead[d], x);
          x = next;
        }
        if (round + 1 < rounds) {
          fetch(ahead[d], block, tile + kRound);
        } else {
          fetch(ahead[d], block + step, warp + d * kStreamWarps);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kTiles; ++r)
#pragma unroll
      for (int t = 0; t < kTokens; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          partial[warp][8 * t + lane % 4 * 2 + i % 2][r * kPackedRows + lane / 4 + i / 2 * 8] =
              sums.of[r][t][i];
    __syncthreads();
    for (int k = static_cast<int>(threadIdx.x); k < S::kN * S::kRows; k += kStreamWarps * 32) {
      const int token = k / S::kRows, row = block * S::kRows + k % S::kRows;
      if (first_token + token >= a.n || row >= a.w.rows) continue;
      float sum = 0;
      for (int w = 0; w < kStreamWarps; ++w) sum += partial[w][token][k % S::kRows];
      if (a.bias) sum += a.bias[row];
      const int64_t at = (first_token + token) * a.out_stride + row;
      if (a.f32_out) {
        static_cast<float*>(a.out)[at] = sum;
      } else {
        static_cast<T*>(a.out)[at] = from_float<T>(sum);
      }
    }
    __syncthreads();
  }
}

template <typename T, Format F, int kTokens, int kTiles>
void run_shape(const StreamedArgs<T>& a, int num_sms, cudaStream_t stream) {
  const int columns = ceil_div(a.n, 8 * kTokens), rows = ceil_div(a.w.row_tiles, kTiles);
  const int fit = num_sms * StreamedShape<F, kTokens, kTiles>::kBlocks;
  const dim3 grid(static_cast<unsigned>(columns),
                  static_cast<unsigned>(std::clamp(fit / columns, 1, rows)));
  launch("streamed", streamed_kernel<T, F, kTokens, kTiles>, grid, kStreamWarps * 32, 0, stream, a);
}

template <typename T>
void run_streamed(Tensor out,
                  Tensor x,
                  const PackedPart& w,
                  const float* bias,
                  int num_sms,
                  cudaStream_t stream) {
  const StreamedArgs<T> a{
      out.data, out.stride, out.type == DType::f32,     static_cast<const T*>(x.data),
      x.stride, bias,       static_cast<int>(out.rows), Planes(w)};
  with_packed_block(w.format, [&](auto block) {
    constexpr Format kFormat = decltype(block)::kFormat;
    if (a.n <= 8) return run_shape<T, kFormat, 1, 1>(a, num_sms, stream);
    if (a.n <= 16) return run_shape<T, kFormat, 2, 2>(a, num_sms, stream);
    run_shape<T, kFormat, 4, 2>(a, num_sms, stream);
  });
}

}  // namespace

void streamed(Tensor out,
              Tensor x,
              const PackedPart& w,
              const float* bias,
              int num_sms,
              cudaStream_t stream) {
  if (reinterpret_cast<uintptr_t>(x.data) % 8 != 0 || x.stride % 4 != 0)
    throw std::logic_error("CUDA: rows of a product's input are not aligned");
  if (x.type == DType::f16) return run_streamed<__half>(out, x, w, bias, num_sms, stream);
  run_streamed<__nv_bfloat16>(out, x, w, bias, num_sms, stream);
}

}  // namespace sluice::cuda
