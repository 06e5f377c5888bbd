// The product of few rows with packed weights of K formats in halves (packed.cuh).
//
// A code times the scale of its 32 columns, both integers, is a half without rounding (of Q6_K with
// one rounding), so that the matrix instructions add up 256 columns in f32 before d is applied.
// Minimums times sums of x are one more matrix instruction. Blocks take row tiles round-robin; the
// warps of a block share a row tile, every so many blocks of 256 columns each.
#include "backend/cuda/launch.cuh"
#include "backend/cuda/packed_half.cuh"
#include "backend/cuda/packed_split.cuh"

namespace sluice::cuda {

namespace {

constexpr int kTokens = kHalfTokens;

// A lane's elements of x, kAhead units of 32 columns ahead of their use: they come out of the L2
// cache, and a warp would wait for each load otherwise. Of many rows registers have no room for it.
template <int kGroups>
struct RowsAhead {
  static constexpr int kAhead = kGroups == 4 ? 0 : 2;
  const uint8_t* rows[kGroups];  // the lane's of each group
  uint4 of[kAhead > 0 ? kAhead : 1][kGroups];

  // Unit `unit` of the 256 columns number `at`.
  __device__ void load(uint4 (&to)[kGroups], int at, int unit) const {
#pragma unroll
    for (int t = 0; t < kGroups; ++t)
      to[t] = *reinterpret_cast<const uint4*>(rows[t] + int64_t{at} * kSplitCodes + unit * 64);
  }
  __device__ void start(int at) {
#pragma unroll
    for (int unit = 0; unit < kAhead; ++unit) load(of[unit], at, unit);
  }
  // Takes unit `unit` of columns `at`, which those number `next` follow.
  __device__ void take(uint4 (&x)[kGroups], int unit, int at, int next) {
    if constexpr (kAhead == 0) {
      load(x, at, unit);
    } else {
      uint4(&own)[kGroups] = of[unit % kAhead];
#pragma unroll
      for (int t = 0; t < kGroups; ++t) x[t] = own[t];
      const int later = unit + kAhead;
      load(own, later < kSuperUnits ? at : next, later % kSuperUnits);
    }
  }
};

template <Format F, int kGroups, int kTiles>
__global__ void __launch_bounds__(kRingWarps * 32, few_rows_blocks(kGroups))
    half_kernel(const __grid_constant__ FewRowsArgs a) {
  using Ring = Ring256<F, kTiles>;
  constexpr int kN = kGroups * kTokens, kSides = few_rows_sides(kN);
  extern __shared__ __align__(16) uint8_t slots[];  // [warp] Ring
  __shared__ PartialSums<kN> partial[kSides];
  let_next_start();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = static_cast<int>(blockDim.x) / 32, quad = lane % 4;
  const int first_token = static_cast<int>(blockIdx.y) * kN;
  Ring ring(slots + warp * Ring::kBytes, a.w, a.supers);
  fetch_bias(a, static_cast<int>(blockIdx.x) * kTiles);
  wait_for_inputs();

  RowsAhead<kGroups> rows;
#pragma unroll
  for (int t = 0; t < kGroups; ++t) {
    const int row = min(first_token + t * kTokens + lane / 4, a.n - 1);
    rows.rows[t] = a.x.codes + int64_t{row} * a.supers * kSplitCodes + quad * 16;
  }
  rows.start(warp);

  int side = 0;
  for (int tile = static_cast<int>(blockIdx.x) * kTiles; tile < a.w.row_tiles;
       tile += static_cast<int>(gridDim.x) * kTiles) {
    LaneSums<kGroups, kTiles> sums = {};
    for (int at = warp; at < a.supers; at += warps) {
      const int next = at + warps < a.supers ? at + warps : warp;
      LaneSums<kGroups, kTiles> c = {};
      if constexpr (kGroups > 1) {  // registers have no room for more of x
        const uint8_t* slot = ring.next();
        multiply_codes<F, kGroups, kTiles>(c, slot, rows, at, next);
        add_scaled<F, kGroups, kTiles>(sums, c, {a, first_token, at}, slot);
      } else {
        const SuperOfX<F, kGroups> of_x(a, first_token, at);
        const uint8_t* slot = ring.next();
        multiply_codes<F, kGroups, kTiles>(c, slot, rows, at, next);
        add_scaled<F, kGroups, kTiles>(sums, c, of_x, slot);
      }
    }
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
      share_sums<kGroups>(partial[side][warp], sums[r]);
      __syncthreads();
      put_sums<Team<kTiles>, kN>(a, partial[side], first_token, tile + r);
      if constexpr (kSides == 1) {
        __syncthreads();
      } else {
        side ^= 1;
      }
    }
  }
}

// Up to 16 rows of x stay in a block's shared memory, where there are many rows of tiles: a block
// would read them out of the L2 cache for each of those, 8 KB for 16 x 256 weights, which are 2.4
// KB in Q4_K. Two teams of warps have a row of tiles each. The same bits.
constexpr int kKeptGroups = 2, kKeptRows = kKeptGroups * kTokens, kTeams = 2;
constexpr int kKeptBytes = kKeptRows * kSplitCodes;  // of x for 256 columns
using KeptSums = float[kKeptRows][kPackedRows + 1];  // of a warp

// A lane's elements of x in shared memory, [256 columns][row][kSplitCodes]. Units of odd rows are
// swapped in pairs, so that eight lanes read from all banks.
class KeptX {
 public:
  __device__ explicit KeptX(const uint8_t* memory) {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = lane / 4;
    const uint8_t* own = memory + row * kSplitCodes + lane % 4 * 16;
    even_ = own + row % 2 * 64;
    odd_ = own + 64 - row % 2 * 64;
  }
  __device__ void take(uint4 (&x)[kKeptGroups], int unit, int at, int /*next*/) const {
    const uint8_t* from = (unit % 2 ? odd_ : even_) + at * kKeptBytes + unit / 2 * 128;
#pragma unroll
    for (int t = 0; t < kKeptGroups; ++t)
      x[t] = *reinterpret_cast<const uint4*>(from + t * kTokens * kSplitCodes);
  }
  // All threads of the block; rows beyond the last are the last once more.
  static __device__ void fill(const uint8_t* memory, const FewRowsArgs& a) {
    const uint32_t to = smem_address(memory);
    for (int i = static_cast<int>(threadIdx.x); i < a.supers * (kKeptBytes / 16);
         i += static_cast<int>(blockDim.x)) {
      const int chunk = i % 32, row = i / 32 % kKeptRows, at = i / (kKeptBytes / 16);
      const int64_t from = int64_t{min(row, a.n - 1)} * a.supers + at;
      copy16(to + static_cast<uint32_t>(at * kKeptBytes + row * kSplitCodes +
                                        (chunk * 16 ^ row % 2 * 64)),
             a.x.codes + from * kSplitCodes + chunk * 16, true);
    }
    copy_commit();
    copy_wait<0>();
    __syncthreads();
  }

 private:
  const uint8_t *even_, *odd_;
};

template <Format F, int kSlots>
using KeptRing = Ring256<F, 1, kTeams, kSlots>;

template <Format F, int kSlots>
__global__ void __launch_bounds__(kTeams* kRingWarps * 32, 1)
    kept_half_kernel(const __grid_constant__ FewRowsArgs a) {
  using Ring = KeptRing<F, kSlots>;
  using Warps = typename Ring::Warps;
  extern __shared__ __align__(16) uint8_t memory[];  // x, [team][warp] Ring, [team][warp] KeptSums
  let_next_start();
  const int warp = Warps::warp(), warps = Warps::warps();
  uint8_t* rings = memory + a.supers * kKeptBytes;
  auto* partial =
      reinterpret_cast<KeptSums*>(rings + kTeams * warps * Ring::kBytes) + Warps::index() * warps;
  Ring ring(rings + static_cast<int>(threadIdx.x) / 32 * Ring::kBytes, a.w, a.supers);
  wait_for_inputs();
  KeptX::fill(memory, a);
  KeptX x(memory);

  for (int tile = Warps::first_tile(); tile < a.w.row_tiles; tile += Warps::step()) {
    LaneSums<kKeptGroups, 1> sums = {};
    for (int at = warp; at < a.supers; at += warps) {
      const SuperOfX<F, kKeptGroups> of_x(a, 0, at);
      const uint8_t* slot = ring.next();
      LaneSums<kKeptGroups, 1> c = {};
      multiply_codes<F, kKeptGroups, 1>(c, slot, x, at, at);
      add_scaled<F, kKeptGroups, 1>(sums, c, of_x, slot);
    }
    share_sums<kKeptGroups>(partial[warp], sums[0]);
    Warps::sync();
    put_sums<Warps, kKeptRows>(a, partial, 0, tile);
    Warps::sync();
  }
}

// Bytes of a block of the kernel above.
template <Format F, int kSlots>
size_t kept_bytes(int supers) {
  const size_t warp = KeptRing<F, kSlots>::kBytes + sizeof(KeptSums);
  return static_cast<size_t>(supers) * kKeptBytes +
         static_cast<size_t>(kTeams * ring_warps(supers)) * warp;
}

// Whether it ran: x must fit.
template <Format F, int kSlots>
bool run_kept(const FewRowsArgs& a, cudaStream_t stream) {
  const size_t bytes = kept_bytes<F, kSlots>(a.supers);
  if (a.n > kKeptRows || bytes > target().shared) return false;
  constexpr auto kKernel = kept_half_kernel<F, kSlots>;
  allow_shared<kKernel>(static_cast<int>(target().shared), "half");
  const int blocks = std::min(ceil_div(a.w.row_tiles, kTeams), target().num_sms);
  launch("half", kKernel, static_cast<unsigned>(blocks),
         static_cast<unsigned>(kTeams * ring_warps(a.supers) * 32), bytes, stream, a);
  return true;
}

template <Format F, int kGroups>
void run_half(const FewRowsArgs& a, RowTiles tiles, cudaStream_t stream) {
  if constexpr (kGroups == kKeptGroups) {
    // Every team has several rows of tiles.
    const bool many = a.w.row_tiles >= 8 * target().num_sms;
    if (tiles == RowTiles::kept || (tiles == RowTiles::best && many)) {
      if (Stage<F>::kDepth > 2 && run_kept<F, Stage<F>::kDepth>(a, stream)) return;
      if (run_kept<F, 2>(a, stream)) return;
    }
  }
  if constexpr (kHasTwoTiles<F, kGroups, kTokens>) {
    if (uses_two_tiles(a, tiles))
      return run_few_rows<half_kernel<F, kGroups, 2>, F, kGroups, kTokens, 2>("half", a, stream);
  }
  run_few_rows<half_kernel<F, kGroups, 1>, F, kGroups, kTokens, 1>("half", a, stream);
}

// A warp per 256 columns of a row.
template <typename T>
__global__ void halve_kernel(const __grid_constant__ SplitRows to,
                             const T* x,
                             int64_t stride,
                             int supers) {
  let_next_start();
  wait_for_inputs();
  const int super = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  const int lane = static_cast<int>(threadIdx.x);
  const auto row = static_cast<int64_t>(blockIdx.y);
  if (super >= supers) return;
  float v[8], most = 0;
  const auto eight =
      *reinterpret_cast<const Pack<T, 8>*>(x + row * stride + super * kSplitCols + lane * 8);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[i] = to_float(eight.v[i]);
    most = larger(most, v[i]);
  }
  put_split<HalfSplit, 2>(to, row * supers + super, 2 * lane, v, warp_most(most));
}

}  // namespace

SplitRows halve_rows(void* memory, Tensor x, cudaStream_t stream) {
  check_rows(x, 16);
  const SplitRows to(memory, x.rows, x.cols);
  with_split_grid(x, [&](auto type, dim3 grid, dim3 block) {
    using T = decltype(type);
    launch("halve", halve_kernel<T>, grid, block, 0, stream, to, static_cast<const T*>(x.data),
           x.stride, static_cast<int>(x.cols / kSplitCols));
  });
  return to;
}

void half_product(Tensor out,
                  const SplitRows& x,
                  const PackedPart& w,
                  const float* bias,
                  cudaStream_t stream,
                  RowTiles tiles) {
  const FewRowsArgs a = few_rows_args(out, x, w, bias);
  with_packed_block(w.format, [&](auto block) {
    constexpr Format kFormat = decltype(block)::kFormat;
    if constexpr (has_half_product(kFormat))
      with_groups<kTokens>(
          a.n, [&](auto num) { run_half<kFormat, decltype(num)::value>(a, tiles, stream); });
  });
}

}  // namespace sluice::cuda
