// The product of few rows with packed weights of K formats in halves (packed.cuh).
//
// A code times the scale of its 32 columns, both integers, is a half without rounding (of Q6_K with
// one rounding), so that the matrix instructions add up 256 columns in f32 before d is applied.
// Minimums times sums of x are one more matrix instruction. Blocks take row tiles round-robin; the
// warps of a block share a row tile, every so many blocks of 256 columns each.
#include "backend/cuda/codes.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/packed_ring.cuh"

namespace sluice::cuda {

namespace {

constexpr int kTokens = 8;  // rows of x in one matrix instruction

__device__ inline __half2 as_half2(uint32_t bits) { return reinterpret_cast<__half2&>(bits); }
__device__ inline uint32_t bits_of(__half2 v) { return reinterpret_cast<uint32_t&>(v); }

// 1,024 plus byte k of the word, twice.
__device__ inline __half2 byte_twice(uint32_t word, int k) {
  const auto at = static_cast<uint32_t>(k);
  return as_half2(__byte_perm(word, 0x64646464u, at | 4u << 4 | at << 8 | 4u << 12));
}

// (v & mask) | more in one instruction, which the compiler makes two of.
__device__ inline uint32_t masked(uint32_t v, uint32_t mask, uint32_t more) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(v), "r"(mask), "r"(more));
  return r;
}

// The scale of a row's group of columns, as codes are multiplied by it.
struct HalfScale {
  __half2 scale, minus;  // Q4_K and Q5_K: scale times -1,024
};

template <Format F>
__device__ inline HalfScale half_scale(const LaneTile<F>& w, int upper, int group) {
  HalfScale s;
  if constexpr (F == Format::q6_k) {
    s.scale = __hsub2(byte_twice(w.scales[upper] ^ 0x80808080u, group), __float2half2_rn(1152));
    s.minus = {};
  } else {
    s.scale = __hsub2(byte_twice(w.scales[upper], 2 * group), __float2half2_rn(1024));
    s.minus = __hmul2(s.scale, __float2half2_rn(-1024));
  }
  return s;
}

// Codes times scales of columns 16 j to 16 j + 15. Of Q4_K and Q5_K the upper rows' are 16 times as
// large, which spares a shift.
template <Format F>
__device__ inline void scaled_codes(const LaneTile<F>& w,
                                    int j,
                                    const HalfScale (&s)[2],
                                    uint32_t (&a)[4]) {
  if constexpr (F == Format::q6_k) {
    w.template integers<__half>(j, a);
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = bits_of(__hmul2(as_half2(a[i]), s[i % 2].scale));
  } else {
    const uint32_t word = w.code_word(j);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t t =
          masked(i < 2 ? word : word >> 8, i % 2 ? 0x00f000f0u : 0x000f000fu, Pairs<__half>::kBase);
      if constexpr (F == Format::q5_k) {
        t |= i % 2 ? shifted_right(w.high[0], 4 * j + i - 8) & 0x01000100u
                   : shifted_right(w.high[0], 4 * j + i - 4) & 0x00100010u;
      }
      a[i] = bits_of(__hfma2(as_half2(t), s[i % 2].scale, s[i % 2].minus));
    }
  }
}

template <Format F>
constexpr float kUpper = F == Format::q6_k ? 1.0f : 1.0f / 16;

// Buffers of partial sums.
constexpr int half_sides(int groups) { return groups <= 2 ? 2 : 1; }

template <Format F, int kGroups>
__global__ void __launch_bounds__(kRingWarps * 32, few_rows_blocks(kGroups))
    half_kernel(const __grid_constant__ FewRowsArgs a) {
  using S = Stage<F>;
  constexpr PackedFormat f = packed_format(F);
  constexpr int kN = kGroups * kTokens, kSides = half_sides(kGroups);
  extern __shared__ __align__(16) uint8_t stages[];  // [warp] Ring256
  __shared__ PartialSums<kN> partial[kSides];
  let_next_start();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = static_cast<int>(blockDim.x) / 32, quad = lane % 4;
  const int first_token = static_cast<int>(blockIdx.y) * kN;
  Ring256<F> ring(stages + warp * Ring256<F>::kBytes, a.w, a.supers);
  wait_for_inputs();

  // Each group has one row of x for this lane: its halves, and their sums over 32 columns.
  const uint8_t* x_at[kGroups];
#pragma unroll
  for (int t = 0; t < kGroups; ++t) {
    const int row = min(first_token + t * kTokens + lane / 4, a.n - 1);
    x_at[t] = a.x.codes + int64_t{row} * a.supers * kSplitCodes + quad * 16;
  }

  int side = 0;
  for (int tile = static_cast<int>(blockIdx.x); tile < a.w.row_tiles;
       tile += static_cast<int>(gridDim.x)) {
    float sums[kGroups][4] = {};
    for (int at = warp; at < a.supers; at += warps) {
      const uint8_t* stage = ring.next();
      float c[kGroups][4] = {};
#pragma unroll
      for (int i = 0; i < kSuperTiles; ++i) {
        const LaneTile<F> w = S::tile(stage, i, lane);
#pragma unroll
        for (int unit = 0; unit < 2; ++unit) {
          uint32_t a0[4], a1[4];
          HalfScale s[2] = {half_scale<F>(w, 0, f.group == 16 ? 2 * unit : unit),
                            half_scale<F>(w, 1, f.group == 16 ? 2 * unit : unit)};
          scaled_codes<F>(w, 2 * unit, s, a0);
          if constexpr (f.group == 16)
            s[0] = half_scale<F>(w, 0, 2 * unit + 1), s[1] = half_scale<F>(w, 1, 2 * unit + 1);
          scaled_codes<F>(w, 2 * unit + 1, s, a1);
#pragma unroll
          for (int t = 0; t < kGroups; ++t) {
            const uint4 x = *reinterpret_cast<const uint4*>(x_at[t] + int64_t{at} * kSplitCodes +
                                                            (2 * i + unit) * 64);
            mma(c[t], a0, x.x, x.y, __half{});
            mma(c[t], a1, x.z, x.w, __half{});
          }
        }
      }
      uint32_t supers[2] = {};
      read_words<f.supers / 32>(supers, stage + S::kSupersAt + lane / 4 * (f.supers / 8));
      uint32_t mins[4] = {};
      if constexpr (f.has_min) {
        // Those of tile `quad`: columns 2 quad and 2 quad + 1 of the matrix instruction.
        uint32_t words[2];
        read_words<2>(words, stage + S::kScalesAt + quad * f.scales + lane / 4 * (f.scales / 8));
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
          const __half2 two = as_half2(__byte_perm(words[upper], 0x64646464u, 0x4341));
          mins[upper] = mins[upper + 2] = bits_of(__hsub2(two, __float2half2_rn(1024)));
        }
      }
      const float d[2] = {half_of(supers[0], 0),
                          half_of(supers[f.has_min ? 1 : 0], f.has_min ? 0 : 1) * kUpper<F>};
#pragma unroll
      for (int t = 0; t < kGroups; ++t) {
        float m[4] = {};
        if constexpr (f.has_min) {
          const int row = min(first_token + t * kTokens + lane / 4, a.n - 1);
          const uint2 x = *reinterpret_cast<const uint2*>(
              a.x.sums + (int64_t{row} * a.supers + at) * kSplitSums + quad * 8);
          mma(m, mins, x.x, x.y, __half{});
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int own = min(first_token + t * kTokens + quad * 2 + k % 2, a.n - 1);
          float v = d[k / 2] * c[t][k];
          if constexpr (f.has_min) v = fmaf(-half_of(supers[k / 2], 1), m[k], v);
          sums[t][k] = fmaf(a.x.scales[int64_t{own} * a.supers + at], v, sums[t][k]);
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kGroups; ++t)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        partial[side][warp][t * kTokens + quad * 2 + k % 2][lane / 4 + k / 2 * 8] = sums[t][k];
    __syncthreads();
    put_sums<kN>(a, partial[side], first_token, tile);
    if constexpr (kSides == 1) {
      __syncthreads();
    } else {
      side ^= 1;
    }
  }
}

template <Format F, int kGroups>
void run_half(const FewRowsArgs& a, cudaStream_t stream) {
  run_few_rows<half_kernel<F, kGroups>, F, kGroups, kTokens, half_sides(kGroups)>("half", a,
                                                                                  stream);
}

// A warp per 256 columns of a row. The scale is a power of two: the largest element becomes one of
// 1 to 2, and of bf16 none of them is rounded that is more than 2^-16 of it.
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
  float v[8];
  const auto eight =
      *reinterpret_cast<const Pack<T, 8>*>(x + row * stride + super * kSplitCols + lane * 8);
  float most = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[i] = to_float(eight.v[i]);
    most = larger(most, v[i]);
  }
  for (int step = 16; step > 0; step /= 2)
    most = larger(most, __shfl_xor_sync(0xffffffffu, most, step));
  const float scale = most < 1e-30f ? 0 : __uint_as_float(__float_as_uint(most) & 0x7f800000u);
  const float inverse = most < 1e-30f ? 0 : 1 / scale;
  __half2 h[4];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    h[i] = __floats2half2_rn(v[2 * i] * inverse, v[2 * i + 1] * inverse);
    const float2 rounded = __half22float2(h[i]);
    sum += rounded.x + rounded.y;
  }
  for (int step = 1; step < 4; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  const int64_t at = row * supers + super;
  // Two times 16 columns side by side, four of each for a lane of the product.
  uint8_t* halves = to.codes + at * kSplitCodes + lane / 4 * 64 + lane / 2 % 2 * 8;
#pragma unroll
  for (int k = 0; k < 2; ++k)
    *reinterpret_cast<uint2*>(halves + (lane % 2 * 2 + k) * 16) =
        make_uint2(bits_of(h[2 * k]), bits_of(h[2 * k + 1]));
  if (lane % 4 == 0) {
    const int unit = lane / 4;
    auto* sums = reinterpret_cast<__half*>(to.sums + at * kSplitSums + unit / 2 * 8) + unit % 2;
    const __half high = __float2half_rn(sum);
    sums[0] = high;
    sums[2] = __float2half_rn(sum - __half2float(high));
  }
  if (lane == 0) to.scales[at] = scale;
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

void half_product(
    Tensor out, const SplitRows& x, const PackedPart& w, const float* bias, cudaStream_t stream) {
  const FewRowsArgs a = few_rows_args(out, x, w, bias);
  with_packed_block(w.format, [&](auto block) {
    constexpr Format kFormat = decltype(block)::kFormat;
    if constexpr (has_half_product(kFormat))
      with_groups<kTokens>(a.n,
                           [&](auto num) { run_half<kFormat, decltype(num)::value>(a, stream); });
  });
}

}  // namespace sluice::cuda
