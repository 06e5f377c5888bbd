// Attention of one query per row: split-KV, all query heads of a kv head share each K/V load.
//
// A block of four warps takes (row, kv head, split). The heads of the group are the 16 rows of the
// tensor cores' left operand. Each warp walks its own chunks of positions with its own asynchronous
// copies, so that nothing but the end synchronises the block. Up to eight splits are a cluster and
// merge through its shared memory, in ascending order; the last of several clusters to finish
// merges what all of them left in the workspace. GPUs without clusters merge all splits there. The
// grid depends on the number of rows only: positions may advance under a captured graph. All rows
// have as many splits, but those much longer than the mean have more, in blocks that start last and
// otherwise leave at once: a row's bits depend on its neighbours' lengths.
#include <algorithm>
#include <cmath>

#include "backend/cuda/attention_few.cuh"
#include "backend/cuda/attention_kinds.cuh"
#include "backend/cuda/attention_merge.cuh"
#include "backend/cuda/attention_prefill.cuh"
#include "backend/cuda/check.cuh"

namespace sluice::cuda {
namespace {

// kSmall: for little shared memory. A warp then waits for each copy.
template <typename T, typename KV, int D, bool kSmall>
struct DecodeShape {
  static constexpr int kRowBytes = D * static_cast<int>(sizeof(KV));
  // Positions of a warp's copy.
  static constexpr int kChunk = sizeof(KV) == 1 && !(kSmall && kIsCodes<KV>) ? 32 : 16;
  // Two or three blocks on a multiprocessor; 8-bit values need instructions more than bytes.
  static constexpr int kStages = kSmall ? 1 : D > 128 || sizeof(KV) == 1 ? 2 : 3;
  using Rows = SmemRows<kChunk, kRowBytes>;
  using Scales = ScaleRows<KV, D, kChunk>;
  static constexpr int kStageBytes = 2 * Rows::kSize + 2 * Scales::kSize;
  static constexpr int kWarpBytes = kStages * kStageBytes;
  static constexpr int kQueriesAt = kWarps * kWarpBytes;
  // Rows of the results in shared memory, padded: a warp's stores fall into different banks.
  static constexpr int kResultStride = D + (sizeof(KV) == 1 ? 16 : 8);
  static constexpr int kResults = (kWarps + 1) * kHeads * (kResultStride + 2) * 4;
  // The results at the end take the place of stages and queries.
  static constexpr int kBytes =
      std::max(kResults, kQueriesAt + kWarps * Queries<T, KV, D>::kSharedBytes);
  static_assert(!kSmall || kBytes <= kLeastShared);
};

// One warp's chunks of [begin, end): chunk j is at begin + (warp + kWarps * j) * kChunk.
template <typename KV, int D, bool kSmall>
struct ChunkLoader {
  using Shape = DecodeShape<__half, KV, D, kSmall>;
  using Rows = typename Shape::Rows;
  using Scales = typename Shape::Scales;
  static constexpr int kOctets = Shape::kChunk / 8;  // a block has at least eight positions

  const AttentionParams& p;
  BlockIds table;
  int kv_head, lo, hi, first, lane;

  __device__ int at(int j) const { return first + j * (kWarps * Shape::kChunk); }

  // Lane i < kOctets gets the block of the chunk's positions 8 i.
  __device__ int fetch(int j) const {
    int position = at(j) + lane * 8;
    bool seen = lane < kOctets && position + 8 > lo && position < hi;
    return seen ? table[position >> p.block_shift] : 0;
  }

  // Whole rows of positions that are all seen, where kWhole.
  template <bool kWhole>
  __device__ void copy_rows(uint32_t stage, int position, int id) const {
    constexpr int kStep = 32 / Rows::kChunks > 0 ? 32 / Rows::kChunks : 1;  // rows per instruction
    static_assert(Rows::kChunks <= 32 && kStep <= 8);
    int row = lane / Rows::kChunks, c = lane % Rows::kChunks;
    int row_bytes = kWhole ? Shape::kRowBytes : p.row_bytes;
    bool inside = kWhole || c * 16 < row_bytes;
#pragma unroll
    for (int octet = 0; octet < kOctets; ++octet) {
      int64_t block = __shfl_sync(~0u, id, octet);
      int in_block = (position + octet * 8) & ((1 << p.block_shift) - 1);
      int64_t offset = (block * p.kv_heads + kv_head) * p.block_bytes +
                       static_cast<int64_t>(in_block + row) * row_bytes + c * 16;
#pragma unroll
      for (int i = 0; i < 8; i += kStep) {
        int r = octet * 8 + i + row;
        bool valid = kWhole || (inside && position + r >= lo && position + r < hi);
        int64_t from = offset + i * row_bytes;
        uint32_t to = stage + Rows::at(r, c);
        copy16(to, p.k + from, valid);
        copy16(to + Rows::kSize, p.v + from, valid);
      }
    }
  }
  // Eight positions of a group, of K or V, per lane.
  __device__ void copy_all_scales(uint32_t stage, int position, int id) const {
    constexpr int kItems = kOctets * Scales::kNum * 2;
#pragma unroll
    for (int first = 0; first < kItems; first += 32) {
      int i = first + lane, octet = i % kOctets, row_at = i / kOctets;
      int64_t block = __shfl_sync(~0u, id, octet);
      if (kItems % 32 != 0 && i >= kItems) break;
      const uint8_t* side = row_at < Scales::kNum ? p.k : p.v;
      copy_scales(stage + 2 * Rows::kSize + row_at * Scales::kStride + octet * 16, p,
                  side + (block * p.kv_heads + kv_head) * p.block_bytes,
                  row_at < Scales::kNum ? row_at : row_at - Scales::kNum, position + octet * 8, lo,
                  hi);
    }
  }
  __device__ void copy(uint32_t stage, int j, int id) const {
    int position = at(j);
    if (sizeof(KV) == 1 && p.row_bytes == Shape::kRowBytes && position >= lo &&
        position + Shape::kChunk <= hi) {
      copy_rows<true>(stage, position, id);
    } else {
      copy_rows<false>(stage, position, id);
    }
    copy_all_scales(stage, position, id);
  }
};

// A warp's result to shared memory.
template <typename KV, int D, int kStride>
__device__ void store_result(const WarpResults<kStride>& results,
                             const float (&o)[D / 8][4],
                             const SoftmaxState& state,
                             int heads) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int h = lane / 4 + half * 8, at = warp * kHeads + h;
    float sum = quad_sum(state.sum[half]);
    if (h >= heads) continue;
    if (lane % 4 == 0) {
      results.max[at] = state.max[half];
      results.sum[at] = sum;
    }
    float* to = results.o + at * kStride;
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      const float *x = o[n] + half * 2, *y = o[n + 1] + half * 2;
      if constexpr (sizeof(KV) == 1) {  // even and odd dimensions of four neighbours
        *reinterpret_cast<float4*>(to + output_dim<KV>(n, 0, lane)) = {x[0], y[0], x[1], y[1]};
      } else {
        *reinterpret_cast<float2*>(to + output_dim<KV>(n, 0, lane)) = {x[0], x[1]};
        *reinterpret_cast<float2*>(to + output_dim<KV>(n + 1, 0, lane)) = {y[0], y[1]};
      }
    }
  }
}

// The same of few heads.
template <int D, int kStride>
__device__ void store_few(const WarpResults<kStride>& results,
                          const float (&o)[D / 16][4],
                          const SoftmaxState& state,
                          int heads) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int h = first_few(lane) + i, at = warp * kHeads + h;
    float sum = state.sum[i];
    for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (h >= heads) continue;
    if (lane / 4 == 0) {
      results.max[at] = state.max[i];
      results.sum[at] = sum;
    }
    float* to = results.o + at * kStride + lane / 4 * 2;
#pragma unroll
    for (int n = 0; n < D / 16; ++n)
      *reinterpret_cast<float2*>(to + n * 16) = {o[n][i], o[n][i + 2]};
  }
}

// A warp's softmax and output over its chunks. Rows of the tensor cores' products are heads.
template <typename T, typename KV, int D, bool kSmall>
struct ManyHeads {
  using Shape = DecodeShape<T, KV, D, kSmall>;
  static constexpr int kChunk = Shape::kChunk;
  Queries<T, KV, D> queries;
  float o[D / 8][4] = {};
  SoftmaxState state;

  __device__ void load(const AttentionParams& p, const Share& share, const T* q, uint32_t smem) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = lane / 4;
    queries.load(head < share.heads ? q + head * p.head_dim : nullptr,
                 head + 8 < share.heads ? q + (head + 8) * p.head_dim : nullptr, p.head_dim,
                 smem + Shape::kQueriesAt + warp * Queries<T, KV, D>::kSharedBytes, lane);
  }
  __device__ void add(const AttentionParams& p, uint32_t k, int at, int lo, int hi, int lane) {
    const int from[2] = {lo, lo}, to[2] = {hi, hi};
    float s[kChunk / 8][4], alpha[2];
    scores<T, KV, D, kChunk>(s, queries, k, lane);
    apply_softcap(s, p);
    if (at < lo || at + kChunk > hi) mask(s, at, from, to, lane);
    online_softmax(s, p.factor, state, alpha);
    if (__any_sync(~0u, alpha[0] != 1 || alpha[1] != 1)) rescale(o, alpha);
    accumulate<T, KV, D, kChunk>(o, s, k + Shape::Rows::kSize, lane);
  }
  template <int kStride>
  __device__ void store(const WarpResults<kStride>& results, int heads) const {
    store_result<KV, D, kStride>(results, o, state, heads);
  }
};

// Columns are heads, at most eight of them.
template <typename T, typename KV, int D, bool kSmall>
struct FewHeads {
  using Shape = DecodeShape<T, KV, D, kSmall>;
  static constexpr int kChunk = Shape::kChunk;
  FewQueries<T, KV, D> queries;
  float o[D / 16][4] = {};
  SoftmaxState state;

  __device__ void load(const AttentionParams& p, const Share& share, const T* q, uint32_t) {
    queries.load(q, share.heads, p.head_dim, threadIdx.x % 32);
  }
  __device__ void add(const AttentionParams& p, uint32_t k, int at, int lo, int hi, int lane) {
    float s[kChunk / 16][4], alpha[2];
    few_scores<T, KV, D, kChunk>(s, queries, k, lane);
    apply_softcap(s, p);
    if (at < lo || at + kChunk > hi) mask_few(s, at, lo, hi, lane);
    few_softmax(s, p.factor, state, alpha);
    if (__any_sync(~0u, alpha[0] != 1 || alpha[1] != 1)) rescale_few(o, alpha);
    accumulate_few<KV, D, kChunk>(o, s, k + Shape::Rows::kSize, lane);
  }
  template <int kStride>
  __device__ void store(const WarpResults<kStride>& results, int heads) const {
    store_few<D, kStride>(results, o, state, heads);
  }
};

template <typename Heads, typename T, typename KV, int D, bool kSmall>
__device__ __forceinline__ void attend_split(const DecodeParams& p) {
  using Shape = DecodeShape<T, KV, D, kSmall>;
  constexpr int kStages = Shape::kStages, kChunk = Shape::kChunk;
  extern __shared__ __align__(128) uint8_t smem[];
  let_next_kernel_start();
  wait_for_previous_kernel();
  Share share(p);
  if (share.idle()) return;

  int row = share.row, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  ChunkLoader<KV, D, kSmall> loader{
      p.a,       BlockIds(p.a, p.a.row_slot[row]), share.kv_head, max(share.lo, share.begin),
      share.end, share.begin + warp * kChunk,      lane};
  int num = max(0, (share.end - loader.first + kWarps * kChunk - 1) / (kWarps * kChunk));
  uint32_t stages = smem_address(smem) + warp * Shape::kWarpBytes;
  int id[kStages];
#pragma unroll
  for (int j = 0; j < kStages; ++j) id[j] = loader.fetch(j);
#pragma unroll
  for (int j = 0; j < kStages - 1; ++j) {
    if (j < num) loader.copy(stages + j * Shape::kStageBytes, j, id[j]);
    copy_commit();
  }
  int next_id = id[kStages - 1];

  Heads heads;
  heads.load(p.a, share, static_cast<const T*>(p.a.q) + row * p.a.q_stride + share.offset(p.a),
             smem_address(smem));
  int stage = 0, next_stage = kStages - 1;
  for (int j = 0; j < num; ++j) {
    if constexpr (kStages > 1) copy_wait<kStages - 2>();
    __syncwarp();
    int ahead = j + kStages - 1;
    if (ahead < num) {
      loader.copy(stages + next_stage * Shape::kStageBytes, ahead, next_id);
      next_id = loader.fetch(ahead + 1);
    }
    copy_commit();
    if constexpr (kStages == 1) {
      copy_wait<0>();
      __syncwarp();
    }
    uint32_t k = stages + stage * Shape::kStageBytes;
    int at = loader.at(j);
    if (kIsCodes<KV> && at < loader.lo) {
      clear_scales<typename Shape::Scales>(k + 2 * Shape::Rows::kSize + Shape::Scales::kSize,
                                           min(loader.lo - at, kChunk), lane);
      __syncwarp();
    }
    heads.add(p.a, k, at, loader.lo, loader.hi, lane);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    next_stage = next_stage + 1 == kStages ? 0 : next_stage + 1;
  }

  copy_wait<0>();
  __syncthreads();
  WarpResults<Shape::kResultStride> results(smem);
  heads.store(results, share.heads);
  __syncthreads();
  merge_row<T, D, Shape::kResultStride>(p, share, results);
}

template <typename T, typename KV, int D, bool kSmall>
__global__ __launch_bounds__(kWarps *
                             32) void decode_kernel(const __grid_constant__ DecodeParams p) {
  attend_split<ManyHeads<T, KV, D, kSmall>, T, KV, D, kSmall>(p);
}
// Three or four blocks fit into a multiprocessor's shared memory, so registers must do.
template <typename T, typename KV, int D, bool kSmall>
__global__ __launch_bounds__(kWarps * 32,
                             D > 128  ? 1
                             : D > 64 ? 3
                                      : 4) void few_kernel(const __grid_constant__ DecodeParams p) {
  attend_split<FewHeads<T, KV, D, kSmall>, T, KV, D, kSmall>(p);
}
// How rows are split, from what is known when a graph is captured.
struct Splits {
  int even;     // where rows are alike
  int cluster;  // blocks of a cluster: divides even
  int most;     // of a row much longer than the mean: a multiple of even
};

// Blocks of a multiprocessor for which rows are split. 16-bit K and V want bytes, and one block has
// enough of them on their way; 8-bit ones want instructions, and as many blocks as fit.
int blocks_wanted(DType kv_type, int head_dim) {
  if (dtype_bytes(kv_type) > 1 || head_dim > 128) return 1;
  return std::clamp(static_cast<int>(target().shared / (70 * 1024)), 1, 3);
}

// Splits that fill `slots` best without being many.
int filling_splits(int groups, int slots) {
  int best = 1;
  double most = 0;
  for (int n = 1; n <= kMaxClusters && (n == 1 || groups * n <= 4 * slots); ++n) {
    const double waves = static_cast<double>(groups) * n / slots;
    const double filled = waves / std::ceil(waves) - 0.01 * n;
    if (filled > most) most = filled, best = n;
  }
  return best;
}

// With one block per multiprocessor: a power of two up to kMaxCluster, which is a cluster, or a
// multiple of that. (Two, and clusters no longer fit in one wave: up to 1.5 times as long.) With
// more of them rows have clusters only where there are few. Without clusters, any number up to
// kMaxAlone.
Splits even_splits(int groups, int num_sms, int blocks) {
  const int wanted = num_sms * blocks / groups;
  if (!target().clusters) {
    const int even = std::clamp(wanted, 1, kMaxAlone);
    return {even, 1, even};
  }
  const int most = blocks > 1 ? kMaxClusters : kEvenClusters;
  int even = wanted >= 4 ? 4 : wanted >= 2 ? 2 : 1, cluster = even;
  if (wanted >= kMaxCluster * (blocks > 1 ? 2 : 1)) {
    // With several blocks per multiprocessor an eighth stays free, so that clusters find places.
    const int fit = wanted - (blocks > 1 ? wanted / 8 : 0);
    even = std::min(fit / kMaxCluster, most) * kMaxCluster, cluster = kMaxCluster;
  } else if (blocks > 1) {
    even = filling_splits(groups, num_sms * blocks), cluster = 1;
  }
  return {even, cluster, even};
}

Splits row_splits(int rows, int groups, int num_sms, int blocks) {
  Splits s = even_splits(groups, num_sms, blocks);
  if (rows == 1 || groups > kMaxGroups) return s;
  const int more = std::clamp(kMaxBlocks / (groups * s.even), 1, kMaxMore);
  s.most = s.even * std::min(more, std::max(1, kMaxClusters / (s.even / s.cluster)));
  return s;
}

int head_parts(const AttentionSpec& spec) {
  int group = spec.num_heads / spec.num_kv_heads;
  return (group + kHeads - 1) / kHeads;
}

// At a place that does not depend on the launch: tickets stay zero between launches of any size.
constexpr size_t kTicketBytes = kMaxGroups * sizeof(int32_t);

template <auto* kKernel, size_t kBytes>
void launch_kernel(const DecodeParams& p, dim3 grid, cudaStream_t stream) {
  allow_shared<kKernel>(kBytes, "attention decode");
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  const bool by_row = p.codes.data != nullptr;
  attributes[1].val.clusterDim = {static_cast<unsigned>(p.cluster), by_row ? grid.y : 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = kWarps * 32;
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = !target().overlap ? 0 : p.cluster > 1 || by_row ? 2 : 1;
  check(cudaLaunchKernelEx(&config, kKernel, p), "attention decode");
}

template <typename T, typename KV, int D, bool kSmall = false>
void launch(const DecodeParams& p, dim3 grid, cudaStream_t stream) {
  constexpr size_t kBytes = DecodeShape<T, KV, D, kSmall>::kBytes;
  if constexpr (kBytes > kLeastShared) {
    static_assert(!kSmall);
    if (kBytes > target().shared) return launch<T, KV, D, true>(p, grid, stream);
  }
  if constexpr (sizeof(KV) == 1) {
    if (p.a.group <= 8) return launch_kernel<few_kernel<T, KV, D, kSmall>, kBytes>(p, grid, stream);
  }
  launch_kernel<decode_kernel<T, KV, D, kSmall>, kBytes>(p, grid, stream);
}

}  // namespace

size_t attention_workspace(
    const AttentionSpec& spec, int max_decode, int max_positions, int num_sms, bool deterministic) {
  if (deterministic) return spans_workspace(spec, max_decode, max_positions, num_sms);
  int group = spec.num_heads / spec.num_kv_heads;
  int units = spec.num_kv_heads * head_parts(spec);
  size_t most = 0;
  for (int num = 1; num <= max_decode; ++num) {
    for (int blocks : {1, 3}) {  // types of K and V differ in it
      const Splits s = row_splits(num, num * units, num_sms, blocks);
      const auto parts = static_cast<size_t>(s.most / s.cluster);
      if (parts > 1) most = std::max(most, static_cast<size_t>(num) * units * parts);
    }
  }
  size_t part = part_floats(std::min(group, kHeads), template_dim(spec.head_dim));
  return kTicketBytes + most * part * sizeof(float);
}

bool decode_makes_codes(const AttentionArgs& args, int num) {
  int units = args.spec.num_kv_heads * head_parts(args.spec);
  return num > 0 && !args.deterministic && !args.prefixes.plan && has_tile_kernel(args) &&
         target().clusters && units <= kMaxCluster &&
         even_splits(num * units, args.num_sms,
                     blocks_wanted(args.kv_type.type, args.spec.head_dim))
                 .even == 1;
}

void attend_decode(const AttentionArgs& args, int num, cudaStream_t stream) {
  if (num == 0) return;
  if (!has_tile_kernel(args)) return launch_plain(args, 0, num, stream);
  if (args.prefixes.plan) attend_prefixes(args, stream);
  if (args.deterministic || args.prefixes.plan) return attend_spans(args, num, stream);
  DecodeParams p;
  p.a = make_params(args);
  p.head_parts = head_parts(args.spec);
  p.part_heads = std::min(p.a.group, kHeads);
  int units = args.spec.num_kv_heads * p.head_parts;
  p.rows = num;
  const Splits splits = row_splits(num, num * units, args.num_sms,
                                   blocks_wanted(args.kv_type.type, args.spec.head_dim));
  p.even_splits = splits.even;
  p.cluster = splits.cluster;
  p.tickets = static_cast<int32_t*>(args.workspace);
  p.partials = reinterpret_cast<float*>(static_cast<uint8_t*>(args.workspace) + kTicketBytes);
  p.codes = args.codes;
  // Codes are made by the blocks of a row together, which are then all it has.
  p.splits = p.codes.data ? splits.even : splits.most;
  dim3 grid(num * p.cluster, units, p.splits / p.cluster);
  with_tile_kernel(args.type, args.kv_type, args.spec.head_dim, [&](auto t, auto kv, auto dim) {
    launch<decltype(t), decltype(kv), decltype(dim)::value>(p, grid, stream);
  });
}

}  // namespace sluice::cuda
