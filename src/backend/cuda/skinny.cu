#include "backend/cuda/skinny.cuh"
#include "backend/cuda/streamed.cuh"

namespace sluice::cuda {

namespace {

constexpr int kWarps = 8;
constexpr int kRows = 16;  // weight rows per block; its warps share the columns

template <typename T, bool kF8>
__global__ void __launch_bounds__(kWarps * 32, kF8 ? 2 : 3)
    skinny_kernel(const __grid_constant__ ProductArgs<T> a) {
  using S = Streamed<kF8>;
  __shared__ float partial[kWarps][kRows][8];
  let_next_start();
  int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int group = lane / 4, ahead = lane % 4 * S::kLane;
  int first = static_cast<int>(blockIdx.x) * kRows;
  WeightRows w = weight_rows<T, kF8>(a, first + group);
  constexpr int kStep = kWarps * S::kCols;

  // Two pieces ahead of the arithmetic.
  int begin = warp * S::kCols;
  Piece now = load_piece<kF8>(w, begin + ahead, a.cols);
  Piece next = load_piece<kF8>(w, begin + ahead + kStep, a.cols);
  wait_for_inputs();

  float acc[1][4] = {};
  for (int base = begin; base < a.cols; base += kStep) {
    Piece after = load_piece<kF8>(w, base + ahead + 2 * kStep, a.cols);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int at = base + ahead + S::kPart * i;
      multiply<T, kF8, 1>(acc, now, i, [&](int, int h) {
        uint4 v{};
        if (group < a.n && at < a.cols)
          v = *reinterpret_cast<const uint4*>(a.x + group * a.x_stride + at + 8 * h);
        return v;
      });
    }
    now = next;
    next = after;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) partial[warp][group + i / 2 * 8][lane % 4 * 2 + i % 2] = acc[0][i];
  __syncthreads();
  int row = static_cast<int>(threadIdx.x) % kRows, token = static_cast<int>(threadIdx.x) / kRows;
  if (token >= a.n || first + row >= a.rows) return;
  float sum = 0;
  for (int k = 0; k < kWarps; ++k) sum += partial[k][row][token];
  store_sum<T, kF8>(a, token, first + row, sum);
}

__device__ inline float block_max(float v, float* shared) {
  for (int step = 16; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, step));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  float most = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) most = fmaxf(most, shared[w]);
  __syncthreads();
  return most;
}

// A block per row; the row is read twice, the second time from the cache.
template <typename T>
__global__ void quantize_kernel(
    __nv_fp8_e4m3* out, float* scale, const T* x, int64_t stride, int cols) {
  __shared__ float shared[32];
  wait_for_inputs();
  let_next_start();
  const T* row = x + blockIdx.x * stride;
  auto first = static_cast<int>(threadIdx.x) * 8, step = static_cast<int>(blockDim.x) * 8;
  float most = 0;
  for (int c = first; c < cols; c += step) {
    auto p = *reinterpret_cast<const Pack<T, 8>*>(row + c);
    for (int i = 0; i < 8; ++i) most = fmaxf(most, fabsf(to_float(p.v[i])));
  }
  most = block_max(most, shared);
  float unit = most > 0 ? most / 448 : 1;
  float inverse = 1 / unit;
  if (threadIdx.x == 0) scale[blockIdx.x] = unit;
  for (int c = first; c < cols; c += step) {
    auto p = *reinterpret_cast<const Pack<T, 8>*>(row + c);
    Pack<__nv_fp8_e4m3, 8> q;
    for (int i = 0; i < 8; ++i) q.v[i] = from_float<__nv_fp8_e4m3>(to_float(p.v[i]) * inverse);
    *reinterpret_cast<Pack<__nv_fp8_e4m3, 8>*>(out + static_cast<int64_t>(blockIdx.x) * cols + c) =
        q;
  }
}

void quantize(void* out, float* scale, Tensor x, cudaStream_t stream) {
  with_type(x.type, [&](auto t) {
    using T = decltype(t);
    unsigned threads = x.cols >= 8192 ? 1024 : x.cols >= 2048 ? 256 : 128;
    launch("quantize", quantize_kernel<T>, static_cast<unsigned>(x.rows), threads, 0, stream,
           static_cast<__nv_fp8_e4m3*>(out), scale, static_cast<const T*>(x.data), x.stride,
           static_cast<int>(x.cols));
  });
}

template <typename T>
void run_as(Tensor out, Tensor x, const GemmWeight& w, cudaStream_t stream) {
  ProductArgs<T> a = product_args<T>(out, x, w);
  auto blocks = static_cast<unsigned>((a.rows + kRows - 1) / kRows);
  auto go = [&](auto kernel) { launch("skinny", kernel, blocks, kWarps * 32, 0, stream, a); };
  if (w.type == DType::f8) return go(skinny_kernel<T, true>);
  go(skinny_kernel<T, false>);
}

}  // namespace

bool can_stream(const Tensor& out, const Tensor& x, const GemmWeight& w) {
  bool f8 = w.type == DType::f8;
  return out.rows <= (f8 ? kMaxNarrow8 : kMaxNarrow) &&
         (x.type == DType::f16 || x.type == DType::bf16) && (x.type == w.type || f8) &&
         (out.type == x.type || (out.type == DType::f32 && !w.bias)) &&
         w.cols % (f8 ? 16 : 8) == 0 && x.stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(w.data) % 16 == 0;
}

void skinny(Tensor out, Tensor x, const GemmWeight& w, cudaStream_t stream) {
  if (x.type == DType::f16) return run_as<__half>(out, x, w, stream);
  run_as<__nv_bfloat16>(out, x, w, stream);
}

void quantize_rows(const QuantizedRows& out, Tensor x, cudaStream_t stream) {
  quantize(out.data, out.scale, x, stream);
}
void quantize_weight(void* out, float* scale, Tensor w, cudaStream_t stream) {
  quantize(out, scale, w, stream);
}

}  // namespace sluice::cuda
