// Packed weights on their way through shared memory: the copies of a warp, some blocks of 256
// columns ahead of its sums. For the products of few rows (packed_integer.cu, packed_half.cu).
#pragma once

#include <algorithm>
#include <type_traits>

#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/check.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/packed.cuh"
#include "backend/cuda/packed_tile.cuh"
#include "backend/cuda/target.cuh"

namespace sluice::cuda {

constexpr int kSuperTiles = kSplitCols / kPackedCols;
constexpr int kRingWarps = 8;  // of a block, at most

// Arguments of such a product.
struct FewRowsArgs {
  void* out;
  int64_t out_stride;
  DType type;
  const float* bias;
  int n;
  SplitRows x;
  Planes w;
  int supers;  // blocks of 256 columns
};

inline FewRowsArgs few_rows_args(const Tensor& out,
                                 const SplitRows& x,
                                 const PackedPart& w,
                                 const float* bias) {
  return {out.data,
          out.stride,
          out.type,
          bias,
          static_cast<int>(out.rows),
          x,
          Planes(w),
          ceil_div(w.cols, kSplitCols)};
}

// run(groups) with the number of groups of kTokens rows that hold n, as a constant: 1, 2 or 4.
template <int kTokens, typename Run>
void with_groups(int n, const Run& run) {
  if (n <= kTokens) return run(std::integral_constant<int, 1>{});
  if (n <= 2 * kTokens) return run(std::integral_constant<int, 2>{});
  run(std::integral_constant<int, 4>{});
}

// Starts run(T{}, grid, block) with x's type: a warp for each 256 columns of each row.
template <typename Run>
void with_split_grid(const Tensor& x, const Run& run) {
  const auto blocks = static_cast<unsigned>(ceil_div(ceil_div(x.cols, kSplitCols), 4));
  const dim3 grid(blocks, static_cast<unsigned>(x.rows)), block(32, 4);
  if (x.type == DType::f16) return run(__half{}, grid, block);
  run(__nv_bfloat16{}, grid, block);
}

__device__ inline void put_sum(const FewRowsArgs& a, int token, int row, float v) {
  const int64_t at = token * a.out_stride + row;
  if (a.type == DType::f32) {
    static_cast<float*>(a.out)[at] = v;
  } else if (a.type == DType::f16) {
    static_cast<__half*>(a.out)[at] = from_float<__half>(v);
  } else {
    static_cast<__nv_bfloat16*>(a.out)[at] = from_float<__nv_bfloat16>(v);
  }
}

// The warps' sums of a row of tiles; rows are padded against bank conflicts.
template <int kN>
using PartialSums = float[kRingWarps][kN][kPackedRows + 1];

// Adds them up in the order of warps and puts them out; all threads of the block.
template <int kN>
__device__ inline void put_sums(const FewRowsArgs& a,
                                const PartialSums<kN>& partial,
                                int first_token,
                                int tile) {
  const int warps = static_cast<int>(blockDim.x) / 32;
  for (int k = static_cast<int>(threadIdx.x); k < kN * kPackedRows;
       k += static_cast<int>(blockDim.x)) {
    const int token = k / kPackedRows, row = tile * kPackedRows + k % kPackedRows;
    if (first_token + token >= a.n || row >= a.w.rows) continue;
    float sum = 0;
    for (int i = 0; i < warps; ++i) sum += partial[i][token][k % kPackedRows];
    if (a.bias) sum += a.bias[row];
    put_sum(a, first_token + token, row, sum);
  }
}

// 16 rows by 256 columns in shared memory: the planes of their four tiles, one after another.
template <Format F>
struct Stage {
  static constexpr PackedFormat f = packed_format(F);
  static constexpr int kHighAt = kSuperTiles * f.codes;
  static constexpr int kScalesAt = kHighAt + kSuperTiles * f.high;
  static constexpr int kSupersAt = kScalesAt + kSuperTiles * f.scales;
  static constexpr int kBytes = kSupersAt + f.supers;
  // Stages of a warp: as many as leave room for three blocks on a multiprocessor.
  static constexpr int kDepth = 3 * kRingWarps * kBytes <= 60 * 1024 ? 3 : 2;

  // A warp's share of the copies; tiles beyond the last are zero.
  static __device__ void fill(uint32_t to, const PlaneRow& from, int tile, int tiles, int lane) {
    const int num = f.supers > 0 ? kSuperTiles : min(kSuperTiles, tiles - tile);
    copy<kSuperTiles * f.codes>(to, from.codes + int64_t{tile} * f.codes, num * f.codes, lane);
    if constexpr (f.high > 0)
      copy<kSuperTiles * f.high>(to + kHighAt, from.high + int64_t{tile} * f.high, num * f.high,
                                 lane);
    copy<kSuperTiles * f.scales>(to + kScalesAt, from.scales + int64_t{tile} * f.scales,
                                 num * f.scales, lane);
    if constexpr (f.supers > 0)
      copy<f.supers>(to + kSupersAt, from.supers + int64_t{tile / kSuperTiles} * f.supers, f.supers,
                     lane);
  }
  static __device__ LaneTile<F> tile(const uint8_t* stage, int i, int lane) {
    LaneTile<F> t;
    t.read(stage + i * f.codes, stage + kHighAt + i * f.high, stage + kScalesAt + i * f.scales,
           lane);
    return t;
  }

 private:
  template <int kNum>
  static __device__ void copy(uint32_t to, const uint8_t* from, int there, int lane) {
#pragma unroll
    for (int at = 0; at < kNum; at += 512) {
      const int own = at + lane * 16;
      if (kNum - at >= 512 || own < kNum) copy16_ahead(to + own, from + own, own < there);
    }
  }
};

// A warp's ring of stages. The blocks of columns are the warp's share of each row of tiles that is
// its block's, in order.
template <Format F>
class Ring256 {
 public:
  using S = Stage<F>;
  static constexpr int kBytes = S::kDepth * S::kBytes;

  __device__ Ring256(const uint8_t* memory, const Planes& w, int supers)
      : w_(w),
        memory_(memory),
        address_(smem_address(memory)),
        supers_(supers),
        first_(static_cast<int>(threadIdx.x) / 32),
        row_tile_(static_cast<int>(blockIdx.x)),
        super_(first_),
        planes_(w.template row<F>(row_tile_)) {
#pragma unroll
    for (int d = 0; d < S::kDepth - 1; ++d) fill();
  }
  // The next block of columns; the one before may be overwritten from here on.
  __device__ const uint8_t* next() {
    __syncwarp();
    fill();
    copy_wait<S::kDepth - 1>();
    __syncwarp();
    const uint8_t* stage = memory_ + used_;
    used_ = following(used_);
    return stage;
  }

 private:
  static __device__ int following(int at) { return at + S::kBytes < kBytes ? at + S::kBytes : 0; }
  __device__ void fill() {
    if (row_tile_ < w_.row_tiles) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      S::fill(address_ + static_cast<uint32_t>(filled_), planes_, super_ * kSuperTiles, w_.tiles,
              lane);
      super_ += static_cast<int>(blockDim.x) / 32;
      if (super_ >= supers_) {
        super_ = first_;
        row_tile_ += static_cast<int>(gridDim.x);
        planes_ = w_.template row<F>(row_tile_);
      }
    }
    copy_commit();
    filled_ = following(filled_);
  }

  const Planes& w_;
  const uint8_t* memory_;
  uint32_t address_;
  int supers_, first_, row_tile_, super_;
  PlaneRow planes_;
  int filled_ = 0, used_ = 0;
};

// The number of warps that leaves the fewest of them idle; it depends on the weight alone.
inline int ring_warps(int supers) {
  int best = 1, least = 1 << 30;
  for (int warps = kRingWarps; warps >= 4; --warps) {
    const int cost = ceil_div(supers, warps) * warps * 1000 / supers + (kRingWarps - warps) * 40;
    if (cost < least) best = warps, least = cost;
  }
  return supers < 4 ? supers : best;
}

// Blocks per multiprocessor, as registers allow. `groups`: of rows of x, one matrix instruction's
// each.
constexpr int few_rows_blocks(int groups) { return groups == 1 ? 3 : 2; }

// kKernel for kGroups groups of kTokens rows of x, with kSides buffers of partial sums.
template <auto kKernel, Format F, int kGroups, int kTokens, int kSides>
void run_few_rows(const char* name, const FewRowsArgs& a, cudaStream_t stream) {
  constexpr int kN = kGroups * kTokens, kMostShared = kRingWarps * Ring256<F>::kBytes;
  static_assert(kMostShared + kSides * sizeof(PartialSums<kN>) <= 99 * 1024);
  const int warps = ring_warps(a.supers);
  const int blocks = std::min(a.w.row_tiles, target().num_sms * few_rows_blocks(kGroups));
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(ceil_div(a.n, kN)));
  allow_shared<kKernel>(kMostShared, name);
  launch(name, kKernel, grid, static_cast<unsigned>(warps * 32),
         static_cast<size_t>(warps) * Ring256<F>::kBytes, stream, a);
}

}  // namespace sluice::cuda
