// Attention for types and sizes that the tiled kernels do not take, in f32. One block per
// (row, head); a row's bits depend on that row alone.
#include <algorithm>

#include "backend/cuda/attention_kinds.cuh"
#include "backend/cuda/attention_prefill.cuh"
#include "backend/cuda/check.cuh"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxDim = 1024;

template <typename T>
__device__ float to_float(T x) {
  return static_cast<float>(x);
}

// Combines one value of every thread in a fixed order; all threads get it.
template <typename F>
__device__ float block_reduce(float x, float* scratch, F combine) {
  for (int i = 16; i > 0; i /= 2) x = combine(x, __shfl_xor_sync(~0u, x, i));
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  x = scratch[0];
  for (int i = 1; i < kThreads / 32; ++i) x = combine(x, scratch[i]);
  return x;
}

// K or V of one position: codes have their scale in each group of dimensions.
template <typename KV>
struct PlainRow {
  const KV* x;
  const __half* scales;
  int stride, shift;

  __device__ PlainRow(const AttentionParams& p, const uint8_t* head, int in_block)
      : x(reinterpret_cast<const KV*>(head + static_cast<int64_t>(in_block) * p.row_bytes)),
        scales(reinterpret_cast<const __half*>(head + p.scales_at) + in_block),
        stride(1 << p.block_shift),
        shift(p.dims_shift) {}
  __device__ float operator[](int d) const {
    if constexpr (kIsCodes<KV>) {
      return __half2float(scales[(d >> shift) * stride]) * static_cast<float>(x[d].code - 128);
    } else {
      return to_float(x[d]);
    }
  }
};

// Tiles of kThreads positions, a thread each for the scores, then a thread per dimension.
template <typename T, typename KV>
__global__ __launch_bounds__(kThreads) void plain_kernel(AttentionParams p, int first) {
  __shared__ float q[kMaxDim], weights[kThreads], scratch[kThreads / 32];
  wait_for_previous_kernel();
  int row = first + blockIdx.x, head = blockIdx.y, d = p.head_dim;
  const T* q_row = static_cast<const T*>(p.q) + row * p.q_stride + static_cast<int64_t>(head) * d;
  for (int i = threadIdx.x; i < d; i += kThreads) q[i] = to_float(q_row[i]);
  __syncthreads();

  int hi = max(p.positions[row], 0) + 1;
  int lo = p.window > 0 ? max(0, hi - p.window) : 0;
  const BlockIds table(p, p.row_slot[row]);
  auto at = [&](const uint8_t* base, int position) {
    int64_t block = table[position >> p.block_shift];
    return PlainRow<KV>(p, base + (block * p.kv_heads + head / p.group) * p.block_bytes,
                        position & ((1 << p.block_shift) - 1));
  };
  auto larger = [](float a, float b) { return fmaxf(a, b); };
  auto plus = [](float a, float b) { return a + b; };

  float o[kMaxDim / kThreads] = {};
  float max = -INFINITY, sum = 0;
  for (int start = lo / kThreads * kThreads; start < hi; start += kThreads) {
    int position = start + threadIdx.x;
    float s = -INFINITY;
    if (position >= lo && position < hi) {
      const PlainRow<KV> k = at(p.k, position);
      s = 0;
      for (int i = 0; i < d; ++i) s = fmaf(q[i], k[i], s);
      s = p.cap > 0 ? p.cap * tanhf(s * (p.cap_factor * 0.34657359f)) : s * p.factor;
    }
    float top = fmaxf(max, block_reduce(s, scratch, larger));
    float alpha = exp2f(max - top), w = exp2f(s - top);
    max = top;
    weights[threadIdx.x] = w;
    sum = fmaf(sum, alpha, block_reduce(w, scratch, plus));
    int from = std::max(start, lo), to = min(start + kThreads, hi);
    for (int i = 0; i < kMaxDim / kThreads; ++i) o[i] *= alpha;
    for (int t = from; t < to; ++t) {
      const PlainRow<KV> v = at(p.v, t);
      for (int i = 0, j = threadIdx.x; i < kMaxDim / kThreads && j < d; ++i, j += kThreads) {
        o[i] = fmaf(weights[t - start], v[j], o[i]);
      }
    }
    __syncthreads();
  }
  T* out = static_cast<T*>(p.out) + row * p.out_stride + static_cast<int64_t>(head) * d;
  for (int i = 0, j = threadIdx.x; i < kMaxDim / kThreads && j < d; ++i, j += kThreads) {
    out[j] = static_cast<T>(o[i] / sum);
  }
}

template <typename T, typename KV>
void launch(const AttentionParams& p, int first, dim3 grid, cudaStream_t stream) {
  plain_kernel<T, KV><<<grid, kThreads, 0, stream>>>(p, first);
  check_launch("attention");
}

}  // namespace

void launch_plain(const AttentionArgs& args, int first, int num, cudaStream_t stream) {
  if (args.spec.head_dim > kMaxDim) throw std::runtime_error("CUDA: head_dim above 1024");
  AttentionParams p = make_params(args);
  dim3 grid(num, args.spec.num_heads);
  if (args.type == DType::f32 && args.kv_type.type == DType::f32)
    return launch<float, float>(p, first, grid, stream);
  if (args.type != DType::f16 && args.type != DType::bf16)
    throw std::runtime_error("CUDA: attention over such a cache has queries in f16 or bf16");
  with_cache_types(args.type, args.kv_type, [&](auto t, auto kv) {
    launch<decltype(t), decltype(kv)>(p, first, grid, stream);
  });
}

}  // namespace sluice::cuda
