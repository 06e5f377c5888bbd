// The product of few rows with packed weights (packed.cuh).
#include <type_traits>

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
  static constexpr int kDepth = kTiles > 1 ? 2 : packed_format(F).high > 0 ? 3 : 4;
  static constexpr int kBlocks = kTiles == 1 ? 3 : kTokens <= 2 ? 2 : 1;
};

template <typename T, Format F, int kTokens, int kTiles>
struct Sums {
  float of[kTiles][kTokens][4] = {};

  // x_at(t, j): the lane's four columns of the 16 from 16 j on, of row lane / 4 of the eight from
  // 8 t on.
  template <typename X>
  __device__ void add(const LaneTile<F> (&w)[kTiles], X&& x_at) {
    using Tile = LaneTile<F>;
    constexpr int kSteps = Tile::f.group / 16;
    const uint32_t ones[4] = {Pairs<T>::kOnes, Pairs<T>::kOnes, Pairs<T>::kOnes, Pairs<T>::kOnes};
#pragma unroll
    for (int g = 0; g < Tile::kGroups; ++g) {
      uint2 x[kTokens][kSteps];
#pragma unroll
      for (int t = 0; t < kTokens; ++t)
#pragma unroll
        for (int k = 0; k < kSteps; ++k) x[t][k] = x_at(t, g * kSteps + k);
      float x_sum[kTokens][4] = {};
      if constexpr (Tile::f.has_min) {
#pragma unroll
        for (int k = 0; k < kSteps; ++k)
#pragma unroll
          for (int t = 0; t < kTokens; ++t) mma(x_sum[t], ones, x[t][k].x, x[t][k].y, T{});
      }
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        float c[kTokens][4] = {};
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          uint32_t a[4];
          w[r].template integers<T>(g * kSteps + k, a);
#pragma unroll
          for (int t = 0; t < kTokens; ++t) mma(c[t], a, x[t][k].x, x[t][k].y, T{});
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
  const int first_row_tile = static_cast<int>(blockIdx.y) * kTiles;
  const int first_token = static_cast<int>(blockIdx.x) * S::kN;
  PlaneRow planes[kTiles];
#pragma unroll
  for (int r = 0; r < kTiles; ++r) planes[r] = a.w.template row<F>(first_row_tile + r);

  LaneTile<F> ahead[S::kDepth][kTiles];
  const auto load = [&](LaneTile<F>(&to)[kTiles], int tile) {
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
      if (tile < a.w.tiles && first_row_tile + r < a.w.row_tiles) {
        to[r].load(planes[r], tile, lane);
      } else {
        to[r].clear();
      }
    }
  };
#pragma unroll
  for (int d = 0; d < S::kDepth; ++d) load(ahead[d], warp + d * kStreamWarps);
  wait_for_inputs();

  Sums<T, F, kTokens, kTiles> sums;
  for (int base = warp; base < a.w.tiles; base += S::kDepth * kStreamWarps) {
#pragma unroll
    for (int d = 0; d < S::kDepth; ++d) {
      const int tile = base + d * kStreamWarps;
      if (tile >= a.w.tiles) break;
      sums.add(ahead[d], [&](int t, int j) {
        const int token = first_token + 8 * t + lane / 4;
        const int col = tile * kPackedCols + 16 * j + lane % 4 * 4;
        if (token >= a.n || col >= a.w.cols) return uint2{};
        return *reinterpret_cast<const uint2*>(a.x + token * a.x_stride + col);
      });
      load(ahead[d], tile + S::kDepth * kStreamWarps);
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
    const int token = k / S::kRows, row = first_row_tile * kPackedRows + k % S::kRows;
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
}

template <typename T, Format F, int kTokens, int kTiles>
void run_shape(const StreamedArgs<T>& a, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(a.n, 8 * kTokens)),
                  static_cast<unsigned>(ceil_div(a.w.row_tiles, kTiles)));
  launch("streamed", streamed_kernel<T, F, kTokens, kTiles>, grid, kStreamWarps * 32, 0, stream, a);
}

template <typename T>
void run_streamed(
    Tensor out, Tensor x, const PackedPart& w, const float* bias, cudaStream_t stream) {
  const StreamedArgs<T> a{
      out.data, out.stride, out.type == DType::f32,     static_cast<const T*>(x.data),
      x.stride, bias,       static_cast<int>(out.rows), Planes(w)};
  with_packed_block(w.format, [&](auto block) {
    constexpr Format kFormat = decltype(block)::kFormat;
    if (a.n <= 8) return run_shape<T, kFormat, 1, 1>(a, stream);
    if (a.n <= 16) return run_shape<T, kFormat, 2, 2>(a, stream);
    run_shape<T, kFormat, 4, 2>(a, stream);
  });
}

}  // namespace

void streamed(Tensor out, Tensor x, const PackedPart& w, const float* bias, cudaStream_t stream) {
  check_rows(x, 8);
  if (x.type == DType::f16) return run_streamed<__half>(out, x, w, bias, stream);
  run_streamed<__nv_bfloat16>(out, x, w, bias, stream);
}

}  // namespace sluice::cuda
