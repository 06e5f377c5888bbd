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
constexpr int kSuperUnits = kSplitCols / 32;  // groups of columns that one load of x has
constexpr int kRingWarps = 8;                 // of a block, at most

// Arguments of such a product.
struct FewRowsArgs {
  void* out;
  int64_t out_stride;
  DType type;
  const float* bias;
  int n;
  SplitRows x;
  Planes w;
  int supers;                 // blocks of 256 columns
  const void* raw = nullptr;  // x itself, for a kernel that splits it
  int64_t raw_stride = 0;
  DType raw_type = DType::bf16;
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

// Before the kernel waits for x: the bias of its first row of tiles is read at the end of that row,
// where nothing hides how long it takes.
__device__ inline void fetch_bias(const FewRowsArgs& a, int tile) {
  if (a.bias && threadIdx.x == 0) prefetch_l2(a.bias + tile * kPackedRows);
}

// The warps that share a row of tiles: all of a block, or one of kTeams. Every so many rows of
// tiles are theirs, kTiles at a time.
template <int kTiles, int kTeams = 1>
struct Team {
  static __device__ int warps() { return static_cast<int>(blockDim.x) / 32 / kTeams; }
  static __device__ int index() {
    return kTeams == 1 ? 0 : static_cast<int>(threadIdx.x) / 32 / warps();
  }
  static __device__ int warp() { return static_cast<int>(threadIdx.x) / 32 - index() * warps(); }
  static __device__ int thread() { return static_cast<int>(threadIdx.x) - index() * warps() * 32; }
  static __device__ int first_tile() {
    return (static_cast<int>(blockIdx.x) * kTeams + index()) * kTiles;
  }
  static __device__ int step() { return static_cast<int>(gridDim.x) * kTeams * kTiles; }
  // A barrier for the team alone.
  static __device__ void sync() {
    asm volatile("bar.sync %0, %1;" ::"r"(index() + 1), "r"(warps() * 32) : "memory");
  }
};

// The warps' sums of a row of tiles; rows are padded against bank conflicts.
template <int kN>
using PartialSums = float[kRingWarps][kN][kPackedRows + 1];

// Adds them up in the order of warps and puts them out; all threads of the team.
template <typename Warps, int kN>
__device__ inline void put_sums(const FewRowsArgs& a,
                                const float (*partial)[kN][kPackedRows + 1],
                                int first_token,
                                int tile) {
  const int warps = Warps::warps();
  for (int k = Warps::thread(); k < kN * kPackedRows; k += warps * 32) {
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
  static __device__ void fill(uint32_t to, const Planes& from, int row_tile, int super, int lane) {
    const int tile = super * kSuperTiles, at = row_tile * from.tiles + tile;
    const int num = f.supers > 0 ? kSuperTiles : min(kSuperTiles, from.tiles - tile);
    copy<kSuperTiles * f.codes>(to, from.codes + int64_t{at} * f.codes, num * f.codes, lane);
    if constexpr (f.high > 0)
      copy<kSuperTiles * f.high>(to + kHighAt, from.high + int64_t{at} * f.high, num * f.high,
                                 lane);
    copy<kSuperTiles * f.scales>(to + kScalesAt, from.scales + int64_t{at} * f.scales,
                                 num * f.scales, lane);
    if constexpr (f.supers > 0)  // tiles are whole blocks of 256 columns
      copy<f.supers>(to + kSupersAt, from.supers + int64_t{at / kSuperTiles} * f.supers, f.supers,
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

// A warp's ring of slots, the stages of kTiles rows of tiles each. The blocks of columns are the
// warp's share of every kTiles rows of tiles that are its block's, in order. Where only one row of
// tiles is left for two, a slot holds that row twice.
template <Format F, int kTiles, int kTeams = 1, int kNumSlots = kTiles == 1 ? Stage<F>::kDepth : 2>
class Ring256 {
 public:
  using S = Stage<F>;
  using Warps = Team<kTiles, kTeams>;
  static constexpr int kSlotBytes = kTiles * S::kBytes;
  static constexpr int kSlots = kNumSlots;
  static constexpr int kBytes = kSlots * kSlotBytes;

  __device__ Ring256(const uint8_t* memory, const Planes& w, int supers)
      : w_(w),
        memory_(memory),
        address_(smem_address(memory)),
        supers_(supers),
        first_(Warps::warp()),
        row_tile_(Warps::first_tile()),
        super_(first_) {
#pragma unroll
    for (int d = 0; d < kSlots - 1; ++d) fill();
  }
  // The next block of columns; the one before may be overwritten from here on.
  __device__ const uint8_t* next() {
    __syncwarp();
    fill();
    copy_wait<kSlots - 1>();
    __syncwarp();
    const uint8_t* slot = memory_ + used_;
    used_ = following(used_);
    return slot;
  }

 private:
  static __device__ int following(int at) { return at + kSlotBytes < kBytes ? at + kSlotBytes : 0; }
  __device__ void fill() {
    if (row_tile_ < w_.row_tiles) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
      for (int r = 0; r < kTiles; ++r)
        S::fill(address_ + static_cast<uint32_t>(filled_ + r * S::kBytes), w_,
                kTiles == 1 ? row_tile_ : min(row_tile_ + r, w_.row_tiles - 1), super_, lane);
      super_ += Warps::warps();
      if (super_ >= supers_) {
        super_ = first_;
        row_tile_ += Warps::step();
      }
    }
    copy_commit();
    filled_ = following(filled_);
  }

  const Planes& w_;
  const uint8_t* memory_;
  uint32_t address_;
  int supers_, first_, row_tile_, super_;
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

// Buffers of partial sums.
constexpr int few_rows_sides(int num_tokens) { return num_tokens <= 16 ? 2 : 1; }

// Shared memory of a block, at most.
template <Format F, int kN, int kTiles>
constexpr size_t kFewRowsShared = static_cast<size_t>(kRingWarps) * Ring256<F, kTiles>::kBytes +
                                  few_rows_sides(kN) * sizeof(PartialSums<kN>);
constexpr size_t kMostFewRowsShared = 99 * 1024;  // that every GPU has

// Whether a block can compute two rows of tiles at once, which halves what it reads of x: where
// there are many rows of x, and two rows of tiles fit.
template <Format F, int kGroups, int kTokens>
constexpr bool kHasTwoTiles =
    kGroups == 4 && kFewRowsShared<F, kGroups * kTokens, 2> <= kMostFewRowsShared;

// Rows of x up to which a block computes one row of tiles at a time: measured, see
// docs/performance.md.
constexpr int kMostSingle = 32;

// For a product that has both kernels.
inline bool uses_two_tiles(const FewRowsArgs& a, RowTiles tiles) {
  if (tiles != RowTiles::best) return tiles == RowTiles::two;
  return a.n > kMostSingle;
}

// kKernel for kGroups groups of kTokens rows of x and kTiles rows of tiles; kMore: bytes of shared
// memory that each warp has behind all rings.
template <auto kKernel, Format F, int kGroups, int kTokens, int kTiles, int kMore = 0>
void run_few_rows(const char* name, const FewRowsArgs& a, cudaStream_t stream) {
  using Ring = Ring256<F, kTiles>;
  constexpr int kN = kGroups * kTokens;
  static_assert(kFewRowsShared<F, kN, kTiles> + kRingWarps * kMore <= kMostFewRowsShared);
  const int warps = ring_warps(a.supers);
  const int blocks =
      std::min(ceil_div(a.w.row_tiles, kTiles), target().num_sms * few_rows_blocks(kGroups));
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(ceil_div(a.n, kN)));
  allow_shared<kKernel>(kRingWarps * (Ring::kBytes + kMore), name);
  launch(name, kKernel, grid, static_cast<unsigned>(warps * 32),
         static_cast<size_t>(warps) * (Ring::kBytes + kMore), stream, a);
}

}  // namespace sluice::cuda
