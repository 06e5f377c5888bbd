#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/codes.cuh"
#include "backend/cuda/packed_split.cuh"

namespace sluice::cuda {

namespace {

// The block's row in two bytes an element, from what its threads hold. Pairs of warps have 256
// columns each.
template <int kVecs>
__device__ inline void store_split(const SplitOut& to, const float (&v)[kVecs][4], int cols) {
  __shared__ float most_of[kVecs][32];
  const auto thread = static_cast<int>(threadIdx.x), warp = thread / 32;
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    float most = 0;
    for (int i = 0; i < 4; ++i) most = larger(most, v[k][i]);
    most = warp_most(most);
    if (thread % 32 == 0) most_of[k][warp] = most;
  }
  __syncthreads();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (cols / kSplitCols);
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    const int c = (thread + k * static_cast<int>(blockDim.x)) * 4;
    if (c >= cols) continue;
    put_split<1>(to, first + c / kSplitCols, c % kSplitCols / 4, v[k],
                 larger(most_of[k][warp & ~1], most_of[k][warp | 1]));
  }
}

// block_sum() with one barrier: each warp adds up the warps' sums itself, to the same bits.
// `shared` has 32 floats for this call alone.
__device__ inline float block_sum_once(float v, float* shared) {
  const auto thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  v = warp_sum(v);
  if (lane == 0) shared[thread / 32] = v;
  __syncthreads();
  return warp_sum(lane < static_cast<int>(blockDim.x) / 32 ? shared[lane] : 0);
}

// One block per row; each thread holds `kVecs` groups of four columns. The weights, which no kernel
// writes, are read before the kernel before ends. `early`: NormArgs.
template <typename O, typename X, typename D, int kVecs>
__global__ void __launch_bounds__(1024) norm_kernel(O* out,
                                                    int64_t out_stride,
                                                    X* x,
                                                    int64_t x_stride,
                                                    const D* delta,
                                                    int64_t delta_stride,
                                                    const float* weight,
                                                    const float* bias,
                                                    float eps,
                                                    const int32_t* rows,
                                                    int cols,
                                                    CodesView codes,
                                                    const __grid_constant__ SplitOut split,
                                                    bool early) {
  __shared__ float shared[33], sums[2][32];
  if (early) let_next_start();
  float4 w[kVecs];
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    const int c = (static_cast<int>(threadIdx.x) + k * static_cast<int>(blockDim.x)) * 4;
    if (c >= cols) continue;
    w[k] = *reinterpret_cast<const float4*>(weight + c);
    if (!rows && threadIdx.x % (32 / sizeof(X)) == 0) prefetch_l2(x + blockIdx.x * x_stride + c);
  }
  wait_for_inputs();
  if (!early) let_next_start();
  int64_t from = rows ? rows[blockIdx.x] : static_cast<int64_t>(blockIdx.x);
  X* row = x + from * x_stride;
  const D* add = delta ? delta + from * delta_stride : nullptr;
  float v[kVecs][4];
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    int c = (static_cast<int>(threadIdx.x) + k * static_cast<int>(blockDim.x)) * 4;
    if (c < cols) {
      auto p = *reinterpret_cast<const Pack<X, 4>*>(row + c);
      for (int i = 0; i < 4; ++i) v[k][i] = to_float(p.v[i]);
      if (add) {
        auto d = *reinterpret_cast<const Pack<D, 4>*>(add + c);
        for (int i = 0; i < 4; ++i) {
          v[k][i] += to_float(d.v[i]);
          p.v[i] = from_float<X>(v[k][i]);
        }
        *reinterpret_cast<Pack<X, 4>*>(row + c) = p;
      }
    } else {
      for (int i = 0; i < 4; ++i) v[k][i] = 0;
    }
    for (int i = 0; i < 4; ++i) sum += bias ? v[k][i] : v[k][i] * v[k][i];
  }
  float mean = 0;
  float total = block_sum_once(sum, sums[0]);
  if (bias) {
    mean = total / static_cast<float>(cols);
    float squares = 0;
#pragma unroll
    for (int k = 0; k < kVecs; ++k) {
      int c = (static_cast<int>(threadIdx.x) + k * static_cast<int>(blockDim.x)) * 4;
      for (int i = 0; i < 4; ++i) squares += c < cols ? (v[k][i] - mean) * (v[k][i] - mean) : 0;
    }
    total = block_sum_once(squares, sums[1]);
  }
  float inverse = rsqrtf(total / static_cast<float>(cols) + eps);
  O* to = out + blockIdx.x * out_stride;
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    int c = (static_cast<int>(threadIdx.x) + k * static_cast<int>(blockDim.x)) * 4;
    if (c >= cols) continue;
    Pack<O, 4> p;
    const float ws[4] = {w[k].x, w[k].y, w[k].z, w[k].w};
    for (int i = 0; i < 4; ++i) {
      float y = (v[k][i] - mean) * inverse * ws[i];
      p.v[i] = from_float<O>(bias ? y + bias[c + i] : y);
      v[k][i] = to_float(p.v[i]);
    }
    if (!codes.alone) *reinterpret_cast<Pack<O, 4>*>(to + c) = p;
  }
  if (codes.data) store_codes<kVecs, 4>(codes, v, cols, shared);
  if (split.kind != FewRows::streamed) store_split<kVecs>(split, v, cols);
}

// Any width and alignment; the row is read twice.
template <typename O, typename X, typename D>
__global__ void odd_norm_kernel(O* out,
                                int64_t out_stride,
                                X* x,
                                int64_t x_stride,
                                const D* delta,
                                int64_t delta_stride,
                                const float* weight,
                                const float* bias,
                                float eps,
                                const int32_t* rows,
                                int cols) {
  __shared__ float shared[33];
  wait_for_inputs();
  let_next_start();
  int64_t from = rows ? rows[blockIdx.x] : static_cast<int64_t>(blockIdx.x);
  X* row = x + from * x_stride;
  int first = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  float sum = 0;
  for (int c = first; c < cols; c += step) {
    float v = to_float(row[c]);
    if (delta) {
      v += to_float(delta[from * delta_stride + c]);
      row[c] = from_float<X>(v);
    }
    sum += bias ? v : v * v;
  }
  float mean = 0;
  float total = block_sum(sum, shared);
  if (bias) {
    mean = total / static_cast<float>(cols);
    float squares = 0;
    for (int c = first; c < cols; c += step) {
      float v = to_float(row[c]) - mean;
      squares += v * v;
    }
    total = block_sum(squares, shared);
  }
  float inverse = rsqrtf(total / static_cast<float>(cols) + eps);
  for (int c = first; c < cols; c += step) {
    float y = (to_float(row[c]) - mean) * inverse * weight[c];
    out[blockIdx.x * out_stride + c] = from_float<O>(bias ? y + bias[c] : y);
  }
}

template <typename O, typename X, typename D>
void launch_norm(const NormArgs& a, cudaStream_t stream) {
  auto cols = static_cast<int>(a.x.cols);
  auto n = static_cast<unsigned>(a.out.rows);
  auto run = [&](auto kernel, unsigned threads, auto... more) {
    launch("norm", kernel, n, threads, 0, stream, static_cast<O*>(a.out.data), a.out.stride,
           static_cast<X*>(a.x.data), a.x.stride, static_cast<const D*>(a.delta.data),
           a.delta.stride, a.weight, a.bias, a.eps, a.rows, cols, more...);
  };
  bool aligned = cols % 4 == 0 && a.x.stride % 4 == 0 && a.out.stride % 4 == 0 &&
                 a.delta.stride % 4 == 0 && reinterpret_cast<uintptr_t>(a.out.data) % 16 == 0 &&
                 reinterpret_cast<uintptr_t>(a.x.data) % 16 == 0 &&
                 reinterpret_cast<uintptr_t>(a.delta.data) % 16 == 0;
  auto threads = [&](int vecs) { return static_cast<unsigned>(ceil_div(cols, 128 * vecs) * 32); };
  if (!aligned || cols > 16384) {
    run(odd_norm_kernel<O, X, D>, 512);
    if (a.codes.data) quantize_rows(a.codes, a.out, stream);
    return fill_split(a.split, a.out, stream);
  }
  const int vecs = cols <= 4096 ? 1 : 4;
  const bool splits = cols % kSplitCols == 0 && threads(vecs) % 64 == 0;
  const SplitOut split = splits ? a.split : SplitOut{};
  if (vecs == 1) {
    run(norm_kernel<O, X, D, 1>, threads(1), a.codes, split, a.early);
  } else {
    run(norm_kernel<O, X, D, 4>, threads(4), a.codes, split, a.early);
  }
  if (!splits) fill_split(a.split, a.out, stream);
}

}  // namespace

void norm(const NormArgs& a, cudaStream_t stream) {
  // The residual stream is f32, what is added to it of the activations' type; norms of activations
  // in place add nothing.
  with_type(a.out.type, [&](auto o) {
    using O = decltype(o);
    if (a.delta.data) {
      if (a.delta.type == DType::f32) return launch_norm<O, float, float>(a, stream);
      return launch_norm<O, float, O>(a, stream);
    }
    if (a.x.type == DType::f32) return launch_norm<O, float, float>(a, stream);
    launch_norm<O, O, O>(a, stream);
  });
}

}  // namespace sluice::cuda
