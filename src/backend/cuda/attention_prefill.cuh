// Plans and kernels of attention over slices. Shared by attention_*.cu.
#pragma once

#include "backend/cuda/attention_spans.cuh"

namespace sluice::cuda {

// Which tiles of (query, head of the group) rows there are. Row r of a slice is head r % group of
// query r / group.
struct TilePlan {
  AttentionParams a;
  const SliceView* slices;
  int num_slices;
  bool by_rank;  // tile i is the i / num_slices-th heaviest of slice i % num_slices, if it has one
  int num_tiles;
};

// Kernels, by what they need. With `spans` (deterministic) a row's positions are added up by spans;
// both kernels' bits then agree with each other and with attend_spans.
// wgmma: head_dim up to 128, any cache that has_tile_kernel(); 8-bit caches without spans.
void launch_wgmma(TilePlan plan,
                  DType type,
                  KvType kv_type,
                  bool spans,
                  std::span<const SliceView> slices,
                  cudaStream_t stream);
// mma: any f16, bf16, f8 or i8 cache that has_tile_kernel().
void launch_mma(TilePlan plan,
                DType type,
                KvType kv_type,
                bool spans,
                std::span<const SliceView> slices,
                cudaStream_t stream);
// The states of what decode rows have in common (attention_prefix.cu), for attend_spans() behind
// it: a cache that has_tile_kernel(), heads of up to 128, no window.
void attend_prefixes(const AttentionArgs& args, cudaStream_t stream);
// Decode by spans: rows [0, num) of a cache that has_tile_kernel().
void attend_spans(const AttentionArgs& args, int num, cudaStream_t stream);
size_t spans_workspace(const AttentionSpec& spec, int max_decode, int max_positions, int num_sms);
// Any types and sizes, slow. Bits of a row depend on that row alone. Rows [first, first + num), one
// query each.
void launch_plain(const AttentionArgs& args, int first, int num, cudaStream_t stream);

// Fills in num_tiles and by_rank for tiles of `rows`.
void plan_tiles(TilePlan& plan, std::span<const SliceView> slices, int rows);

#ifdef __CUDACC__
// A block's share: rows [first, first + kRows) of the slice's count * group.
struct Tile {
  SliceView slice;
  int first, kv_head;
};

__device__ inline int tiles_of(const SliceView& s, int group, int rows) {
  return (s.count * group + rows - 1) / rows;
}

// All threads of the block call it, and all get the same. False: no tile for this block.
template <int kRows>
__device__ bool find_tile(const TilePlan& plan, Tile& tile) {
  int group = plan.a.group;
  int index = blockIdx.x / plan.a.kv_heads;
  tile.kv_head = blockIdx.x % plan.a.kv_heads;
  if (plan.by_rank) {
    tile.slice = plan.slices[index % plan.num_slices];
    int rank = index / plan.num_slices, tiles = tiles_of(tile.slice, group, kRows);
    tile.first = (tiles - 1 - rank) * kRows;
    return rank < tiles;
  }
  int lane = threadIdx.x % 32, before = 0;
  for (int s = 0; s < plan.num_slices; s += 32) {
    int own = s + lane < plan.num_slices ? tiles_of(plan.slices[s + lane], group, kRows) : 0;
    int sum = own;
    for (int i = 1; i < 32; i *= 2) {
      int x = __shfl_up_sync(~0u, sum, i);
      if (lane >= i) sum += x;
    }
    unsigned hit = __ballot_sync(~0u, before + sum > index);
    if (hit) {
      int at = __ffs(hit) - 1;
      int end = before + __shfl_sync(~0u, sum, at);
      tile.slice = plan.slices[s + at];
      tile.first = (end - 1 - index) * kRows;  // the last, which sees most, first
      return true;
    }
    before += __shfl_sync(~0u, sum, 31);
  }
  return false;
}

// What a tile's rows see, and what this thread's two rows (lane / 4 and + 8 of its warp's 16) are.
template <int kRows>
struct TileView {
  int total;               // rows of the slice
  int lo, hi;              // positions the tile reads: [lo, hi)
  int from[2], to[2];      // positions the thread's rows see: [from, to)
  int row[2];              // row of the slice; >= total: none
  int full_from, full_to;  // KV tiles inside are seen by all rows of the warp

  __device__ TileView(const Tile& tile, const AttentionParams& p) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    total = tile.slice.count * p.group;
    int last = min(tile.first + kRows, total) - 1;
    hi = tile.slice.pos + p.query_of(last) + 1;
    lo = from_of(tile.slice.pos + p.query_of(tile.first), p.window);
    for (int h = 0; h < 2; ++h) {
      row[h] = tile.first + warp * 16 + lane / 4 + h * 8;
      int position = tile.slice.pos + p.query_of(min(row[h], total - 1));
      from[h] = from_of(position, p.window);
      to[h] = position + 1;
    }
    int warp_first = min(tile.first + warp * 16, total - 1);
    int warp_last = min(tile.first + warp * 16 + 15, total - 1);
    full_to = tile.slice.pos + p.query_of(warp_first) + 1;
    full_from = from_of(tile.slice.pos + p.query_of(warp_last), p.window);
  }
  __device__ static int from_of(int position, int window) {
    return window > 0 ? max(0, position + 1 - window) : 0;
  }
  __device__ bool needs_mask(int at) const { return at < full_from || at + kKvTile > full_to; }
  // Elements from the start of q or out (with their stride) to the thread's row h.
  __device__ int64_t offset(const Tile& tile,
                            const AttentionParams& p,
                            int h,
                            int64_t stride) const {
    int query = p.query_of(row[h]), head = tile.kv_head * p.group + row[h] - query * p.group;
    return (tile.slice.row + query) * stride + static_cast<int64_t>(head) * p.head_dim;
  }
};

// Copies tiles of K and V by a block of kThreads, block ids fetched one tile ahead of their use.
template <int kThreads, int kBytes, typename Scales = ScaleRows<__half, kBytes / 2, kKvTile>>
struct TileLoader {
  using Rows = SmemRows<kKvTile, kBytes>;
  static constexpr int kStep = kThreads / Rows::kChunks;  // rows per instruction
  static constexpr int kPasses = kKvTile / kStep;
  static constexpr int kIds = kStep < 8 ? kKvTile / 8 : kPasses;
  static_assert(kStep <= kKvTile);
  static_assert(Scales::kNum == 0 || (kStep >= 8 && 2 * Scales::kNum <= 8 * Rows::kChunks));

  const AttentionParams& params;
  BlockIds table;
  const uint8_t* k;  // this thread's chunk of the head in block 0
  int64_t v_from_k;
  int block_stride, row_bytes, block_shift;
  int lo, hi;
  bool inside;  // the chunk is not padding
  int ids[kIds];

  __device__ TileLoader(const AttentionParams& p, const Tile& tile, int from, int to)
      : params(p),
        table(p, tile.slice.slot),
        k(p.k + tile.kv_head * p.block_bytes + chunk() * 16),
        v_from_k(p.v - p.k),
        block_stride(static_cast<int>(p.kv_heads * p.block_bytes)),
        row_bytes(p.row_bytes),
        block_shift(p.block_shift),
        lo(from),
        hi(to),
        inside(chunk() * 16 < p.row_bytes) {}
  __device__ static int row() { return threadIdx.x / Rows::kChunks; }
  __device__ static int chunk() { return threadIdx.x % Rows::kChunks; }

  __device__ void fetch(int at) {
#pragma unroll
    for (int i = 0; i < kIds; ++i) {
      int position = at + row() + i * (kStep < 8 ? 8 : kStep);
      bool seen = (position | 7) >= lo && (position & ~7) < hi;
      ids[i] = seen ? table[position >> block_shift] : 0;
    }
  }
  // K to `to`, V behind it.
  __device__ void copy(uint32_t to, int at) const {
    int last = (1 << block_shift) - 1;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      int r = row() + i * kStep, position = at + r;
      bool valid = inside && position >= lo && position < hi;
      const uint8_t* from =
          k + static_cast<int64_t>(ids[kStep < 8 ? i * kStep / 8 : i]) * block_stride +
          (position & last) * row_bytes;
      uint32_t place = to + Rows::at(r, chunk());
      copy16(place, from, valid);
      copy16(place + Rows::kSize, from + v_from_k, valid);
      if constexpr (Scales::kNum > 0) {  // by the threads of eight rows
        int g = r % 8 * Rows::kChunks + chunk();
        if (g >= 2 * Scales::kNum) continue;
        const uint8_t* head = k - chunk() * 16 + static_cast<int64_t>(ids[i]) * block_stride;
        bool is_v = g >= Scales::kNum;
        copy_scales(to + 2 * Rows::kSize + g * Scales::kStride + r / 8 * 16, params,
                    is_v ? head + v_from_k : head, is_v ? g - Scales::kNum : g, position - r % 8,
                    lo, hi);
      }
    }
  }
};

// Output of the spans before the one in work, in shared memory that only this thread reads: o[n] of
// all threads side by side. In registers it would not fit beside the span's own.
template <int D, int kThreads>
struct SpanOutput {
  static constexpr int kBytes = D / 8 * kThreads * 16;
  float4* memory;
  RowTotal total = {};
  bool any = false;  // memory holds something

  __device__ explicit SpanOutput(void* smem) : memory(static_cast<float4*>(smem) + threadIdx.x) {}

  // memory += o; the next span's output starts anew.
  __device__ void add(const float (&o)[D / 8][4], const float (&keep)[2], const float (&take)[2]) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n) memory[n * kThreads] = sum(o[n], n, keep, take);
    any = true;
  }
  // o becomes the output of all spans, the last of which it was; without spans it is that already.
  template <bool kSpans>
  __device__ void finish(float (&o)[D / 8][4], const SoftmaxState& last) {
    if constexpr (!kSpans) {
      for (int h = 0; h < 2; ++h) total.sum[h] = quad_sum(last.sum[h]);
      return;
    }
    float keep[2], take[2];
    total.add(last, keep, take);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      float4 x = sum(o[n], n, keep, take);
      o[n][0] = x.x, o[n][1] = x.y, o[n][2] = x.z, o[n][3] = x.w;
    }
  }

 private:
  __device__ float4 sum(const float (&o)[4],
                        int n,
                        const float (&keep)[2],
                        const float (&take)[2]) const {
    float4 x = any ? memory[n * kThreads] : float4{};
    return {add_span(x.x, o[0], keep[0], take[0]), add_span(x.y, o[1], keep[0], take[0]),
            add_span(x.z, o[2], keep[1], take[1]), add_span(x.w, o[3], keep[1], take[1])};
  }
};

// o / sum to out, for the rows that exist.
template <typename T, typename KV, int D, int kRows>
__device__ void store_output(const float (&o)[D / 8][4],
                             const RowTotal& total,
                             const TilePlan& plan,
                             const Tile& tile,
                             const TileView<kRows>& view) {
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (view.row[h] >= view.total) continue;
    float inverse = 1 / total.sum[h];
    T* out = static_cast<T*>(plan.a.out) + view.offset(tile, plan.a, h, plan.a.out_stride);
    if constexpr (sizeof(KV) == 2) {
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        int d = output_dim<KV>(n, 0, lane);
        if (d >= plan.a.head_dim) continue;
        *reinterpret_cast<uint32_t*>(out + d) =
            pack<T>(o[n][h * 2] * inverse, o[n][h * 2 + 1] * inverse);
      }
    } else {
#pragma unroll
      for (int n = 0; n < D / 8; n += 2) {  // even and odd dimensions of four neighbours
        int d = output_dim<KV>(n, 0, lane);
        if (d >= plan.a.head_dim) continue;
        *reinterpret_cast<uint2*>(out + d) = {
            pack<T>(o[n][h * 2] * inverse, o[n + 1][h * 2] * inverse),
            pack<T>(o[n][h * 2 + 1] * inverse, o[n + 1][h * 2 + 1] * inverse)};
      }
    }
  }
}
#endif

}  // namespace sluice::cuda
