// What the attention kernels share: their arguments, asynchronous copies of K and V rows into
// swizzled shared memory, tensor-core fragments of them, the online softmax. Device code.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "backend/cuda/arch.cuh"
#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/attention.cuh"
#include "backend/cuda/attention_int8.cuh"
#include "backend/cuda/f8_bits.cuh"
#include "backend/cuda/ldmatrix.cuh"

namespace sluice::cuda {

inline constexpr int kKvTile = 64;  // positions; tiles are anchored at position 0

struct AttentionParams {
  const void* q;
  void* out;
  const uint8_t* k;
  const uint8_t* v;
  const int32_t* tables;
  const int32_t* positions;
  const int32_t* row_slot;
  int64_t q_stride, out_stride, table_stride, first_block;
  int64_t block_bytes;  // of one kv head in one block
  int kv_heads, group, head_dim, row_bytes;
  // Codes: bytes from a head's part of a block to its scales, how many of them a position has, the
  // logarithm of dimensions per scale, and of groups that share one in the kernel.
  int scales_at, num_scales, dims_shift, scale_shift;
  int block_shift, window;
  // Scores in units of log2: s * factor, where s is q·k, or with a soft cap
  // cap - 2 cap / (exp2(s * cap_factor) + 1), which is cap * tanh.
  float factor, cap, cap_factor;
  uint32_t group_inverse;  // ceil(2^32 / group), 0 for group 1

  // n / group, exact for n * group < 2^32
  __device__ int query_of(int n) const {
    return group_inverse ? static_cast<int>(__umulhi(static_cast<uint32_t>(n), group_inverse)) : n;
  }
};

// Block ids of one slot: from its table, or consecutive where there is none. Which of them is the
// same for all threads of a launch.
struct BlockIds {
  int64_t from;  // the table's address, or the first id
  bool paged;

  __device__ BlockIds(const AttentionParams& p, int slot) : paged(p.tables != nullptr) {
    int64_t at = slot * p.table_stride;
    from = paged ? reinterpret_cast<int64_t>(p.tables + at) : p.first_block + at;
  }
  __device__ int operator[](int index) const {
    return paged ? __ldg(reinterpret_cast<const int32_t*>(from) + index)
                 : static_cast<int>(from) + index;
  }
};

AttentionParams make_params(const AttentionArgs& args);
// Whether rows of K, V, q and out can be moved in 16-byte chunks and head_dim fits a template size.
bool has_tile_kernel(const AttentionArgs& args);

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The next kernel may take what this one leaves free; it waits for this one's results all the same.
__device__ inline void let_next_kernel_start() {
#if SLUICE_HAS_CLUSTERS
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// The previous kernel's results are visible from here (programmatic dependent launch).
__device__ inline void wait_for_previous_kernel() {
#if SLUICE_HAS_CLUSTERS
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// kRows rows of kBytes in shared memory: panels of at most 128 bytes of all rows, 16-byte chunks
// swizzled so that eight rows of one chunk column lie in different banks. With 128-byte panels it
// is also what wgmma calls the 128-byte swizzle.
template <int kRows, int kBytes>
struct SmemRows {
  static constexpr int kSize = kRows * kBytes;
  static constexpr int kChunks = kBytes / 16;
  // Chunk c ^ lane_c, c even and known at compile time, lane_c 0 or 1.
  __device__ static uint32_t at(int row, int c, int lane_c) {
    if constexpr (kBytes >= 128) {
      return static_cast<uint32_t>((c / 8) * (kRows * 128) + row * 128 +
                                   (((c & 7) ^ lane_c ^ (row & 7)) << 4));
    } else {
      static_assert(kBytes == 64);
      return static_cast<uint32_t>(row * 64 + ((c ^ lane_c ^ ((row >> 1) & 3)) << 4));
    }
  }
  __device__ static uint32_t at(int row, int c) { return at(row, c & ~1, c & 1); }
};

// d [16, 8] += a [16, 16] · b [16, 8]
template <typename T>
__device__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

template <typename T>
__device__ uint32_t pack(float lo, float hi) {
  if constexpr (std::is_same_v<T, __half>) {
    __half2 h = __floats2half2_rn(lo, hi);
    return reinterpret_cast<uint32_t&>(h);
  } else {
    __nv_bfloat162 h = __floats2bfloat162_rn(lo, hi);
    return reinterpret_cast<uint32_t&>(h);
  }
}

// Bytes kLo and kHi of x, each an e4m3, as a pair of T. Exact.
template <typename T, int kLo, int kHi>
__device__ uint32_t widen(uint32_t x) {
  if constexpr (std::is_same_v<T, __half>) {
#if SLUICE_HAS_F8
    uint32_t bytes = __byte_perm(x, 0, kLo | kHi << 4 | 0x4400), r;
    asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.rn.f16x2.e4m3x2 %0, h;}" : "=r"(r) : "r"(bytes));
    return r;
#else
    return f8_bits_to_half(__byte_perm(x, 0, 0x0404 | kLo << 4 | kHi << 12));
#endif
  } else {
    // Sign, four bits of exponent and three of mantissa move into place; the product with 2^120
    // (127 - 7, the difference of the biases) sets the exponent right, for subnormals too.
    uint32_t high = __byte_perm(x, 0, 0x0404 | kLo << 4 | kHi << 12);
    uint32_t bits = ((high >> 4) & 0x07f007f0u) | (high & 0x80008000u), r;
#if SLUICE_HAS_CLUSTERS
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(bits), "r"(0x7b807b80u));
#else
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(bits), "r"(0x7b807b80u), "r"(0x80008000u));
#endif
    return r;
  }
}

// The scales of eight positions, from `position` on, of group g, to shared memory; zeros outside of
// [lo, hi), but for positions before lo in the same eight. `head`: its part of the block.
__device__ inline void copy_scales(uint32_t to,
                                   const AttentionParams& p,
                                   const uint8_t* head,
                                   int g,
                                   int position,
                                   int lo,
                                   int hi) {
  int from = g >> p.scale_shift, last = (1 << p.block_shift) - 1;
  int seen = position + 8 > lo && from < p.num_scales ? min(max(hi - position, 0), 8) : 0;
  copy16_part(to, head + p.scales_at + ((from << p.block_shift) + (position & last)) * 2, seen * 2);
}

__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// The power of two that a row of q is divided by, from the largest magnitudes that the four threads
// of the row have.
__device__ inline float query_unit(float most) {
  most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
  most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
  most = fminf(fmaxf(most, 0x1p-90f), 0x1p90f);
  return __uint_as_float(__float_as_uint(most) & 0x7f800000u);
}

template <typename T>
__device__ float2 unpack(uint32_t x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half22float2(reinterpret_cast<const __half2&>(x));
  } else {
    return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)};
  }
}

// Fragments of q [16, D] for one warp: thread holds rows lane / 4 and + 8. With 8-bit K the order
// of dimensions inside a step of 16 differs: a thread's four are neighbours, since that is how K's
// bytes come out of ldmatrix.
template <typename KV>
__device__ int query_dim(int step, int half, int lane) {
  return sizeof(KV) == 1 ? step * 16 + half * 2 + (lane & 3) * 4
                         : step * 16 + half * 8 + (lane & 3) * 2;
}

// In registers up to D = 128; beyond that in shared memory, 16 bytes per lane and step, each lane
// reading what it wrote.
template <typename T, typename KV, int D>
struct Queries {
  static constexpr bool kShared = D > 128;
  static constexpr int kSteps = D / 16;
  static constexpr int kSharedBytes = kShared ? kSteps * 512 : 0;  // of a warp
  static constexpr bool kCodes = kIsCodes<KV>;
  uint32_t f[kShared ? 1 : kSteps][4];
  uint32_t address;
  // With codes: what scores are multiplied with, and where the products of a group start.
  float unit[kCodes ? 2 : 1];
  float bias[kBiased<KV, D> ? D / 32 : 1][4];

  // Rows of q for this thread, null where there is none.
  __device__ void load(const T* row0, const T* row1, int head_dim, uint32_t warp_smem, int lane) {
    address = warp_smem + static_cast<uint32_t>(lane) * 16;
    if constexpr (kCodes) measure(row0, row1, head_dim, lane);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t a[4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int d = query_dim<KV>(s, half, lane);
        bool in = d < head_dim;
        a[half * 2] = row0 && in ? *reinterpret_cast<const uint32_t*>(row0 + d) : 0;
        a[half * 2 + 1] = row1 && in ? *reinterpret_cast<const uint32_t*>(row1 + d) : 0;
      }
      if constexpr (kCodes) divide(a, s);
      if constexpr (kShared) {
        asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address + s * 512), "r"(a[0]),
                     "r"(a[1]), "r"(a[2]), "r"(a[3])
                     : "memory");
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) f[s][i] = a[i];
      }
    }
  }
  // The units of the rows: load() does it, and warps that read what another has loaded.
  __device__ void measure(const T* row0, const T* row1, int head_dim, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const T* row = h == 0 ? row0 : row1;
      float most = 0;
#pragma unroll
      for (int i = 0; i < kSteps * 2; ++i) {
        int d = query_dim<KV>(i / 2, i % 2, lane);
        if (!row || d >= head_dim) continue;
        float2 x = unpack<T>(*reinterpret_cast<const uint32_t*>(row + d));
        most = fmaxf(most, fmaxf(fabsf(x.x), fabsf(x.y)));
      }
      unit[h] = query_unit(most);
      if (kBiased<KV, D>) unit[h] *= 0x1p24f;
    }
  }
  __device__ void get(int s, uint32_t (&a)[4]) const {
    if constexpr (kShared) {
      asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                   : "r"(address + s * 512)
                   : "memory");
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = f[s][i];
    }
  }

 private:
  // A step's fragment by the units; adds to the bias.
  __device__ void divide(uint32_t (&a)[4], int s) {
    constexpr float kRaise = kBiased<KV, D> ? 0x1p24f : 1;
    float sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float inverse = kRaise / unit[i % 2];
      float2 x = unpack<T>(a[i]);
      a[i] = pack<__half>(x.x * inverse, x.y * inverse);
      x = unpack<__half>(a[i]);
      sum[i % 2] += x.x + x.y;
    }
    if constexpr (kBiased<KV, D>) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float more = -128 * 0x1p-24f * quad_sum(sum[i / 2]);
        bias[s / 2][i] = s % 2 == 0 ? more : bias[s / 2][i] + more;
      }
    }
  }
};

// scores() of codes.
template <typename T, typename KV, int D, int kPositions, int kRows>
__device__ void code_scores(
    float (&s)[kPositions / 8][4], const Queries<T, KV, D>& q, uint32_t k, int lane, int first) {
  using Rows = SmemRows<kRows, D>;
  using Scales = ScaleRows<KV, D, kRows>;
  const uint32_t scales = k + 2 * Rows::kSize + first * 2;
  int row = first + ((lane >> 3) & 1) * 8 + (lane & 7), lane_c = lane >> 4;
#pragma unroll
  for (int step = 0; step < D / 16; step += 2) {
    uint32_t r[4], a[4], b[4];
    q.get(step, a);
    q.get(step + 1, b);
#pragma unroll
    for (int n = 0; n < kPositions / 8; ++n) {
      if (n % 2 == 0) ldmatrix(r, k + Rows::at(n * 8 + row, step, lane_c));
      const uint32_t x = r[n % 2], y = r[n % 2 + 2];
      if constexpr (std::is_same_v<KV, Codes8>) {
        uint32_t at =
            scales + (step * 2 + ((lane >> 1) & 1)) * Scales::kStride + (n * 8 + (lane >> 2)) * 2;
        uint32_t u = scale_twice(at), v = scale_twice(at + 2 * Scales::kStride);
        mma<__half>(s[n], a, scaled_codes<0, 1>(x, u), scaled_codes<2, 3>(x, u));
        mma<__half>(s[n], b, scaled_codes<0, 1>(y, v), scaled_codes<2, 3>(y, v));
      } else {
        float part[4] = {0, 0, 0, 0};
        if constexpr (kBiased<KV, D>) {
          mma_onto(part, a, code_pair<0, 1>(x, 0), code_pair<2, 3>(x, 0), q.bias[step / 2]);
          mma<__half>(part, b, code_pair<0, 1>(y, 0), code_pair<2, 3>(y, 0));
        } else {
          mma<__half>(part, a, exact_codes<0, 1>(x), exact_codes<2, 3>(x));
          mma<__half>(part, b, exact_codes<0, 1>(y), exact_codes<2, 3>(y));
        }
        float2 w = scale_pair(scales + step / 2 * Scales::kStride + (n * 8 + (lane & 3) * 2) * 2);
#pragma unroll
        for (int i = 0; i < 4; ++i) s[n][i] = __fmaf_rn(part[i], i % 2 == 0 ? w.x : w.y, s[n][i]);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kPositions / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = __fmul_rn(s[n][i], q.unit[i / 2]);
  }
}

// s [16, kPositions] = q · kᵀ for one warp; k: SmemRows of kRows rows, of which those from `first`
// on are taken. V, and the scales of codes, lie behind them.
template <typename T, typename KV, int D, int kPositions, int kRows = kPositions>
__device__ void scores(float (&s)[kPositions / 8][4],
                       const Queries<T, KV, D>& q,
                       uint32_t k,
                       int lane,
                       int first = 0) {
  using Rows = SmemRows<kRows, D* static_cast<int>(sizeof(KV))>;
#pragma unroll
  for (int n = 0; n < kPositions / 8; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
  uint32_t r[4], a[4];
  if constexpr (kIsCodes<KV>) {
    code_scores<T, KV, D, kPositions, kRows>(s, q, k, lane, first);
  } else if constexpr (sizeof(KV) == 2) {
    int row = first + (lane >> 4) * 8 + (lane & 7), lane_c = (lane >> 3) & 1;
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
      q.get(step, a);
#pragma unroll
      for (int n = 0; n < kPositions / 16; ++n) {
        ldmatrix(r, k + Rows::at(n * 16 + row, step * 2, lane_c));
        mma<T>(s[n * 2], a, r[0], r[1]);
        mma<T>(s[n * 2 + 1], a, r[2], r[3]);
      }
    }
  } else {
    int row = first + ((lane >> 3) & 1) * 8 + (lane & 7), lane_c = lane >> 4;
    uint32_t b[4];
#pragma unroll
    for (int step = 0; step < D / 16; step += 2) {
      q.get(step, a);
      q.get(step + 1, b);
#pragma unroll
      for (int n = 0; n < kPositions / 16; ++n) {
        ldmatrix(r, k + Rows::at(n * 16 + row, step, lane_c));
        mma<T>(s[n * 2], a, widen<T, 0, 1>(r[0]), widen<T, 2, 3>(r[0]));
        mma<T>(s[n * 2 + 1], a, widen<T, 0, 1>(r[1]), widen<T, 2, 3>(r[1]));
        mma<T>(s[n * 2], b, widen<T, 0, 1>(r[2]), widen<T, 2, 3>(r[2]));
        mma<T>(s[n * 2 + 1], b, widen<T, 0, 1>(r[3]), widen<T, 2, 3>(r[3]));
      }
    }
  }
}

// Scores of 16 positions, as they lie in a thread, become the left operand of the next product.
template <typename T>
__device__ void weights_fragment(uint32_t (&a)[4], const float (&s)[4], const float (&next)[4]) {
  a[0] = pack<T>(s[0], s[1]);
  a[1] = pack<T>(s[2], s[3]);
  a[2] = pack<T>(next[0], next[1]);
  a[3] = pack<T>(next[2], next[3]);
}

// Four registers of 8-bit V, as ldmatrix_trans has them: the even and the odd dimensions as pairs
// of positions. w: the scales of codes, by register.
template <typename T, typename KV>
__device__ void widen_values(uint32_t (&even)[4],
                             uint32_t (&odd)[4],
                             const uint32_t (&r)[4],
                             const uint32_t (&w)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kIsCodes<KV>) {
      even[i] = scaled_codes<0, 2>(r[i], w[i]);
      odd[i] = scaled_codes<1, 3>(r[i], w[i]);
    } else {
      even[i] = widen<T, 0, 2>(r[i]);
      odd[i] = widen<T, 1, 3>(r[i]);
    }
  }
}

// Scales of V for a register of ldmatrix_trans: positions `position` + 0 to 7, dimensions of a
// 16-byte chunk. v: the tile's rows of V.
template <typename KV, int D, int kPositions>
__device__ uint32_t value_scale(uint32_t v, int position, int chunk, int lane) {
  using Scales = ScaleRows<KV, D, kPositions>;
  int g = std::is_same_v<KV, Codes8> ? chunk * 2 + (lane >> 4) : chunk / 2;
  return load_shared(v + kPositions * D + Scales::kSize + g * Scales::kStride +
                     (position + (lane & 3) * 2) * 2);
}

// The same for four registers: positions from `position` on and eight further, chunks `chunk`
// (even) and the next.
template <typename KV, int D, int kPositions>
__device__ void load_value_scales(uint32_t (&w)[4], uint32_t v, int position, int chunk, int lane) {
  if constexpr (kIsCodes<KV>) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      bool again = i >= 2 && std::is_same_v<KV, Codes32>;
      w[i] = again ? w[i - 2]
                   : value_scale<KV, D, kPositions>(v, position + i % 2 * 8, chunk + i / 2, lane);
    }
  }
}

// o [16, D] += s · v for one warp. With 8-bit V, tiles 2j and 2j + 1 of o are the even and the odd
// dimensions of [16 j, 16 j + 16): see output_dim().
template <typename T, typename KV, int D, int kPositions>
__device__ void accumulate(float (&o)[D / 8][4],
                           const float (&s)[kPositions / 8][4],
                           uint32_t v,
                           int lane) {
  using Rows = SmemRows<kPositions, D* static_cast<int>(sizeof(KV))>;
  using M = Operand<T, KV>;
  int row = ((lane >> 3) & 1) * 8 + (lane & 7), lane_c = lane >> 4;
#pragma unroll
  for (int n = 0; n < kPositions / 16; ++n) {
    uint32_t a[4], r[4];
    weights_fragment<M>(a, s[n * 2], s[n * 2 + 1]);
    if constexpr (sizeof(KV) == 2) {
#pragma unroll
      for (int d = 0; d < D / 16; ++d) {
        ldmatrix_trans(r, v + Rows::at(n * 16 + row, d * 2, lane_c));
        mma<T>(o[d * 2], a, r[0], r[1]);
        mma<T>(o[d * 2 + 1], a, r[2], r[3]);
      }
    } else {
#pragma unroll
      for (int d = 0; d < D / 32; ++d) {
        ldmatrix_trans(r, v + Rows::at(n * 16 + row, d * 2, lane_c));
        uint32_t even[4], odd[4], w[4] = {};
        load_value_scales<KV, D, kPositions>(w, v, n * 16, d * 2, lane);
        widen_values<T, KV>(even, odd, r, w);
        mma<M>(o[d * 4], a, even[0], even[1]);
        mma<M>(o[d * 4 + 1], a, odd[0], odd[1]);
        mma<M>(o[d * 4 + 2], a, even[2], even[3]);
        mma<M>(o[d * 4 + 3], a, odd[2], odd[3]);
      }
    }
  }
}

// Dimension of o[tile][e] and o[tile][e + 2], e 0 or 1.
template <typename KV>
__device__ int output_dim(int tile, int e, int lane) {
  return sizeof(KV) == 1 ? tile / 2 * 16 + (lane & 3) * 4 + e * 2 + (tile & 1)
                         : tile * 8 + (lane & 3) * 2 + e;
}

template <int N>
__device__ void apply_softcap(float (&s)[N][4], const AttentionParams& p) {
  if (p.cap <= 0) return;
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float e = __fadd_rn(exp2_approx(__fmul_rn(s[n][i], p.cap_factor)), 1);
      s[n][i] = __fsub_rn(p.cap, __fdividef(2 * p.cap, e));
    }
  }
}

// Positions outside [from[h], to[h]) of the thread's row h become -inf. s[0] is at position `at`.
template <int N>
__device__ void mask(float (&s)[N][4], int at, const int (&from)[2], const int (&to)[2], int lane) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int position = at + n * 8 + (lane & 3) * 2 + (i & 1);
      if (position < from[i >> 1] || position >= to[i >> 1]) s[n][i] = -INFINITY;
    }
  }
}

// Running maximum (in units of log2) and this thread's share of the sum, for rows lane / 4 and + 8.
struct SoftmaxState {
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};
};

// The largest score of each of the thread's rows.
template <int N>
__device__ void row_tops(float (&top)[2], const float (&s)[N][4]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    top[h] = s[0][h * 2];
#pragma unroll
    for (int n = 0; n < N; ++n) top[h] = fmaxf(top[h], fmaxf(s[n][h * 2], s[n][h * 2 + 1]));
    top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], 1));
    top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], 2));
  }
}

// The maximum after a tile with scores up to `top`; alpha is what earlier results are multiplied
// with, `shift` what scores are reduced by. For a row that sees nothing in the tile alpha is
// exactly 1 (or 0 where there was nothing before).
__device__ inline void raise_max(SoftmaxState& state,
                                 const float (&top)[2],
                                 float factor,
                                 float (&alpha)[2],
                                 float (&shift)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float max = fmaxf(state.max[h], __fmul_rn(top[h], factor));
    shift[h] = max == -INFINITY ? 0 : max;
    alpha[h] = exp2_approx(__fsub_rn(state.max[h], shift[h]));
    state.max[h] = max;
  }
}

// Scores of 16 positions become weights; returns the thread's share of row h's sum.
__device__ inline float weigh(float (&s)[4], float (&next)[4], int h, float factor, float shift) {
  float sum = 0;
#pragma unroll
  for (int i = h * 2; i < h * 2 + 2; ++i) {
    s[i] = exp2_approx(__fmaf_rn(s[i], factor, -shift));
    sum += s[i];
  }
#pragma unroll
  for (int i = h * 2; i < h * 2 + 2; ++i) {
    next[i] = exp2_approx(__fmaf_rn(next[i], factor, -shift));
    sum += next[i];
  }
  return sum;
}

// Scores become weights; alpha is what earlier results are multiplied with. Sums are over 16
// positions each, then over those: attention_spans.cu has them on different warps.
template <int N>
__device__ void online_softmax(float (&s)[N][4],
                               float factor,
                               SoftmaxState& state,
                               float (&alpha)[2]) {
  float top[2], shift[2];
  row_tops(top, s);
  raise_max(state, top, factor, alpha, shift);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = weigh(s[0], s[1], h, factor, shift[h]);
#pragma unroll
    for (int n = 2; n < N; n += 2) {
      sum += weigh(s[n], s[n + 1], h, factor, shift[h]);
    }
    state.sum[h] = __fmaf_rn(state.sum[h], alpha[h], sum);
  }
}

template <int N>
__device__ void clear(float (&o)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0;
}

template <int N>
__device__ void rescale(float (&o)[N][4], const float (&alpha)[2]) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    o[n][0] *= alpha[0];
    o[n][1] *= alpha[0];
    o[n][2] *= alpha[1];
    o[n][3] *= alpha[1];
  }
}

}  // namespace sluice::cuda
