#include "backend/cuda/skinny.cuh"

#include <type_traits>

#include "backend/cuda/f8_bits.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/mma_sync.cuh"

namespace sluice::cuda {

namespace {

template <typename T>
struct ProductArgs {
  void* out;  // of T, or f32
  int64_t out_stride;
  bool f32_out;
  const T* x;
  int64_t x_stride;
  const void* w;  // of T, or f8
  const T* bias;
  const float* scale;  // of weights in f8
  int n, rows, cols;
};

template <typename T>
ProductArgs<T> product_args(const Tensor& out, const Tensor& x, const GemmWeight& w) {
  return {out.data,
          out.stride,
          out.type == DType::f32,
          static_cast<const T*>(x.data),
          x.stride,
          w.data,
          static_cast<const T*>(w.bias),
          w.scale,
          static_cast<int>(out.rows),
          static_cast<int>(w.rows),
          static_cast<int>(w.cols)};
}

// Four e4m3 as two pairs of T. Halves hold them exactly. For bf16 the exponent's bits move as they
// are: the value is 2^-120 times what it should be, which the weight's scale makes up for.
template <typename T>
__device__ inline uint2 expand(uint32_t four);
template <>
__device__ inline uint2 expand<__half>(uint32_t four) {
#if SLUICE_HAS_F8
  uint2 r;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h; "
      "}"
      : "=r"(r.x), "=r"(r.y)
      : "r"(four));
  return r;
#else
  return {f8_bits_to_half(__byte_perm(four, 0, 0x1404)),
          f8_bits_to_half(__byte_perm(four, 0, 0x3424))};
#endif
}
template <>
__device__ inline uint2 expand<__nv_bfloat16>(uint32_t four) {
  auto move = [](uint32_t t) { return (t & 0x80008000u) | (t >> 4 & 0x07f007f0u); };
  return {move(__byte_perm(four, 0, 0x1404)), move(__byte_perm(four, 0, 0x3424))};
}
template <typename T>
__device__ constexpr float expand_factor() {
  return sizeof(T) == 2 && !std::is_same_v<T, __half> ? 0x1p120f : 1;
}

// A warp takes 16 rows and kCols columns at a time, in two parts of four lanes' columns each: a
// lane reads 16 bytes of two rows from each. Products are summed over columns, so that any
// assignment of columns to the matrix instruction's k serves as long as x has the same.
template <bool kF8>
struct Streamed {
  static constexpr int kLane = kF8 ? 16 : 8;  // neighbouring columns of a lane
  static constexpr int kPart = 4 * kLane;
  static constexpr int kCols = 2 * kPart;
  static constexpr int kBytes = kF8 ? 1 : 2;
};

struct Piece {
  uint4 low[2], high[2];
};

// The two rows of a lane, null beyond the last.
struct WeightRows {
  const uint8_t* low;
  const uint8_t* high;
};

template <typename T, bool kF8>
__device__ inline WeightRows weight_rows(const ProductArgs<T>& a, int row) {
  const auto* base = static_cast<const uint8_t*>(a.w);
  int64_t bytes = int64_t{a.cols} * Streamed<kF8>::kBytes;
  return {row < a.rows ? base + row * bytes : nullptr,
          row + 8 < a.rows ? base + (row + 8) * bytes : nullptr};
}

template <bool kF8>
__device__ inline Piece load_piece(const WeightRows& w, int column, int cols) {
  using S = Streamed<kF8>;
  Piece p;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int c = column + S::kPart * i;
    p.low[i] = c < cols && w.low ? stream_load(w.low + c * S::kBytes) : uint4{};
    p.high[i] = c < cols && w.high ? stream_load(w.high + c * S::kBytes) : uint4{};
  }
  return p;
}

// acc += part i of the piece times eight rows of x; x_at(h) gives eight columns of row lane / 4:
// the lane's first eight (h = 0), of f8 also its second.
template <typename T, bool kF8, typename X>
__device__ inline void multiply(float (&acc)[4], const Piece& p, int i, X&& x_at) {
  const uint32_t low[4] = {p.low[i].x, p.low[i].y, p.low[i].z, p.low[i].w};
  const uint32_t high[4] = {p.high[i].x, p.high[i].y, p.high[i].z, p.high[i].w};
#pragma unroll
  for (int h = 0; h < Streamed<kF8>::kLane / 8; ++h) {
    uint32_t words[2][4];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      uint2 l, u;
      if constexpr (kF8) {
        l = expand<T>(low[2 * h + k]), u = expand<T>(high[2 * h + k]);
      } else {
        l = {low[2 * k], low[2 * k + 1]}, u = {high[2 * k], high[2 * k + 1]};
      }
      words[k][0] = l.x, words[k][1] = u.x, words[k][2] = l.y, words[k][3] = u.y;
    }
    uint4 v = x_at(h);
    mma(acc, words[0], v.x, v.y, T{});
    mma(acc, words[1], v.z, v.w, T{});
  }
}

template <typename T, bool kF8>
__device__ inline void store_sum(const ProductArgs<T>& a, int token, int row, float sum) {
  if (kF8) sum *= expand_factor<T>() * a.scale[row];
  if (a.bias) sum += to_float(a.bias[row]);
  int64_t at = token * a.out_stride + row;
  if (a.f32_out) {
    static_cast<float*>(a.out)[at] = sum;
  } else {
    static_cast<T*>(a.out)[at] = from_float<T>(sum);
  }
}

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

  float acc[4] = {};
  for (int base = begin; base < a.cols; base += kStep) {
    Piece after = load_piece<kF8>(w, base + ahead + 2 * kStep, a.cols);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int at = base + ahead + S::kPart * i;
      multiply<T, kF8>(acc, now, i, [&](int h) {
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
  for (int i = 0; i < 4; ++i) partial[warp][group + i / 2 * 8][lane % 4 * 2 + i % 2] = acc[i];
  __syncthreads();
  int row = static_cast<int>(threadIdx.x) % kRows, token = static_cast<int>(threadIdx.x) / kRows;
  if (token >= a.n || first + row >= a.rows) return;
  float sum = 0;
  for (int k = 0; k < kWarps; ++k) sum += partial[k][row][token];
  store_sum<T, kF8>(a, token, first + row, sum);
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

bool can_skinny(const Tensor& x, const GemmWeight& w) {
  bool f8 = w.type == DType::f8;
  return x.rows <= kMaxSkinny && (x.type == DType::f16 || x.type == DType::bf16) &&
         (x.type == w.type || f8) && w.cols % (f8 ? 16 : 8) == 0 && x.stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(w.data) % 16 == 0;
}

void skinny(Tensor out, Tensor x, const GemmWeight& w, cudaStream_t stream) {
  if (x.type == DType::f16) return run_as<__half>(out, x, w, stream);
  run_as<__nv_bfloat16>(out, x, w, stream);
}

}  // namespace sluice::cuda
