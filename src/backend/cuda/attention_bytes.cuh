// Tiles of an 8-bit K and V in 16 bits: each element is widened once, on its way into shared
// memory, for all rows of a block. Device code of attention_wgmma.cu.
#pragma once

#include "backend/cuda/attention_prefill.cuh"

namespace sluice::cuda {

// Copies tiles of K and V by a block of kThreads: bytes to registers, halves to SmemRows of
// kKvTile. f8 is exact in halves. Codes times their scales are within 2^-11, which for the largest
// code is 1/8 of what rounding to codes may cost.
template <typename KV, int kThreads, int D>
struct WideningLoader {
  using Rows = SmemRows<kKvTile, D * 2>;
  static constexpr int kChunks = D / 16;  // 16 bytes each
  static constexpr int kStep = kThreads / kChunks, kPasses = kKvTile / kStep;
  static_assert(kStep * kPasses == kKvTile && (kChunks == 4 || kChunks == 8));
  // A thread's chunks of a tile. Each has two scales in f16: of its first eight elements in the low
  // half of the word, of the others in the high half.
  struct Bytes {
    uint4 k[kPasses], v[kPasses];
    uint32_t k_scales[kPasses], v_scales[kPasses];
  };

  const AttentionParams& params;
  BlockIds table;
  const uint8_t* k;  // the head in block 0
  int64_t v_from_k;
  int block_stride, lo, hi;
  bool inside;  // the chunk is not padding
  int ids[kPasses];

  __device__ WideningLoader(const AttentionParams& p, const Tile& tile, int from, int to)
      : params(p),
        table(p, tile.slice.slot),
        k(p.k + tile.kv_head * p.block_bytes),
        v_from_k(p.v - p.k),
        block_stride(static_cast<int>(p.kv_heads * p.block_bytes)),
        lo(from),
        hi(to),
        inside(chunk() * 16 < p.row_bytes) {}
  // Eight threads have four chunks of two rows: their halves then lie in different banks.
  __device__ static int chunk() {
    return threadIdx.x % 4 + (kChunks == 8 ? threadIdx.x / 8 % 2 * 4 : 0);
  }
  __device__ static int row() {
    return kChunks == 8 ? threadIdx.x / 16 * 2 + threadIdx.x / 4 % 2 : threadIdx.x / 4;
  }

  // The ids of the tile at `at`, for load().
  __device__ void fetch(int at) {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      int position = at + row() + i * kStep;
      ids[i] = position >= lo && position < hi ? table[position >> params.block_shift] : 0;
    }
  }
  // Zeros outside of [lo, hi) and behind head_dim.
  __device__ void load(Bytes& to, int at) const {
    int last = (1 << params.block_shift) - 1;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      int position = at + row() + i * kStep;
      to.k[i] = to.v[i] = {};
      to.k_scales[i] = to.v_scales[i] = 0;
      if (!inside || position < lo || position >= hi) continue;
      const uint8_t* head = k + static_cast<int64_t>(ids[i]) * block_stride;
      int in_block = position & last, at_row = in_block * params.row_bytes + chunk() * 16;
      to.k[i] = *reinterpret_cast<const uint4*>(head + at_row);
      to.v[i] = *reinterpret_cast<const uint4*>(head + v_from_k + at_row);
      if constexpr (kIsCodes<KV>) {
        to.k_scales[i] = load_scales(head, in_block);
        to.v_scales[i] = load_scales(head + v_from_k, in_block);
      }
    }
  }
  // K to `to`, V behind it.
  __device__ void store(const Bytes& from, uint32_t to) const {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      int r = row() + i * kStep;
      put(to, r, from.k[i], from.k_scales[i]);
      put(to + Rows::kSize, r, from.v[i], from.v_scales[i]);
    }
  }

 private:
  __device__ uint32_t load_scales(const uint8_t* head, int in_block) const {
    const auto* scales = reinterpret_cast<const uint16_t*>(head + params.scales_at) + in_block;
    int g = chunk() * 16 >> params.dims_shift;
    uint32_t first = scales[g << params.block_shift];
    if constexpr (std::is_same_v<KV, Codes8>)
      return first | static_cast<uint32_t>(scales[(g + 1) << params.block_shift]) << 16;
    return first | first << 16;
  }
  __device__ static void put(uint32_t to, int r, const uint4& bytes, uint32_t scales) {
    const uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
    uint32_t h[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kIsCodes<KV>) {
        const uint32_t scale = __byte_perm(scales, 0, i < 2 ? 0x1010 : 0x3232);
        h[2 * i] = scaled_codes<0, 1>(words[i], scale);
        h[2 * i + 1] = scaled_codes<2, 3>(words[i], scale);
      } else {
        h[2 * i] = widen<__half, 0, 1>(words[i]);
        h[2 * i + 1] = widen<__half, 2, 3>(words[i]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      asm volatile(
          "st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to + Rows::at(r, 2 * chunk(), half)),
          "r"(h[4 * half]), "r"(h[4 * half + 1]), "r"(h[4 * half + 2]), "r"(h[4 * half + 3])
          : "memory");
  }
};

// Turns fragments of q from bf16 into halves, each row divided by a power of two. unit: those of
// the thread's two rows.
template <int D>
__device__ inline void halve_queries(uint32_t (&f)[D / 16][4], float (&unit)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float most = 0;
#pragma unroll
    for (int i = 0; i < D / 16 * 2; ++i) {
      const float2 x = unpack<__nv_bfloat16>(f[i / 2][i % 2 * 2 + h]);
      most = fmaxf(most, fmaxf(fabsf(x.x), fabsf(x.y)));
    }
    unit[h] = query_unit(most);
    const float inverse = 1 / unit[h];
#pragma unroll
    for (int i = 0; i < D / 16 * 2; ++i) {
      uint32_t& pair = f[i / 2][i % 2 * 2 + h];
      const float2 x = unpack<__nv_bfloat16>(pair);
      pair = pack<__half>(x.x * inverse, x.y * inverse);
    }
  }
}

}  // namespace sluice::cuda
