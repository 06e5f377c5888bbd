#include "backend/cuda/activation.cuh"
#include "backend/cuda/codes.cuh"
#include "backend/cuda/packed_split.cuh"

namespace sluice::cuda {

namespace {

constexpr int kActivateVecs = 3;  // groups of columns per thread, where a block has a row
constexpr int kRowParts = 4;      // blocks per row, where rows are few
constexpr int64_t kFewRows = 64;

// N columns from `x` to `out` (where that is wanted), and as `out` holds them. kGated: up is `cols`
// behind its gate.
template <typename O, typename T, bool kGated, int N>
__device__ inline void activate_columns(
    O* out, const T* x, int cols, Activation activation, bool stores, float (&v)[N]) {
  auto gate = *reinterpret_cast<const Pack<T, N>*>(x);
  Pack<T, N> up;
  Pack<O, N> result;
  if (kGated) up = *reinterpret_cast<const Pack<T, N>*>(x + cols);
  for (int i = 0; i < N; ++i) {
    float y = activated(to_float(gate.v[i]), activation);
    result.v[i] = from_float<O>(kGated ? y * to_float(up.v[i]) : y);
    v[i] = to_float(result.v[i]);
  }
  if (stores) *reinterpret_cast<Pack<O, N>*>(out) = result;
}

template <typename O, typename T, bool kGated, int N>
__global__ void activate_kernel(
    O* out, int64_t out_stride, const T* x, int64_t stride, int cols, Activation activation) {
  wait_for_inputs();
  let_next_start();
  int c = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * N;
  if (c >= cols) return;
  float v[N];
  activate_columns<O, T, kGated, N>(out + blockIdx.x * out_stride + c, x + blockIdx.x * stride + c,
                                    cols, activation, true, v);
}

// The same, put out in two bytes an element as well. A warp, or two, have 256 columns.
template <typename O, typename T, bool kGated, int N>
__global__ void __launch_bounds__(256)
    activate_split_kernel(O* out,
                          int64_t out_stride,
                          const T* x,
                          int64_t stride,
                          int cols,
                          Activation activation,
                          const __grid_constant__ SplitOut split) {
  __shared__ float most_of[8];
  wait_for_inputs();
  let_next_start();
  const int c = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * N;
  float v[N] = {}, most = 0;
  if (c < cols) {
    activate_columns<O, T, kGated, N>(out + blockIdx.x * out_stride + c,
                                      x + blockIdx.x * stride + c, cols, activation, true, v);
    for (int i = 0; i < N; ++i) most = larger(most, v[i]);
  }
  most = warp_most(most);
  if constexpr (N == 4) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (threadIdx.x % 32 == 0) most_of[warp] = most;
    __syncthreads();
    most = larger(most, most_of[warp ^ 1]);
  }
  if (c >= cols) return;
  put_split<N / 4>(split, int64_t{blockIdx.x} * (cols / kSplitCols) + c / kSplitCols,
                   c % kSplitCols / 4, v, most);
}

// The same, a block per row, which is put out in codes as well.
template <typename O, typename T, bool kGated, int N>
__global__ void __launch_bounds__(1024) activate_row_kernel(O* out,
                                                            int64_t out_stride,
                                                            const T* x,
                                                            int64_t stride,
                                                            int cols,
                                                            Activation activation,
                                                            CodesView codes) {
  __shared__ float shared[33];
  wait_for_inputs();
  let_next_start();
  float v[kActivateVecs][N];
#pragma unroll
  for (int k = 0; k < kActivateVecs; ++k) {
    int c = (static_cast<int>(threadIdx.x) + k * static_cast<int>(blockDim.x)) * N;
    if (c >= cols) continue;
    activate_columns<O, T, kGated, N>(out + blockIdx.x * out_stride + c,
                                      x + blockIdx.x * stride + c, cols, activation, !codes.alone,
                                      v[k]);
  }
  store_codes<kActivateVecs, N>(codes, v, cols, shared);
}

// The same for few rows: a cluster of blocks per row, so that more of the device reads.
template <typename O, typename T, bool kGated, int N>
__global__ void SLUICE_CLUSTER_DIMS(kRowParts) __launch_bounds__(1024)
    activate_parts_kernel(O* out,
                          int64_t out_stride,
                          const T* x,
                          int64_t stride,
                          int cols,
                          Activation activation,
                          CodesView codes) {
#if SLUICE_HAS_CLUSTERS
  __shared__ float shared[kClusterMaxFloats];
  wait_for_inputs();
  let_next_start();
  int64_t row = blockIdx.y;
  int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * N;
  float v[N], most = 0;
  if (c < cols) {
    activate_columns<O, T, kGated, N>(out + row * out_stride + c, x + row * stride + c, cols,
                                      activation, !codes.alone, v);
    for (int i = 0; i < N; ++i) most = larger(most, v[i]);
  }
  const Unit unit(cluster_max(most, shared), codes.type);
  if (blockIdx.x == 0 && threadIdx.x == 0) codes.scale[row] = unit.value;
  if (c < cols) {
    Pack<uint8_t, N> q;
    for (int i = 0; i < N; ++i) q.v[i] = unit.code(v[i]);
    *reinterpret_cast<Pack<uint8_t, N>*>(static_cast<uint8_t*>(codes.data) + row * cols + c) = q;
  }
  leave_cluster_max();
#else
  __trap();
#endif
}

// Starts a kernel that has a row's codes in one go; false: there is none for these sizes.
template <bool kGated, typename O, typename T>
bool launch_activate_codes(const ActivateOut& to,
                           Tensor x,
                           Activation activation,
                           cudaStream_t stream) {
  constexpr int kWide = 16 / sizeof(T);
  const Tensor& out = to.out;
  const auto cols = static_cast<int>(out.cols);
  if (out.rows <= kFewRows && cols <= kRowParts * 1024 * kWide && target().clusters) {
    auto threads = static_cast<unsigned>(ceil_div(cols, kRowParts * kWide * 32) * 32);
    launch("activate", activate_parts_kernel<O, T, kGated, kWide>,
           dim3(kRowParts, static_cast<unsigned>(out.rows)), threads, 0, stream,
           static_cast<O*>(out.data), out.stride, static_cast<const T*>(x.data), x.stride, cols,
           activation, to.codes);
    return true;
  }
  if (cols > kActivateVecs * 1024 * kWide) return false;
  auto threads = static_cast<unsigned>(ceil_div(cols, kActivateVecs * kWide * 32) * 32);
  launch("activate", activate_row_kernel<O, T, kGated, kWide>, static_cast<unsigned>(out.rows),
         threads, 0, stream, static_cast<O*>(out.data), out.stride, static_cast<const T*>(x.data),
         x.stride, cols, activation, to.codes);
  return true;
}

template <bool kGated, typename O, typename T>
void launch_activate_as(const ActivateOut& to,
                        Tensor x,
                        Activation activation,
                        cudaStream_t stream) {
  constexpr int kWide = 16 / sizeof(T);
  const Tensor& out = to.out;
  auto cols = static_cast<int>(out.cols);
  bool aligned = cols % kWide == 0 && x.stride % kWide == 0 && out.stride % kWide == 0 &&
                 reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
                 reinterpret_cast<uintptr_t>(out.data) % 16 == 0;
  auto run = [&](auto kernel, int wide, auto... more) {
    dim3 grid(static_cast<unsigned>(out.rows), static_cast<unsigned>(ceil_div(cols, 256 * wide)));
    launch("activate", kernel, grid, 256, 0, stream, static_cast<O*>(out.data), out.stride,
           static_cast<const T*>(x.data), x.stride, cols, activation, more...);
  };
  if (to.codes.data && aligned && launch_activate_codes<kGated, O, T>(to, x, activation, stream))
    return fill_split(to.split, out, stream);
  if (to.split.kind != FewRows::streamed && aligned && cols % kSplitCols == 0) {
    run(activate_split_kernel<O, T, kGated, kWide>, kWide, to.split);
  } else {
    if (aligned) {
      run(activate_kernel<O, T, kGated, kWide>, kWide);
    } else {
      run(activate_kernel<O, T, kGated, 1>, 1);
    }
    fill_split(to.split, out, stream);
  }
  if (to.codes.data) quantize_rows(to.codes, out, stream);
}

template <bool kGated>
void launch_activate(const ActivateOut& to, Tensor x, Activation activation, cudaStream_t stream) {
  with_type(to.out.type, [&](auto t) {
    using T = decltype(t);
    if (x.type == DType::f32)
      return launch_activate_as<kGated, T, float>(to, x, activation, stream);
    launch_activate_as<kGated, T, T>(to, x, activation, stream);
  });
}

// A block per row; the row is read twice, the second time from the cache.
template <typename T>
__global__ void quantize_kernel(CodesView out, const T* x, int64_t stride, int cols) {
  __shared__ float shared[32];
  wait_for_inputs();
  let_next_start();
  const T* row = x + blockIdx.x * stride;
  auto first = static_cast<int>(threadIdx.x) * 8, step = static_cast<int>(blockDim.x) * 8;
  float most = 0;
  for (int c = first; c < cols; c += step) {
    auto p = *reinterpret_cast<const Pack<T, 8>*>(row + c);
    for (int i = 0; i < 8; ++i) most = larger(most, to_float(p.v[i]));
  }
  const Unit unit(block_max(most, shared), out.type);
  if (threadIdx.x == 0) out.scale[blockIdx.x] = unit.value;
  auto* to = static_cast<uint8_t*>(out.data) + static_cast<int64_t>(blockIdx.x) * cols;
  for (int c = first; c < cols; c += step) {
    auto p = *reinterpret_cast<const Pack<T, 8>*>(row + c);
    Pack<uint8_t, 8> q;
    for (int i = 0; i < 8; ++i) q.v[i] = unit.code(to_float(p.v[i]));
    *reinterpret_cast<Pack<uint8_t, 8>*>(to + c) = q;
  }
}

}  // namespace

void quantize_rows(const CodesView& out, Tensor x, cudaStream_t stream) {
  with_type(x.type, [&](auto t) {
    using T = decltype(t);
    unsigned threads = x.cols >= 8192 ? 1024 : x.cols >= 2048 ? 256 : 128;
    launch("quantize", quantize_kernel<T>, static_cast<unsigned>(x.rows), threads, 0, stream, out,
           static_cast<const T*>(x.data), x.stride, static_cast<int>(x.cols));
  });
}

void activate(const ActivateOut& to, Tensor x, Activation activation, cudaStream_t stream) {
  launch_activate<false>(to, x, activation, stream);
}
void activate_gated(const ActivateOut& to,
                    Tensor gate_up,
                    Activation activation,
                    cudaStream_t stream) {
  launch_activate<true>(to, gate_up, activation, stream);
}

}  // namespace sluice::cuda
