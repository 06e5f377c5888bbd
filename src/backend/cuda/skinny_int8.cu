// Weights and x in int8, few rows of x: blocks of 16 weight rows, whose warps share out the
// columns. The matrix instruction of a single warp, so that it runs on every GPU.
#include "backend/cuda/boxed.cuh"
#include "backend/cuda/mma_sync.cuh"
#include "backend/cuda/skinny.cuh"

namespace sluice::cuda {

namespace {

constexpr int kInt8Warps = 8;
constexpr int kInt8Rows = 16;
constexpr int kInt8Part = 64;  // columns of four lanes, 16 each
constexpr int kInt8Cols = 2 * kInt8Part;

struct Int8Args {
  BoxedArgs a;
  const uint8_t* w;
  const uint8_t* x;
  int64_t x_stride;
};

// A lane's 16 columns of two weight rows, in either part.
struct Int8Piece {
  uint4 low[2], high[2];
};

__device__ inline Int8Piece load_int8(const uint8_t* low, const uint8_t* high, int col, int cols) {
  Int8Piece p;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int c = col + kInt8Part * i;
    p.low[i] = c < cols && low ? stream_load(low + c) : uint4{};
    p.high[i] = c < cols && high ? stream_load(high + c) : uint4{};
  }
  return p;
}

// acc += part i of the piece times eight rows of x, whose lane / 4th has `x` there. Products are
// summed over columns, so that any order of them serves as long as both operands have the same.
__device__ inline void multiply_int8(int32_t (&acc)[4], const Int8Piece& p, int i, const uint4& x) {
  const uint32_t first[4] = {p.low[i].x, p.high[i].x, p.low[i].y, p.high[i].y};
  const uint32_t second[4] = {p.low[i].z, p.high[i].z, p.low[i].w, p.high[i].w};
  mma(acc, first, x.x, x.y);
  mma(acc, second, x.z, x.w);
}

template <int kTiles>
__global__ void __launch_bounds__(kInt8Warps * 32, kTiles > 2 ? 1 : 2)
    skinny_int8_kernel(const __grid_constant__ Int8Args args) {
  const BoxedArgs& a = args.a;
  __shared__ int32_t partial[kInt8Warps][kTiles * 8][kInt8Rows];
  let_next_start();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = lane / 4, ahead = lane % 4 * 16;
  const int first = static_cast<int>(blockIdx.x) * kInt8Rows;
  const int first_x = static_cast<int>(blockIdx.y) * kTiles * 8;
  auto weight_row = [&](int row) {
    return row < a.rows ? args.w + static_cast<int64_t>(row) * a.cols : nullptr;
  };
  const uint8_t *low = weight_row(first + group), *high = weight_row(first + group + 8);
  constexpr int kStep = kInt8Warps * kInt8Cols;

  // Two pieces ahead of the arithmetic.
  const int begin = warp * kInt8Cols;
  Int8Piece now = load_int8(low, high, begin + ahead, a.cols);
  Int8Piece next = load_int8(low, high, begin + ahead + kStep, a.cols);
  wait_for_inputs();

  int32_t acc[kTiles][4] = {};
  for (int base = begin; base < a.cols; base += kStep) {
    const Int8Piece after = load_int8(low, high, base + ahead + 2 * kStep, a.cols);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = base + ahead + kInt8Part * i;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const int row = first_x + t * 8 + group;
        uint4 x{};
        if (row < a.n && at < a.cols)
          x = *reinterpret_cast<const uint4*>(args.x + row * args.x_stride + at);
        multiply_int8(acc[t], now, i, x);
      }
    }
    now = next;
    next = after;
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      partial[warp][t * 8 + lane % 4 * 2 + j % 2][group + j / 2 * 8] = acc[t][j];
  }
  __syncthreads();
  const int row = static_cast<int>(threadIdx.x) % kInt8Rows;
  if (first + row >= a.rows) return;
  const RowTerms terms(a, first + row);
  for (int t = static_cast<int>(threadIdx.x) / kInt8Rows; t < kTiles * 8 && first_x + t < a.n;
       t += kInt8Warps * 32 / kInt8Rows) {
    int32_t sum = 0;
    for (int k = 0; k < kInt8Warps; ++k) sum += partial[k][t][row];
    store_sum(a, first_x + t, first + row, static_cast<float>(sum), terms, a.x_scale[first_x + t]);
  }
}

template <int kTiles>
void run_int8(const Int8Args& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(args.a.rows, kInt8Rows)),
                  static_cast<unsigned>(ceil_div(args.a.n, kTiles * 8)));
  launch("skinny_int8", skinny_int8_kernel<kTiles>, grid, kInt8Warps * 32, 0, stream, args);
}

}  // namespace

bool can_skinny_int8(const Tensor& x, const GemmWeight& w) {
  return w.type == DType::i8 && fits_boxes(x, w);
}

void skinny_int8(
    Tensor out, Tensor x, const float* x_scale, const GemmWeight& w, cudaStream_t stream) {
  const Int8Args args{boxed_args(out, x_scale, w), static_cast<const uint8_t*>(w.data),
                      static_cast<const uint8_t*>(x.data), x.stride};
  if (args.a.n <= 8) return run_int8<1>(args, stream);
  if (args.a.n <= 16) return run_int8<2>(args, stream);
  run_int8<4>(args, stream);
}

}  // namespace sluice::cuda
