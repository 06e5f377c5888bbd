// Device code of decode attention: which part of a row a block has, and how partial results become
// the row's: those of a block's warps, of a cluster's blocks, and of clusters through the
// workspace. Included by attention_decode.cu.
#pragma once

#include "backend/cuda/attention_tile.cuh"
#include "backend/cuda/cluster.cuh"
#include "backend/cuda/codes.cuh"

namespace sluice::cuda {

constexpr int kWarps = 4;
constexpr int kHeads = 16;  // query heads of a block: rows of the tensor cores' left operand
constexpr int kMaxCluster = 8;
constexpr int kMaxClusters = 8;   // of a (row, kv head)
constexpr int kEvenClusters = 4;  // of them where rows are alike: more only lengthen the merge
constexpr int kMaxBlocks = 2048;  // of a grid in which long rows may have more splits, about
constexpr int kMaxMore = 4;       // times as many splits for a long row as for others
constexpr int kMaxGroups = 4096;  // pairs of row and kv head that have a ticket
constexpr int kMaxAlone = 32;     // splits where there are no clusters
constexpr int kMinTiles = 2;      // of a split: what its warps have in flight from the start

struct DecodeParams {
  AttentionParams a;
  int rows;
  int even_splits;   // where rows are alike; a multiple of `cluster`
  int splits;        // of a long row at most; a multiple of even_splits
  int cluster;       // blocks of a cluster
  int head_parts;    // blocks that share a kv head: ceil(group / kHeads)
  int part_heads;    // heads of a partial result: min(group, kHeads)
  int32_t* tickets;  // [kMaxGroups], zero between launches
  float* partials;   // [rows * kv_heads * head_parts, splits / cluster, part_floats()]
  CodesView codes;   // of the rows, or null; then a cluster is the blocks of a row
};

// Unnormalised output [heads, D], then maxima and sums [heads].
__host__ __device__ constexpr int part_floats(int heads, int d) {
  return (heads * (d + 2) + 3) / 4 * 4;
}

// The tiles of positions that a row sees.
struct SeenTiles {
  int lo, hi, start, num;  // positions [lo, hi), in tiles from `start` on
  __device__ SeenTiles(const AttentionParams& p, int row) {
    hi = max(p.positions[row], 0) + 1;
    lo = p.window > 0 ? max(0, hi - p.window) : 0;
    start = lo / kKvTile * kKvTile;
    num = (hi - start + kKvTile - 1) / kKvTile;
  }
};

// The block's part of a row.
struct Share {
  int row, split, kv_head, first_head, heads;
  int lo, begin, end;    // positions [begin, end), of which those from lo on are seen
  int active;            // splits of the row that have positions
  int first_of_cluster;  // split of the cluster's first block

  __device__ explicit Share(const DecodeParams& p) {
    row = static_cast<int>(blockIdx.x) / p.cluster;
    first_of_cluster = static_cast<int>(blockIdx.z) * p.cluster;
    split = first_of_cluster + static_cast<int>(blockIdx.x) % p.cluster;
    int unit = blockIdx.y;
    kv_head = unit / p.head_parts;
    first_head = unit % p.head_parts * kHeads;
    heads = min(p.a.group - first_head, kHeads);
    const SeenTiles seen(p.a, row);
    lo = seen.lo;
    int per_split = (seen.num + p.even_splits - 1) / p.even_splits;
    if (p.splits > p.even_splits)
      per_split = min(per_split, max(mean_split(p), (seen.num + p.splits - 1) / p.splits));
    active = (seen.num + max(kMinTiles, per_split) - 1) / max(kMinTiles, per_split);
    per_split = max(kMinTiles, (seen.num + active - 1) / active);  // all about as long
    active = (seen.num + per_split - 1) / per_split;
    begin = seen.start + split * per_split * kKvTile;
    end = min(begin + per_split * kKvTile, seen.hi);
  }
  // Tiles of a row's split on average, and a quarter more: rows that are about alike stay so. A row
  // at position 0 is a graph's padding, or as short. By whole warps.
  __device__ static int mean_split(const DecodeParams& p) {
    int sum = 0, rows = 0;
    for (int i = threadIdx.x % 32; i < p.rows; i += 32) {
      if (p.a.positions[i] <= 0) continue;
      sum += SeenTiles(p.a, i).num;
      ++rows;
    }
    const int parts = 4 * max(1, __reduce_add_sync(~0u, rows)) * p.even_splits;
    return (5 * __reduce_add_sync(~0u, sum) + parts - 1) / parts;
  }
  // A block without positions stays when others of its cluster have some.
  __device__ bool idle() const { return active == 1 ? split > 0 : first_of_cluster >= active; }
  // Elements from the start of a row of q or out to the first head.
  __device__ int64_t offset(const AttentionParams& p) const {
    return static_cast<int64_t>(kv_head * p.group + first_head) * p.head_dim;
  }
};

// The results of the block's warps, for the merge. They take the stages' place in shared memory.
template <int kStride>
struct WarpResults {
  float* o;    // [kWarps, kHeads, kStride]
  float* max;  // [kWarps, kHeads]
  float* sum;  // [kWarps, kHeads]
  __device__ explicit WarpResults(void* smem)
      : o(static_cast<float*>(smem)),
        max(o + kWarps * kHeads * kStride),
        sum(max + kWarps * kHeads) {}
  __device__ float* end() const { return sum + kWarps * kHeads; }
};

template <typename T>
__device__ void store4(T* to, float4 x) {
  *reinterpret_cast<uint2*>(to) = {pack<T>(x.x, x.y), pack<T>(x.z, x.w)};
}

// As `to` of store4() holds it.
template <typename T>
__device__ float4 rounded4(float4 x) {
  auto r = [](float v) { return to_float(from_float<T>(v)); };
  return {r(x.x), r(x.y), r(x.z), r(x.w)};
}

__device__ inline float4 fma4(float w, float4 x, float4 sum) {
  return {fmaf(w, x.x, sum.x), fmaf(w, x.y, sum.y), fmaf(w, x.z, sum.z), fmaf(w, x.w, sum.w)};
}
__device__ inline float4 scale4(float4 x, float w) { return {x.x * w, x.y * w, x.z * w, x.w * w}; }

// What `num` partial results (or blocks of a cluster) contribute to one head: the weights of each,
// the common maximum, and the sum.
template <int kNum>
struct Merge {
  float weight[kNum], top, sum;
  __device__ Merge(const float (&maxima)[kNum], const float (&sums)[kNum])
      : top(maxima[0]), sum(0) {
#pragma unroll
    for (int s = 1; s < kNum; ++s) top = fmaxf(top, maxima[s]);
#pragma unroll
    for (int s = 0; s < kNum; ++s) {
      weight[s] = exp2_approx(maxima[s] - top);
      sum = fmaf(weight[s], sums[s], sum);
    }
  }
  __device__ float4 apply(const float4 (&x)[kNum]) const {
    float4 o{};
#pragma unroll
    for (int s = 0; s < kNum; ++s) o = fma4(weight[s], x[s], o);
    return o;
  }
};

// Partial results of `num` clusters, in ascending order, to out.
template <typename T, int D>
__device__ void merge_clusters(
    const DecodeParams& p, const float* parts, int num, int heads, T* out) {
  int stride = part_floats(p.part_heads, D);
  for (int i = threadIdx.x; i < heads * (D / 4); i += kWarps * 32) {
    int h = i / (D / 4), d = i % (D / 4) * 4;
    if (d >= p.a.head_dim) continue;
    float maxima[kMaxClusters], sums[kMaxClusters];
    float4 x[kMaxClusters];
#pragma unroll
    for (int s = 0; s < kMaxClusters; ++s) {
      const float* part = parts + s * stride;
      const float* tail = part + p.part_heads * D + h;
      maxima[s] = s < num ? __ldcg(tail) : -INFINITY;
      sums[s] = s < num ? __ldcg(tail + p.part_heads) : 0;
      x[s] = s < num ? __ldcg(reinterpret_cast<const float4*>(part + h * D + d)) : float4{};
    }
    Merge<kMaxClusters> merge(maxima, sums);
    store4(out + h * p.a.head_dim + d, scale4(merge.apply(x), 1 / merge.sum));
  }
}

// The same for any number of partial results, of single blocks.
template <typename T, int D>
__device__ void merge_blocks(
    const DecodeParams& p, const float* parts, int num, int heads, T* out) {
  int stride = part_floats(p.part_heads, D);
  for (int i = threadIdx.x; i < heads * (D / 4); i += kWarps * 32) {
    int h = i / (D / 4), d = i % (D / 4) * 4;
    if (d >= p.a.head_dim) continue;
    const float* tail = parts + p.part_heads * D + h;
    float top = -INFINITY, sum = 0;
    for (int s = 0; s < num; ++s) top = fmaxf(top, __ldcg(tail + s * stride));
    float4 o{};
#pragma unroll 4
    for (int s = 0; s < num; ++s) {
      float weight = exp2_approx(__ldcg(tail + s * stride) - top);
      sum = fmaf(weight, __ldcg(tail + p.part_heads + s * stride), sum);
      o = fma4(weight, __ldcg(reinterpret_cast<const float4*>(parts + s * stride + h * D + d)), o);
    }
    store4(out + h * p.a.head_dim + d, scale4(o, 1 / sum));
  }
}

// Results of the cluster's first `num` blocks, each [heads, D] with maxima and sums [kHeads] behind
// its kHeads rows at `block`; this block merges its share of them, to out or to `part`.
template <typename T, int D>
__device__ void merge_cluster(
    const DecodeParams& p, uint32_t block, int num, int heads, T* out, float* part) {
  int rank = blockIdx.x % p.cluster;
  for (int i = rank * kWarps * 32 + threadIdx.x; i < heads * (D / 4);
       i += p.cluster * kWarps * 32) {
    int h = i / (D / 4), d = i % (D / 4) * 4;
    float maxima[kMaxCluster], sums[kMaxCluster];
    float4 x[kMaxCluster];
#pragma unroll
    for (int s = 0; s < kMaxCluster; ++s) {
      uint32_t from = in_block(block, s < num ? s : 0), tail = from + (kHeads * D + h) * 4;
      maxima[s] = s < num ? load_remote(tail) : -INFINITY;
      sums[s] = s < num ? load_remote(tail + kHeads * 4) : 0;
      x[s] = s < num ? load_remote4(from + (h * D + d) * 4) : float4{};
    }
    Merge<kMaxCluster> merge(maxima, sums);
    float4 o = merge.apply(x);
    if (part) {
      __stcg(reinterpret_cast<float4*>(part + h * D + d), o);
      if (d == 0) {
        __stcg(part + p.part_heads * D + h, merge.top);
        __stcg(part + p.part_heads * (D + 1) + h, merge.sum);
      }
    } else if (d < p.a.head_dim) {
      store4(out + h * p.a.head_dim + d, scale4(o, 1 / merge.sum));
    }
  }
}

// Four dimensions of a head over the warps: unnormalised, with the common maximum and the sum.
struct MergedWarps {
  float4 o;
  float top, sum;

  template <int kStride>
  __device__ MergedWarps(const WarpResults<kStride>& results, int h, int d) {
    float maxima[kWarps], sums[kWarps];
    float4 x[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      maxima[w] = results.max[w * kHeads + h];
      sums[w] = results.sum[w * kHeads + h];
      x[w] = *reinterpret_cast<const float4*>(results.o + (w * kHeads + h) * kStride + d);
    }
    Merge<kWarps> merge(maxima, sums);
    o = merge.apply(x);
    top = merge.top;
    sum = merge.sum;
  }
  __device__ float4 normalised() const { return scale4(o, 1 / sum); }
};

// The warps' results merged: to out when the row has one split, else to `block`: [block_heads, D]
// with maxima and sums behind it.
template <typename T, int D, int kStride>
__device__ void merge_warps(const DecodeParams& p,
                            const WarpResults<kStride>& results,
                            int heads,
                            T* out,
                            float* block,
                            int block_heads = kHeads) {
  for (int i = threadIdx.x; i < heads * (D / 4); i += kWarps * 32) {
    int h = i / (D / 4), d = i % (D / 4) * 4;
    MergedWarps merged(results, h, d);
    if (block) {
      *reinterpret_cast<float4*>(block + h * D + d) = merged.o;
      if (d == 0) {
        block[block_heads * D + h] = merged.top;
        block[block_heads * (D + 1) + h] = merged.sum;
      }
    } else if (d < p.a.head_dim) {
      store4(out + h * p.a.head_dim + d, merged.normalised());
    }
  }
}

#if SLUICE_HAS_CLUSTERS
// The warps' results merged, to out and to the row's codes. The blocks of the cluster hold
// the whole row, and exchange their largest elements.
template <typename T, int D, int kStride>
__device__ void merge_to_codes(
    const DecodeParams& p, const WarpResults<kStride>& results, int heads, int64_t offset, T* out) {
  constexpr int kTurns = kHeads * (D / 4) / (kWarps * 32);
  __shared__ float shared[kClusterMaxFloats];
  float4 y[kTurns];
  float most = 0;
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    int i = turn * kWarps * 32 + threadIdx.x, h = i / (D / 4), d = i % (D / 4) * 4;
    y[turn] = {};
    if (h >= heads || d >= p.a.head_dim) continue;
    MergedWarps merged(results, h, d);
    y[turn] = rounded4<T>(merged.normalised());
    store4(out + h * p.a.head_dim + d, y[turn]);
    most = larger(larger(larger(larger(most, y[turn].x), y[turn].y), y[turn].z), y[turn].w);
  }
  const Unit unit(cluster_max(most, shared), p.codes.type);
  int64_t cols = static_cast<int64_t>(p.a.kv_heads) * p.a.group * p.a.head_dim;
  if (blockIdx.y == 0 && threadIdx.x == 0) p.codes.scale[blockIdx.x] = unit.value;
  auto* codes = static_cast<uint8_t*>(p.codes.data) + blockIdx.x * cols + offset;
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    int i = turn * kWarps * 32 + threadIdx.x, h = i / (D / 4), d = i % (D / 4) * 4;
    if (h >= heads || d >= p.a.head_dim) continue;
    const Pack<uint8_t, 4> q{
        {unit.code(y[turn].x), unit.code(y[turn].y), unit.code(y[turn].z), unit.code(y[turn].w)}};
    *reinterpret_cast<Pack<uint8_t, 4>*>(codes + h * p.a.head_dim + d) = q;
  }
  leave_cluster_max();
}
#endif

// Whether this block is the last of `num` that draw the ticket; it then sees what the others
// stored.
__device__ inline bool draw_last(int32_t* ticket, int num) {
  __threadfence();
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(ticket, 1) == num - 1;
    if (last) *ticket = 0;
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

#if !SLUICE_HAS_CLUSTERS
// The row's splits merged through the workspace, the warps' results first.
template <typename T, int D, int kStride>
__device__ void merge_row(const DecodeParams& p,
                          const Share& share,
                          const WarpResults<kStride>& results) {
  T* out = static_cast<T*>(p.a.out) + share.row * p.a.out_stride + share.offset(p.a);
  if (share.active == 1) {
    return merge_warps<T, D, kStride>(p, results, share.heads, out, nullptr);
  }
  int64_t group_at = static_cast<int64_t>(share.row) * gridDim.y + blockIdx.y;
  int stride = part_floats(p.part_heads, D);
  float* parts = p.partials + group_at * p.splits * stride;
  merge_warps<T, D, kStride>(p, results, share.heads, out, parts + share.split * stride,
                             p.part_heads);
  if (draw_last(p.tickets + group_at, share.active))
    merge_blocks<T, D>(p, parts, share.active, share.heads, out);
}
#else
// The row's splits merged, the warps' results first.
template <typename T, int D, int kStride>
__device__ void merge_row(const DecodeParams& p,
                          const Share& share,
                          const WarpResults<kStride>& results) {
  T* out = static_cast<T*>(p.a.out) + share.row * p.a.out_stride + share.offset(p.a);
  if (p.codes.data) {
    return merge_to_codes<T, D, kStride>(p, results, share.heads, share.offset(p.a), out);
  }
  if (share.active == 1) {
    return merge_warps<T, D, kStride>(p, results, share.heads, out, nullptr);
  }
  merge_warps<T, D, kStride>(p, results, share.heads, out, results.end());
  int64_t group_at = static_cast<int64_t>(share.row) * gridDim.y + blockIdx.y;
  int stride = part_floats(p.part_heads, D);
  float* parts = p.partials + group_at * (p.splits / p.cluster) * stride;
  int clusters = (share.active + p.cluster - 1) / p.cluster;
  float* part = clusters > 1 ? parts + share.first_of_cluster / p.cluster * stride : nullptr;
  int num = min(p.cluster, share.active - share.first_of_cluster);
  cluster_arrive();
  cluster_wait();
  merge_cluster<T, D>(p, smem_address(results.end()), num, share.heads, out, part);
  cluster_arrive();  // a block's memory lives until all have read it
  if (clusters > 1 && draw_last(p.tickets + group_at, clusters * p.cluster))
    merge_clusters<T, D>(p, parts, clusters, share.heads, out);
  cluster_wait();
}
#endif

}  // namespace sluice::cuda
