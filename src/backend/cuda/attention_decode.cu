// Attention of one query per row: split-KV, all query heads of a kv head share each K/V load.
//
// A block of four warps takes (row, kv head, split). The heads of the group are the 16 rows of the
// tensor cores' left operand. Each warp walks its own chunks of positions with its own asynchronous
// copies, so that nothing but the end synchronises the block. The last split of a (row, kv head) to
// finish merges all of them, in ascending order. The grid depends on the number of rows only:
// positions may advance under a captured graph.
#include <algorithm>

#include "backend/cuda/attention_prefill.cuh"
#include "backend/cuda/attention_tile.cuh"
#include "backend/cuda/check.cuh"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kHeads = 16;      // query heads of a block: rows of the tensor cores' left operand
constexpr int kMaxSplits = 32;  // more would only lengthen the merge
constexpr int kMinTiles = 2;    // of a split: what its warps have in flight from the start
constexpr int kBlocksPerSm = 2;

struct DecodeParams {
  AttentionParams a;
  int splits;
  int head_parts;    // blocks that share a kv head: ceil(group / kHeads)
  int part_heads;    // heads of a partial result: min(group, kHeads)
  int32_t* tickets;  // [max_split_groups()], zero between launches
  float* partials;   // [rows * kv_heads * head_parts, splits, part_floats()]
};

// Unnormalised output [heads, D], then maxima and sums [heads].
__host__ __device__ constexpr int part_floats(int heads, int d) {
  return (heads * (d + 2) + 3) / 4 * 4;
}

template <typename KV, int D>
struct DecodeShape {
  static constexpr int kRowBytes = D * static_cast<int>(sizeof(KV));
  static constexpr int kChunk = sizeof(KV) == 1 ? 32 : 16;  // positions of a warp's copy
  // Two or three blocks on a multiprocessor; 8-bit values need instructions more than bytes.
  static constexpr int kStages = D > 128 || sizeof(KV) == 1 ? 2 : 3;
  using Rows = SmemRows<kChunk, kRowBytes>;
  static constexpr int kStageBytes = 2 * Rows::kSize;
  static constexpr int kWarpBytes = kStages * kStageBytes;
  static constexpr int kBytes = kWarps * kWarpBytes;  // the end's [kWarps, kHeads, D + 2] fits
  static_assert(kBytes >= kWarps * kHeads * (D + 2) * 4);
};

// One warp's chunks of [begin, end): chunk j is at begin + (warp + kWarps * j) * kChunk.
template <typename KV, int D>
struct ChunkLoader {
  using Shape = DecodeShape<KV, D>;
  using Rows = typename Shape::Rows;
  static constexpr int kOctets = Shape::kChunk / 8;  // a block has at least eight positions

  const AttentionParams& p;
  const int32_t* table;
  int kv_head, lo, hi, first, lane;

  __device__ int at(int j) const { return first + j * (kWarps * Shape::kChunk); }

  // Lane i < kOctets gets the block of the chunk's positions 8 i.
  __device__ int fetch(int j) const {
    int position = at(j) + lane * 8;
    bool seen = lane < kOctets && position + 8 > lo && position < hi;
    return seen ? __ldg(table + (position >> p.block_shift)) : 0;
  }

  __device__ void copy(uint32_t stage, int j, int id) const {
    constexpr int kStep = 32 / Rows::kChunks > 0 ? 32 / Rows::kChunks : 1;  // rows per instruction
    static_assert(Rows::kChunks <= 32 && kStep <= 8);
    int row = lane / Rows::kChunks, c = lane % Rows::kChunks;
    bool inside = c * 16 < p.row_bytes;
    int position = at(j);
#pragma unroll
    for (int octet = 0; octet < kOctets; ++octet) {
      int64_t block = __shfl_sync(~0u, id, octet);
      int in_block = (position + octet * 8) & ((1 << p.block_shift) - 1);
      int64_t offset = (block * p.kv_heads + kv_head) * p.block_bytes +
                       static_cast<int64_t>(in_block + row) * p.row_bytes + c * 16;
#pragma unroll
      for (int i = 0; i < 8; i += kStep) {
        int r = octet * 8 + i + row;
        bool valid = inside && position + r >= lo && position + r < hi;
        int64_t from = offset + i * p.row_bytes;
        uint32_t to = stage + Rows::at(r, c);
        copy16(to, p.k + from, valid);
        copy16(to + Rows::kSize, p.v + from, valid);
      }
    }
  }
};

// Where the block's warps leave their results for the merge, in place of the stages.
template <int D>
struct WarpResults {
  float* o;    // [kWarps, kHeads, D]
  float* max;  // [kWarps, kHeads]
  float* sum;  // [kWarps, kHeads]
  __device__ explicit WarpResults(void* smem)
      : o(static_cast<float*>(smem)), max(o + kWarps * kHeads * D), sum(max + kWarps * kHeads) {}
};

template <typename T>
__device__ void store4(T* to, float4 x) {
  *reinterpret_cast<uint2*>(to) = {pack<T>(x.x, x.y), pack<T>(x.z, x.w)};
}

__device__ inline float4 fma4(float w, float4 x, float4 sum) {
  return {fmaf(w, x.x, sum.x), fmaf(w, x.y, sum.y), fmaf(w, x.z, sum.z), fmaf(w, x.w, sum.w)};
}
__device__ inline float4 scale4(float4 x, float w) { return {x.x * w, x.y * w, x.z * w, x.w * w}; }

// Output elements [at, at + 4) of up to kBatch splits from `first` on, all loads in flight at once.
constexpr int kBatch = 16;
__device__ inline void load_parts(
    float4 (&x)[kBatch], const float* parts, int stride, int at, int first, int num) {
#pragma unroll
  for (int s = 0; s < kBatch; ++s) {
    if (first + s >= num) break;
    x[s] = __ldcg(reinterpret_cast<const float4*>(parts + (first + s) * stride + at));
  }
}

// Partial results of `num` splits, in ascending order, to out. Weights of splits go through smem.
template <typename T, int D>
__device__ void merge_splits(
    const DecodeParams& p, const float* parts, int num, int heads, T* out, float* smem) {
  int stride = part_floats(p.part_heads, D);
  float* weight = smem;                         // [kHeads, kMaxSplits]
  float* inverse = smem + kHeads * kMaxSplits;  // [kHeads]
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int elements = heads * (D / 4);
  float4 x[kBatch];
  if (threadIdx.x < elements) load_parts(x, parts, stride, threadIdx.x * 4, 0, num);
  static_assert(kMaxSplits <= 32);
  for (int h = warp; h < heads; h += kWarps) {
    const float* tail = parts + lane * stride + p.part_heads * D + h;
    float max = lane < num ? __ldcg(tail) : -INFINITY;
    float sum = lane < num ? __ldcg(tail + p.part_heads) : 0;
    float top = max;
    for (int i = 16; i > 0; i /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
    float w = exp2_approx(max - top);
    float total = sum * w;
    for (int i = 16; i > 0; i /= 2) total += __shfl_xor_sync(~0u, total, i);
    weight[h * kMaxSplits + lane] = w;
    if (lane == 0) inverse[h] = 1 / total;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < elements; i += kWarps * 32) {
    int h = i / (D / 4), d = i % (D / 4) * 4;
    float4 sum{};
    for (int first = 0; first < num; first += kBatch) {
      if (i >= kWarps * 32 || first > 0) load_parts(x, parts, stride, i * 4, first, num);
#pragma unroll
      for (int s = 0; s < kBatch; ++s) {
        if (first + s >= num) break;
        sum = fma4(weight[h * kMaxSplits + first + s], x[s], sum);
      }
    }
    if (d < p.a.head_dim) store4(out + h * p.a.head_dim + d, scale4(sum, inverse[h]));
  }
}

// The block's four results merged: to out when the row has one split, else to `part`.
template <typename T, int D>
__device__ void merge_warps(
    const DecodeParams& p, const WarpResults<D>& results, int heads, T* out, float* part) {
  for (int i = threadIdx.x; i < heads * (D / 4); i += kWarps * 32) {
    int h = i / (D / 4), d = i % (D / 4) * 4;
    float top = results.max[h];
    for (int w = 1; w < kWarps; ++w) top = fmaxf(top, results.max[w * kHeads + h]);
    float4 o{};
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) {
      float weight = exp2_approx(results.max[w * kHeads + h] - top);
      sum = fmaf(weight, results.sum[w * kHeads + h], sum);
      o = fma4(weight, *reinterpret_cast<const float4*>(results.o + (w * kHeads + h) * D + d), o);
    }
    if (part) {
      __stcg(reinterpret_cast<float4*>(part + h * D + d), o);
      if (d == 0) {
        __stcg(part + p.part_heads * D + h, top);
        __stcg(part + p.part_heads * (D + 1) + h, sum);
      }
    } else if (d < p.a.head_dim) {
      store4(out + h * p.a.head_dim + d, scale4(o, 1 / sum));
    }
  }
}

template <typename T, typename KV, int D>
__global__ __launch_bounds__(kWarps * 32) void decode_kernel(DecodeParams p) {
  using Shape = DecodeShape<KV, D>;
  constexpr int kStages = Shape::kStages, kChunk = Shape::kChunk;
  extern __shared__ __align__(128) uint8_t smem[];
  wait_for_previous_kernel();

  int split = blockIdx.x, unit = blockIdx.y, row = blockIdx.z;
  int kv_head = unit / p.head_parts, first_head = unit % p.head_parts * kHeads;
  int heads = min(p.a.group - first_head, kHeads);
  int hi = max(p.a.positions[row], 0) + 1;
  int lo = p.a.window > 0 ? max(0, hi - p.a.window) : 0;
  int start = lo / kKvTile * kKvTile;
  int tiles = (hi - start + kKvTile - 1) / kKvTile;
  int tiles_per_split = max(kMinTiles, (tiles + p.splits - 1) / p.splits);
  int active = (tiles + tiles_per_split - 1) / tiles_per_split;
  if (split >= active) return;
  int begin = start + split * tiles_per_split * kKvTile;
  int end = min(begin + tiles_per_split * kKvTile, hi);

  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int32_t* table = p.a.tables + p.a.row_slot[row] * p.a.table_stride;
  ChunkLoader<KV, D> loader{p.a, table, kv_head, max(lo, begin), end, begin + warp * kChunk, lane};
  int num = max(0, (end - loader.first + kWarps * kChunk - 1) / (kWarps * kChunk));
  uint32_t stages = smem_address(smem) + warp * Shape::kWarpBytes;
  {
    int id[kStages - 1];
#pragma unroll
    for (int j = 0; j < kStages - 1; ++j) id[j] = loader.fetch(j);
#pragma unroll
    for (int j = 0; j < kStages - 1; ++j) {
      if (j < num) loader.copy(stages + j * Shape::kStageBytes, j, id[j]);
      copy_commit();
    }
  }
  int next_id = loader.fetch(kStages - 1);

  int64_t head_at = static_cast<int64_t>(kv_head * p.a.group + first_head) * p.a.head_dim;
  const T* q = static_cast<const T*>(p.a.q) + row * p.a.q_stride + head_at;
  int head = lane / 4;
  Queries<T, KV, D> queries;
  queries.load(head < heads ? q + head * p.a.head_dim : nullptr,
               head + 8 < heads ? q + (head + 8) * p.a.head_dim : nullptr, p.a.head_dim,
               smem_address(smem) + Shape::kBytes + warp * Queries<T, KV, D>::kSharedBytes, lane);

  float o[D / 8][4] = {};
  SoftmaxState state;
  const int from[2] = {loader.lo, loader.lo}, to[2] = {loader.hi, loader.hi};
  int stage = 0, next_stage = kStages - 1;
  for (int j = 0; j < num; ++j) {
    copy_wait<kStages - 2>();
    __syncwarp();
    int ahead = j + kStages - 1;
    if (ahead < num) {
      loader.copy(stages + next_stage * Shape::kStageBytes, ahead, next_id);
      next_id = loader.fetch(ahead + 1);
    }
    copy_commit();
    uint32_t k = stages + stage * Shape::kStageBytes;
    float s[kChunk / 8][4];
    scores<T, KV, D, kChunk>(s, queries, k, lane);
    apply_softcap(s, p.a);
    int at = loader.at(j);
    if (at < loader.lo || at + kChunk > loader.hi) mask(s, at, from, to, lane);
    float alpha[2];
    online_softmax(s, p.a.factor, state, alpha);
    if (__any_sync(~0u, alpha[0] != 1 || alpha[1] != 1)) rescale(o, alpha);
    accumulate<T, KV, D, kChunk>(o, s, k + Shape::Rows::kSize, lane);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    next_stage = next_stage + 1 == kStages ? 0 : next_stage + 1;
  }

  copy_wait<0>();
  __syncthreads();
  WarpResults<D> results(smem);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int h = head + half * 8, at = warp * kHeads + h;
    float sum = quad_sum(state.sum[half]);
    if (h >= heads) continue;
    if (lane % 4 == 0) {
      results.max[at] = state.max[half];
      results.sum[at] = sum;
    }
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        results.o[at * D + output_dim<KV>(n, e, lane)] = o[n][half * 2 + e];
      }
    }
  }
  __syncthreads();
  T* out = static_cast<T*>(p.a.out) + row * p.a.out_stride + head_at;
  if (active == 1) {
    merge_warps<T, D>(p, results, heads, out, nullptr);
    return;
  }

  int64_t group_at = static_cast<int64_t>(row) * gridDim.y + unit;
  int stride = part_floats(p.part_heads, D);
  float* parts = p.partials + group_at * p.splits * stride;
  merge_warps<T, D>(p, results, heads, out, parts + split * stride);
  __threadfence();
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(p.tickets + group_at, 1) == active - 1;
    if (last) p.tickets[group_at] = 0;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  merge_splits<T, D>(p, parts, active, heads, out, reinterpret_cast<float*>(smem));
}

// Enough splits to fill the device, from what is known when a graph is captured.
int num_splits(int groups, int num_sms) {
  int wanted = kBlocksPerSm * num_sms;
  if (groups > wanted) return 1;
  return std::clamp((wanted + groups / 2) / groups, 1, kMaxSplits);
}

int template_dim(int head_dim) { return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256; }

int head_parts(const AttentionSpec& spec) {
  int group = spec.num_heads / spec.num_kv_heads;
  return (group + kHeads - 1) / kHeads;
}

// More groups than this are never split.
int max_split_groups(int num_sms) { return kBlocksPerSm * num_sms; }

// At a place that does not depend on the launch: tickets stay zero between launches of any size.
size_t ticket_bytes(int num_sms) {
  return (static_cast<size_t>(max_split_groups(num_sms)) * sizeof(int32_t) + 255) / 256 * 256;
}

template <typename T, typename KV, int D>
void launch(const DecodeParams& p, dim3 grid, cudaStream_t stream) {
  constexpr int kBytes = DecodeShape<KV, D>::kBytes + kWarps * Queries<T, KV, D>::kSharedBytes;
  static const cudaError_t ready = cudaFuncSetAttribute(
      decode_kernel<T, KV, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  check(ready, "attention decode");
  decode_kernel<T, KV, D><<<grid, kWarps * 32, kBytes, stream>>>(p);
  check_launch("attention decode");
}

template <typename T, typename KV>
void launch_dim(const DecodeParams& p, dim3 grid, cudaStream_t stream) {
  int d = template_dim(p.a.head_dim);
  if (d == 64) return launch<T, KV, 64>(p, grid, stream);
  if (d == 128) return launch<T, KV, 128>(p, grid, stream);
  launch<T, KV, 256>(p, grid, stream);
}

}  // namespace

size_t attention_workspace(const AttentionSpec& spec, int max_decode, int num_sms) {
  int group = spec.num_heads / spec.num_kv_heads;
  int units = spec.num_kv_heads * head_parts(spec);
  size_t most = 0;
  for (int num = 1; num <= max_decode; ++num) {
    int splits = num_splits(num * units, num_sms);
    if (splits > 1) most = std::max(most, static_cast<size_t>(num) * units * splits);
  }
  size_t part = part_floats(std::min(group, kHeads), template_dim(spec.head_dim));
  return ticket_bytes(num_sms) + most * part * sizeof(float);
}

void attend_decode(const AttentionArgs& args, int num, cudaStream_t stream) {
  if (num == 0) return;
  if (args.deterministic || !has_tile_kernel(args)) return attend_rows(args, 0, num, stream);
  DecodeParams p;
  p.a = make_params(args);
  p.head_parts = head_parts(args.spec);
  p.part_heads = std::min(p.a.group, kHeads);
  int units = args.spec.num_kv_heads * p.head_parts;
  p.splits = num_splits(num * units, args.num_sms);
  p.tickets = static_cast<int32_t*>(args.workspace);
  p.partials =
      reinterpret_cast<float*>(static_cast<uint8_t*>(args.workspace) + ticket_bytes(args.num_sms));
  dim3 grid(p.splits, units, num);
  bool f8 = args.kv_type == DType::f8;
  if (args.type == DType::f16) {
    return f8 ? launch_dim<__half, __nv_fp8_e4m3>(p, grid, stream)
              : launch_dim<__half, __half>(p, grid, stream);
  }
  f8 ? launch_dim<__nv_bfloat16, __nv_fp8_e4m3>(p, grid, stream)
     : launch_dim<__nv_bfloat16, __nv_bfloat16>(p, grid, stream);
}

}  // namespace sluice::cuda
