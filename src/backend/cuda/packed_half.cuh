// Shared by the kernels of products by halves (packed_half.cu): codes times scales as the matrix
// instruction takes them, and the sums of a warp.
#pragma once

#include "backend/cuda/packed_ring.cuh"

namespace sluice::cuda {

constexpr int kHalfTokens = 8;  // rows of x in one matrix instruction

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

// A lane's share of a product: weight rows lane / 4 and lane / 4 + 8 of each row of tiles, times
// rows 2 (lane % 4) and the next of each group of x.
template <int kGroups, int kTiles>
using LaneSums = float[kTiles][kGroups][4];

// Codes times scales times x over 256 columns, before d. They are number `at`, those number `next`
// follow; rows.take() has x.
template <Format F, int kGroups, int kTiles, typename Rows>
__device__ inline void multiply_codes(
    LaneSums<kGroups, kTiles>& c, const uint8_t* slot, Rows& rows, int at, int next) {
  using S = Stage<F>;
  constexpr PackedFormat f = packed_format(F);
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kSuperTiles; ++i) {
    LaneTile<F> w[kTiles];
#pragma unroll
    for (int r = 0; r < kTiles; ++r) w[r] = S::tile(slot + r * S::kBytes, i, lane);
#pragma unroll
    for (int unit = 0; unit < 2; ++unit) {
      uint4 x[kGroups];
      rows.take(x, 2 * i + unit, at, next);
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        uint32_t a0[4], a1[4];
        HalfScale s[2] = {half_scale<F>(w[r], 0, f.group == 16 ? 2 * unit : unit),
                          half_scale<F>(w[r], 1, f.group == 16 ? 2 * unit : unit)};
        scaled_codes<F>(w[r], 2 * unit, s, a0);
        if constexpr (f.group == 16)
          s[0] = half_scale<F>(w[r], 0, 2 * unit + 1), s[1] = half_scale<F>(w[r], 1, 2 * unit + 1);
        scaled_codes<F>(w[r], 2 * unit + 1, s, a1);
#pragma unroll
        for (int t = 0; t < kGroups; ++t) {
          mma(c[r][t], a0, x[t].x, x[t].y, __half{});
          mma(c[r][t], a1, x[t].z, x[t].w, __half{});
        }
      }
    }
  }
}

// Minimums of a row of tiles as the matrix instruction takes them.
template <Format F>
__device__ inline void read_mins(const uint8_t* stage, uint32_t (&mins)[4]) {
  using S = Stage<F>;
  constexpr PackedFormat f = packed_format(F);
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4;
  // Those of tile `quad`: columns 2 quad and 2 quad + 1 of the matrix instruction.
  uint32_t words[2];
  read_words<2>(words, stage + S::kScalesAt + quad * f.scales + lane / 4 * (f.scales / 8));
#pragma unroll
  for (int upper = 0; upper < 2; ++upper) {
    const __half2 two = as_half2(__byte_perm(words[upper], 0x64646464u, 0x4341));
    mins[upper] = mins[upper + 2] = bits_of(__hsub2(two, __float2half2_rn(1024)));
  }
}

// Sums of x and scales of x for 256 columns, as a lane takes them.
template <Format F, int kGroups>
struct SuperOfX {
  uint2 sums[kGroups] = {};
  float scales[kGroups][2];

  __device__ SuperOfX(const FewRowsArgs& a, int first_token, int at) {
    const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4;
#pragma unroll
    for (int t = 0; t < kGroups; ++t) {
      const int first = first_token + t * kHalfTokens;
      if constexpr (packed_format(F).has_min)
        sums[t] = *reinterpret_cast<const uint2*>(
            a.x.sums + (int64_t{min(first + lane / 4, a.n - 1)} * a.supers + at) * kSplitSums +
            quad * 8);
#pragma unroll
      for (int k = 0; k < 2; ++k)
        scales[t][k] = a.x.scales[int64_t{min(first + quad * 2 + k, a.n - 1)} * a.supers + at];
    }
  }
};

// Adds what multiply_codes() gave for 256 columns, with d, minimums and the scales of x.
template <Format F, int kGroups, int kTiles>
__device__ inline void add_scaled(LaneSums<kGroups, kTiles>& sums,
                                  const LaneSums<kGroups, kTiles>& c,
                                  const SuperOfX<F, kGroups>& x,
                                  const uint8_t* slot) {
  using S = Stage<F>;
  constexpr PackedFormat f = packed_format(F);
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int r = 0; r < kTiles; ++r) {
    const uint8_t* stage = slot + r * S::kBytes;
    uint32_t supers[2] = {}, mins[4] = {};
    read_words<f.supers / 32>(supers, stage + S::kSupersAt + lane / 4 * (f.supers / 8));
    if constexpr (f.has_min) read_mins<F>(stage, mins);
    const float d[2] = {half_of(supers[0], 0),
                        half_of(supers[f.has_min ? 1 : 0], f.has_min ? 0 : 1) * kUpper<F>};
#pragma unroll
    for (int t = 0; t < kGroups; ++t) {
      float m[4] = {};
      if constexpr (f.has_min) mma(m, mins, x.sums[t].x, x.sums[t].y, __half{});
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float v = d[k / 2] * c[r][t][k];
        if constexpr (f.has_min) v = fmaf(-half_of(supers[k / 2], 1), m[k], v);
        sums[r][t][k] = fmaf(x.scales[t][k % 2], v, sums[r][t][k]);
      }
    }
  }
}

// Puts a warp's sums of a row of tiles where put_sums() finds them.
template <int kGroups>
__device__ inline void share_sums(float (&to)[kGroups * kHalfTokens][kPackedRows + 1],
                                  const float (&sums)[kGroups][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int t = 0; t < kGroups; ++t)
#pragma unroll
    for (int k = 0; k < 4; ++k)
      to[t * kHalfTokens + lane % 4 * 2 + k % 2][lane / 4 + k / 2 * 8] = sums[t][k];
}

}  // namespace sluice::cuda
