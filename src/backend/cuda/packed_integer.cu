// The product of few rows with packed weights by integers (packed.cuh).
//
// One matrix instruction multiplies 16 rows of codes by eight bytes of x over 32 columns: the high
// and the low byte of four rows. Scales of K formats are integers too, so that 256 columns are one
// exact sum; the others' are floats, one for each 32 columns. Minimums times sums of x are a matrix
// instruction for 256 columns. Blocks take row tiles round-robin; the warps of a block share a row
// tile, every so many blocks of 256 columns each.
#include "backend/cuda/launch.cuh"
#include "backend/cuda/packed_ring.cuh"
#include "backend/cuda/packed_split.cuh"

namespace sluice::cuda {

namespace {

constexpr int kTokens = 4;    // rows of x in one matrix instruction
constexpr float kBase = 128;  // x = scale * (128 * high + low)

// c [16, 8] = a [16, 32] · b [32, 8], and the same of 16 columns.
__device__ inline void multiply_32(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%10,%10,%10};"
      : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}
__device__ inline void multiply_16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%7,%7,%7,%7};"
      : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(0));
}

__device__ inline int byte_of(uint32_t word, int k) {
  return static_cast<int>(__byte_perm(word, 0, 0x4440u | static_cast<uint32_t>(k)));
}
// (__byte_perm() does not take the selectors that repeat a sign.)
__device__ inline int signed_byte_of(uint32_t word, int k) {
  const auto sign = static_cast<uint32_t>(8 | k);
  int v;
  asm("prmt.b32 %0, %1, 0, %2;"
      : "=r"(v)
      : "r"(word), "r"(static_cast<uint32_t>(k) | sign << 4 | sign << 8 | sign << 12));
  return v;
}
// The sums of one lane over 256 columns: weight rows lane / 4 and lane / 4 + 8 times row lane % 4
// of four rows of x.
template <Format F, int kGroups>
struct SuperSums {
  static constexpr PackedFormat f = packed_format(F);
  static constexpr bool kIntegers = f.supers > 0;  // scales
  int of[kIntegers ? kGroups : 1][4] = {};         // [row of x][upper][high or low byte]
  float scaled[kIntegers ? 1 : kGroups][2] = {};

  __device__ void add(const LaneTile<F>& w, int unit, const uint2 (&x)[kGroups]) {
    uint32_t a[4];
    w.bytes(2 * unit, a[0], a[1]);
    w.bytes(2 * unit + 1, a[2], a[3]);
    if constexpr (F == Format::q6_k) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int low = signed_byte_of(w.scales[0], 2 * unit + k);
        const int up = signed_byte_of(w.scales[1], 2 * unit + k);
#pragma unroll
        for (int t = 0; t < kGroups; ++t) {
          int c[4];
          multiply_16(c, a[2 * k], a[2 * k + 1], k ? x[t].y : x[t].x);
          of[t][0] += low * c[0], of[t][1] += low * c[1];
          of[t][2] += up * c[2], of[t][3] += up * c[3];
        }
      }
    } else if constexpr (kIntegers) {
      const int low = byte_of(w.scales[0], 2 * unit), up = byte_of(w.scales[1], 2 * unit);
#pragma unroll
      for (int t = 0; t < kGroups; ++t) {
        int c[4];
        multiply_32(c, a, x[t].x, x[t].y);
        of[t][0] += low * c[0], of[t][1] += low * c[1];
        of[t][2] += up * c[2], of[t][3] += up * c[3];
      }
    } else {
      const float low = half_of(w.scales[0], unit), up = half_of(w.scales[1], unit);
#pragma unroll
      for (int t = 0; t < kGroups; ++t) {
        int c[4];
        multiply_32(c, a, x[t].x, x[t].y);
        scaled[t][0] = fmaf(low, static_cast<float>(128 * c[0] + c[1]), scaled[t][0]);
        scaled[t][1] = fmaf(up, static_cast<float>(128 * c[2] + c[3]), scaled[t][1]);
      }
    }
  }

  // d, or d and dmin, of a row; minimums times sums of x, where there are any.
  __device__ float total(int t, int upper, uint32_t supers, const int (&mins)[4]) const {
    if constexpr (!kIntegers) {
      return scaled[t][upper];
    } else {
      const float sum = fmaf(kBase, static_cast<float>(of[t][2 * upper]),
                             static_cast<float>(of[t][2 * upper + 1]));
      if constexpr (!f.has_min) {
        return half_of(supers, upper) * sum;
      } else {
        const auto min = static_cast<float>(128 * mins[2 * upper] + mins[2 * upper + 1]);
        return fmaf(half_of(supers, 0), sum, -half_of(supers, 1) * min);
      }
    }
  }
};

// Minimums of a row of tiles, gathered while its tiles are read.
struct TileMins {
  uint32_t of[2][2];  // [tiles 0 and 1 or 2 and 3][upper]

  __device__ void put(int tile, const uint32_t* scales) {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      uint32_t& m = of[tile / 2][upper];
      m = tile % 2 == 0 ? scales[upper] : __byte_perm(m, scales[upper], 0x7531);
    }
  }
  // Times sums of x: columns of the matrix instruction are rows of x and bytes of them.
  __device__ void multiply(const uint2& x, int (&by_min)[4]) const {
    const bool first = threadIdx.x % 4 == 0;
    const uint32_t a0 = first ? of[0][0] : of[1][0], a1 = first ? of[0][1] : of[1][1];
    int high[4], low[4];
    multiply_16(low, a0, a1, x.x);
    multiply_16(high, a0, a1, x.y);
#pragma unroll
    for (int i = 0; i < 4; ++i) by_min[i] = 128 * high[i] + low[i];
  }
};

// Split rows that a warp reads: all columns, or only those that the warp multiplies.
struct WarpRows {
  SplitRows x;
  int supers;  // blocks of 256 columns of a row
  int n, first_token;
};

// The most blocks of 256 columns, over all rows of x, that a warp splits itself.
constexpr int kShare = 4;
static_assert(kShare <= kTokens);  // no more rows than one matrix instruction takes
constexpr int kShareBytes = kShare * (kSplitCodes + kSplitSums + static_cast<int>(sizeof(float)));

// Splits the warp's columns of x into `memory`.
__device__ inline WarpRows split_share(const FewRowsArgs& a, uint8_t* memory) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int supers = (a.supers - warp + warps - 1) / warps, num = a.n * supers;
  uint4 eight[kShare];
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    if (i >= num) break;
    const int64_t col = (warp + i % supers * warps) * kSplitCols + lane * 8;
    eight[i] = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(a.raw) +
                                               i / supers * a.raw_stride + col);
  }
  SplitRows to;
  to.codes = memory;
  to.sums = memory + kShare * kSplitCodes;
  to.scales = reinterpret_cast<float*>(to.sums + kShare * kSplitSums);
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    if (i >= num) break;
    const uint32_t pairs[4] = {eight[i].x, eight[i].y, eight[i].z, eight[i].w};
    float v[8], most = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float2 two = a.raw_type == DType::f16 ? Pairs<__half>::floats(pairs[k])
                                                  : Pairs<__nv_bfloat16>::floats(pairs[k]);
      v[2 * k] = two.x, v[2 * k + 1] = two.y;
      most = larger(larger(most, two.x), two.y);
    }
    put_split<IntegerSplit, 2>(to, i, 2 * lane, v, warp_most(most));
  }
  __syncwarp();
  return {to, supers, a.n, 0};
}

// A lane's codes of x, kAhead units of 32 columns ahead of their use: they come out of the L2
// cache, and a warp would wait for each load otherwise. Of many rows registers have no room for it.
template <int kGroups>
struct CodesAhead {
  static constexpr int kAhead = kGroups == 4 ? 0 : 4;
  const uint8_t* rows[kGroups];
  uint2 of[kAhead > 0 ? kAhead : 1][kGroups];

  // Unit `unit` of the 256 columns number `at`.
  __device__ void load(uint2 (&to)[kGroups], int at, int unit) const {
#pragma unroll
    for (int t = 0; t < kGroups; ++t)
      to[t] = *reinterpret_cast<const uint2*>(rows[t] + int64_t{at} * kSplitCodes + unit * 64);
  }
  __device__ void start(int at) {
#pragma unroll
    for (int unit = 0; unit < kAhead; ++unit) load(of[unit], at, unit);
  }
  // Takes unit `unit` of columns `at`, which those number `next` follow.
  __device__ void take(uint2 (&x)[kGroups], int unit, int at, int next) {
    if constexpr (kAhead == 0) {
      load(x, at, unit);
    } else {
      uint2(&own)[kGroups] = of[unit % kAhead];
#pragma unroll
      for (int t = 0; t < kGroups; ++t) x[t] = own[t];
      const int later = unit + kAhead;
      load(own, later < kSuperUnits ? at : next, later % kSuperUnits);
    }
  }
};

// Sums of codes of x and the scale of x for 256 columns, as a lane takes them.
struct SuperOfX {
  uint2 sums{};
  float scale = 0;

  template <Format F>
  __device__ void load(const WarpRows& rows, int group, int at) {
    const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4, column = lane / 4;
    const int first = rows.first_token + group * kTokens;
    if constexpr (packed_format(F).has_min) {
      const int64_t row = min(first + column / 2, rows.n - 1);
      if (quad < 2)
        sums = *reinterpret_cast<const uint2*>(rows.x.sums + (row * rows.supers + at) * kSplitSums +
                                               column % 2 * 16 + quad * 8);
    }
    scale = rows.x.scales[int64_t{min(first + quad, rows.n - 1)} * rows.supers + at];
  }
};

// Adds 256 columns of a slot's rows of tiles; they are number `at` of x's, and those number `next`
// follow.
template <Format F, int kGroups, int kTiles>
__device__ inline void add_super(float (&sums)[kTiles][kGroups][2],
                                 const WarpRows& rows,
                                 const uint8_t* slot,
                                 CodesAhead<kGroups>& codes,
                                 int at,
                                 int next) {
  using S = Stage<F>;
  constexpr PackedFormat f = packed_format(F);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr bool kEarly = kGroups < 4;  // registers have room
  SuperOfX of_x[kGroups];
  if constexpr (kEarly) {
#pragma unroll
    for (int t = 0; t < kGroups; ++t) of_x[t].template load<F>(rows, t, at);
  }
  SuperSums<F, kGroups> s[kTiles];
  TileMins mins[kTiles];
#pragma unroll
  for (int i = 0; i < kSuperTiles; ++i) {
    LaneTile<F> w[kTiles];
#pragma unroll
    for (int r = 0; r < kTiles; ++r) w[r] = S::tile(slot + r * S::kBytes, i, lane);
#pragma unroll
    for (int unit = 0; unit < 2; ++unit) {
      uint2 x[kGroups];
      codes.take(x, 2 * i + unit, at, next);
#pragma unroll
      for (int r = 0; r < kTiles; ++r) s[r].add(w[r], unit, x);
    }
    if constexpr (f.has_min) {
#pragma unroll
      for (int r = 0; r < kTiles; ++r) mins[r].put(i, w[r].scales);
    }
  }
#pragma unroll
  for (int t = 0; t < kGroups; ++t) {
    if constexpr (!kEarly) of_x[t].template load<F>(rows, t, at);
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
      uint32_t supers[2] = {};
      if constexpr (f.supers > 0)
        read_words<f.supers / 32>(supers,
                                  slot + r * S::kBytes + S::kSupersAt + lane / 4 * (f.supers / 8));
      int by_min[4] = {};
      if constexpr (f.has_min) mins[r].multiply(of_x[t].sums, by_min);
#pragma unroll
      for (int upper = 0; upper < 2; ++upper)
        sums[r][t][upper] =
            fmaf(of_x[t].scale, s[r].total(t, upper, supers[f.has_min ? upper : 0], by_min),
                 sums[r][t][upper]);
    }
  }
}

// kSplits: x is not split yet.
template <Format F, int kGroups, int kTiles, bool kSplits>
__global__ void __launch_bounds__(kRingWarps * 32, few_rows_blocks(kGroups))
    integer_kernel(const __grid_constant__ FewRowsArgs a) {
  using Ring = Ring256<F, kTiles>;
  constexpr int kN = kGroups * kTokens;
  extern __shared__ __align__(16) uint8_t slots[];  // [warp] Ring, [warp] share of x
  __shared__ PartialSums<kN> partial[2];
  static_assert(few_rows_sides(kN) == 2);
  let_next_start();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = static_cast<int>(blockDim.x) / 32, quad = lane % 4;
  Ring ring(slots + warp * Ring::kBytes, a.w, a.supers);
  fetch_bias(a, static_cast<int>(blockIdx.x) * kTiles);
  wait_for_inputs();

  const WarpRows rows = kSplits ? split_share(a, slots + warps * Ring::kBytes + warp * kShareBytes)
                                : WarpRows{a.x, a.supers, a.n, static_cast<int>(blockIdx.y) * kN};
  const int first_at = kSplits ? 0 : warp, step = kSplits ? 1 : warps;
  CodesAhead<kGroups> codes;
#pragma unroll
  for (int t = 0; t < kGroups; ++t) {
    const int column = lane / 4;  // of the matrix instruction: a row of x and a byte of it
    const int row = min(rows.first_token + t * kTokens + column / 2, a.n - 1);
    codes.rows[t] =
        rows.x.codes + int64_t{row} * rows.supers * kSplitCodes + column % 2 * 32 + quad * 8;
  }
  codes.start(first_at);

  int side = 0;
  for (int tile = static_cast<int>(blockIdx.x) * kTiles; tile < a.w.row_tiles;
       tile += static_cast<int>(gridDim.x) * kTiles) {
    float sums[kTiles][kGroups][2] = {};
    for (int at = first_at; at < rows.supers; at += step)
      add_super<F, kGroups, kTiles>(sums, rows, ring.next(), codes, at,
                                    at + step < rows.supers ? at + step : first_at);
#pragma unroll
    for (int r = 0; r < kTiles; ++r, side ^= 1) {
#pragma unroll
      for (int t = 0; t < kGroups; ++t)
#pragma unroll
        for (int upper = 0; upper < 2; ++upper)
          partial[side][warp][t * kTokens + quad][lane / 4 + 8 * upper] = sums[r][t][upper];
      __syncthreads();
      put_sums<Team<kTiles>, kN>(a, partial[side], rows.first_token, tile + r);
    }
  }
}

template <Format F, int kGroups>
void run_integer(const FewRowsArgs& a, RowTiles tiles, cudaStream_t stream) {
  if constexpr (kHasTwoTiles<F, kGroups, kTokens>) {
    if (uses_two_tiles(a, tiles))
      return run_few_rows<integer_kernel<F, kGroups, 2, false>, F, kGroups, kTokens, 2>("integer",
                                                                                        a, stream);
  }
  run_few_rows<integer_kernel<F, kGroups, 1, false>, F, kGroups, kTokens, 1>("integer", a, stream);
}

// A warp per 256 columns of a row.
template <typename T>
__global__ void split_kernel(
    const __grid_constant__ SplitRows to, const T* x, int64_t stride, int cols, int supers) {
  let_next_start();
  wait_for_inputs();
  const int super = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  const int lane = static_cast<int>(threadIdx.x);
  const auto row = static_cast<int64_t>(blockIdx.y);
  if (super >= supers) return;
  const int col = super * kSplitCols + lane * 8;
  float v[8] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (col + 4 * half >= cols) continue;
    const auto four = *reinterpret_cast<const Pack<T, 4>*>(x + row * stride + col + 4 * half);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[4 * half + i] = to_float(four.v[i]);
  }
  float most = 0;
  for (float e : v) most = larger(most, e);
  put_split<IntegerSplit, 2>(to, row * supers + super, 2 * lane, v, warp_most(most));
}

}  // namespace

SplitRows split_rows(void* memory, Tensor x, cudaStream_t stream) {
  check_rows(x, 8);
  const SplitRows to(memory, x.rows, x.cols);
  with_split_grid(x, [&](auto type, dim3 grid, dim3 block) {
    using T = decltype(type);
    launch("split", split_kernel<T>, grid, block, 0, stream, to, static_cast<const T*>(x.data),
           x.stride, static_cast<int>(x.cols), ceil_div(x.cols, kSplitCols));
  });
  return to;
}

void fill_split(const SplitOut& to, Tensor x, cudaStream_t stream) {
  if (to.kind == FewRows::halves) halve_rows(to.rows.codes, x, stream);
  if (to.kind == FewRows::integers) split_rows(to.rows.codes, x, stream);
}

void integer_product(Tensor out,
                     const SplitRows& x,
                     const PackedPart& w,
                     const float* bias,
                     cudaStream_t stream,
                     RowTiles tiles) {
  const FewRowsArgs a = few_rows_args(out, x, w, bias);
  with_packed_block(w.format, [&](auto block) {
    constexpr Format kFormat = decltype(block)::kFormat;
    if constexpr (has_integer_product(kFormat))
      with_groups<kTokens>(
          a.n, [&](auto num) { run_integer<kFormat, decltype(num)::value>(a, tiles, stream); });
  });
}

bool takes_unsplit(const Tensor& x) {
  const int supers = ceil_div(x.cols, kSplitCols);
  return x.cols % kSplitCols == 0 && x.rows * ceil_div(supers, ring_warps(supers)) <= kShare &&
         reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % 8 == 0;
}

void integer_product(
    Tensor out, const Tensor& x, const PackedPart& w, const float* bias, cudaStream_t stream) {
  FewRowsArgs a = few_rows_args(out, {}, w, bias);
  a.raw = x.data;
  a.raw_stride = x.stride;
  a.raw_type = x.type;
  with_packed_block(w.format, [&](auto block) {
    constexpr Format kFormat = decltype(block)::kFormat;
    if constexpr (has_integer_product(kFormat))
      run_few_rows<integer_kernel<kFormat, 1, 1, true>, kFormat, 1, kTokens, 1, kShareBytes>(
          "integer", a, stream);
  });
}

}  // namespace sluice::cuda
