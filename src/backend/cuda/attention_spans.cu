// Attention of one query per row, with the bits of a prefill (--deterministic): all query heads of
// a kv head share each K/V load, and several blocks share a long row.
//
// A block of four warps takes (row, kv head, some of the row's spans). The heads of the group are
// the 16 rows of the tensor cores' left operand. Of every tile of 64 positions a warp makes the
// scores of 16, the block agrees on the maxima and exchanges the weights, and a warp sums up a
// quarter of the dimensions over all 64: so every score, weight and sum is computed as the prefill
// kernels do it, to the bit. A row's first block folds its spans in registers; the others leave
// each span in the workspace, and the last to finish folds them in ascending order. The grid
// depends on the number of rows only: positions may advance under a captured graph. Of a row in a
// group (prefix_groups.h) the first block begins with the states of what the group has in common.
#include <algorithm>

#include "backend/cuda/attention_kinds.cuh"
#include "backend/cuda/attention_prefill.cuh"
#include "backend/cuda/attention_prefix.cuh"
#include "backend/cuda/attention_tile.cuh"
#include "backend/cuda/check.cuh"
#include "backend/cuda/launch.cuh"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kHeads = 16;  // query heads of a block: rows of the tensor cores' left operand
static_assert(kWarps * 16 == kKvTile);

struct SpanParams {
  AttentionParams a;
  int splits;        // blocks of a (row, kv head)
  int head_parts;    // blocks that share a kv head: ceil(group / kHeads)
  int slots;         // states of a (row, kv head) in the workspace
  int32_t* tickets;  // [max_split_groups()], zero between launches
  float* states;     // [rows * kv_heads * head_parts, slots, state_floats()]
  PrefixView prefixes;
  const float* prefix_states;
};

// A span's unnormalised output as threads hold it, [halves of the heads, D / 8, 32 lanes] pairs,
// then maxima and sums [kHeads].
__host__ __device__ constexpr int state_floats(int halves, int d) {
  return halves * d / 8 * 64 + 2 * kHeads;
}

template <typename KV, int D>
struct SpanShape {
  using Rows = SmemRows<kKvTile, D* static_cast<int>(sizeof(KV))>;
  using Scales = ScaleRows<KV, D, kKvTile>;
  static constexpr int kStageBytes = 2 * (Rows::kSize + Scales::kSize);
  static constexpr int kDims = D / kWarps;  // of the output, per warp
  static constexpr int kTiles = kDims / 8;
};

// One tile's values that warps exchange, in shared memory.
struct Exchange {
  float top[kHeads][kWarps];  // largest score of a head in a warp's positions
  uint4 weights[kWarps][32];  // left operands of the product with V, one per 16 positions
  float sums[kWarps][2][32];  // threads' shares of the weights' sum
  float totals[kHeads];       // at the end
};

// The block's part of a row.
struct Share {
  int kv_head, first_head, heads;
  int lo;          // first position that the row sees
  int begin, end;  // positions of the block; begin is a multiple of kKvTile
  int slot;        // where its first state goes
  int num_slots;   // states of the row; 1: its first block has all positions
  int place = -1;  // prefix_place()

  __device__ Share(const SpanParams& p, bool prefixes) {
    int split = blockIdx.x, unit = blockIdx.y;
    kv_head = unit / p.head_parts;
    first_head = unit % p.head_parts * kHeads;
    heads = min(p.a.group - first_head, kHeads);
    int hi = max(p.a.positions[blockIdx.z], 0) + 1;
    lo = p.a.window > 0 ? max(0, hi - p.a.window) : 0;
    if (prefixes) {
      place = p.prefixes.places[blockIdx.z];
      if (place >= 0) lo = p.prefixes.plan->groups[place >> kPrefixRowBits].positions;
    }
    int start = lo / kKvTile * kKvTile;
    // A block takes the spans that begin in its share of the positions.
    int share = (hi - start + p.splits - 1) / p.splits;
    auto span_from = [&](int i) { return span_of(min(start + i * share, hi) - 1) + 1; };
    int first = split == 0 ? span_of(start) : span_from(split), last = span_from(split + 1);
    begin = max(span_begin(first), start);
    end = min(span_begin(last), hi);
    int behind = span_from(1);  // the first block
    slot = split == 0 ? 0 : 1 + first - behind;
    num_slots = 1 + span_of(hi - 1) + 1 - behind;
  }
  __device__ bool idle() const { return num_slots == 1 && blockIdx.x > 0; }
  // Elements from the start of a row of q or out to the first head.
  __device__ int64_t offset(const AttentionParams& p) const {
    return static_cast<int64_t>(kv_head * p.group + first_head) * p.head_dim;
  }
};

// Copies tiles of K and V. A cache block has at least eight positions: lane i < 8 fetches the id
// for positions 8 i of a tile.
template <typename KV, int D>
struct Loader {
  using Rows = typename SpanShape<KV, D>::Rows;
  using Scales = typename SpanShape<KV, D>::Scales;
  static constexpr int kStep = kThreads / Rows::kChunks;  // rows per instruction
  static_assert(Scales::kNum == 0 || (kStep >= 8 && 2 * Scales::kNum <= 8 * Rows::kChunks));

  const AttentionParams& params;
  BlockIds table;
  const uint8_t* k;  // this thread's chunk of the head in block 0
  int64_t v_from_k, block_stride;
  int row_bytes, block_shift, lo, hi;
  bool inside;  // the chunk is not padding

  __device__ Loader(const AttentionParams& p, const Share& share)
      : params(p),
        table(p, p.row_slot[blockIdx.z]),
        k(p.k + share.kv_head * p.block_bytes + chunk() * 16),
        v_from_k(p.v - p.k),
        block_stride(p.kv_heads * p.block_bytes),
        row_bytes(p.row_bytes),
        block_shift(p.block_shift),
        lo(max(share.lo, share.begin)),
        hi(share.end),
        inside(chunk() * 16 < p.row_bytes) {}
  __device__ static int chunk() { return threadIdx.x % Rows::kChunks; }

  __device__ int fetch(int at) const {
    int lane = threadIdx.x % 32, position = at + lane * 8;
    bool seen = lane < kKvTile / 8 && position + 8 > lo && position < hi;
    return seen ? table[position >> block_shift] : 0;
  }
  // K to `to`, V behind it.
  __device__ void copy(uint32_t to, int at, int id) const {
    int last = (1 << block_shift) - 1;
#pragma unroll
    for (int i = 0; i < kKvTile / kStep; ++i) {
      int r = threadIdx.x / Rows::kChunks + i * kStep, position = at + r;
      int64_t block = __shfl_sync(~0u, id, r / 8);
      bool valid = inside && position >= lo && position < hi;
      const uint8_t* from = k + block * block_stride + (position & last) * row_bytes;
      uint32_t place = to + Rows::at(r, chunk());
      copy16(place, from, valid);
      copy16(place + Rows::kSize, from + v_from_k, valid);
      if constexpr (Scales::kNum > 0) {  // by the threads of eight rows
        int g = r % 8 * Rows::kChunks + chunk();
        bool is_v = g >= Scales::kNum;
        const uint8_t* head = k - chunk() * 16 + block * block_stride + (is_v ? v_from_k : 0);
        if (g < 2 * Scales::kNum) {
          copy_scales(to + 2 * Rows::kSize + g * Scales::kStride + r / 8 * 16, params, head,
                      is_v ? g - Scales::kNum : g, position - r % 8, lo, hi);
        }
      }
    }
  }
};

// o [16, kDims] += weights [16, 64] · v [64, dimensions of this warp]. Tiles of o as accumulate()
// has them.
template <typename T, typename KV, int D>
__device__ void accumulate_part(float (&o)[SpanShape<KV, D>::kTiles][4],
                                const uint32_t (&w)[kKvTile / 16][4],
                                uint32_t v,
                                int warp,
                                int lane) {
  using Rows = typename SpanShape<KV, D>::Rows;
  using M = Operand<T, KV>;
  constexpr int kDims = SpanShape<KV, D>::kDims;
  int row = ((lane >> 3) & 1) * 8 + (lane & 7), lane_c = lane >> 4;
  uint32_t r[4], even[4], odd[4], scales[4] = {};
  if constexpr (sizeof(KV) == 2) {
#pragma unroll
    for (int n = 0; n < kKvTile / 16; ++n) {
#pragma unroll
      for (int d = 0; d < kDims / 16; ++d) {
        ldmatrix_trans(r, v + Rows::at(n * 16 + row, warp * (kDims / 8) + d * 2, lane_c));
        mma<T>(o[d * 2], w[n], r[0], r[1]);
        mma<T>(o[d * 2 + 1], w[n], r[2], r[3]);
      }
    }
  } else if constexpr (kDims >= 32) {
#pragma unroll
    for (int n = 0; n < kKvTile / 16; ++n) {
#pragma unroll
      for (int d = 0; d < kDims / 32; ++d) {
        int chunk = warp * (kDims / 16) + d * 2;
        ldmatrix_trans(r, v + Rows::at(n * 16 + row, chunk, lane_c));
        load_value_scales<KV, D, kKvTile>(scales, v, n * 16, chunk, lane);
        widen_values<T, KV>(even, odd, r, scales);
        mma<M>(o[d * 4], w[n], even[0], even[1]);
        mma<M>(o[d * 4 + 1], w[n], odd[0], odd[1]);
        mma<M>(o[d * 4 + 2], w[n], even[2], even[3]);
        mma<M>(o[d * 4 + 3], w[n], odd[2], odd[3]);
      }
    }
  } else {  // a warp's dimensions are one chunk: the second pair of matrices is 16 positions on
#pragma unroll
    for (int n = 0; n < kKvTile / 16; n += 2) {
      ldmatrix_trans(r, v + Rows::at((n + lane_c) * 16 + row, warp));
      if constexpr (kIsCodes<KV>) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          scales[i] = value_scale<KV, D, kKvTile>(v, n * 16 + i * 8, warp, lane);
      }
      widen_values<T, KV>(even, odd, r, scales);
      mma<M>(o[0], w[n], even[0], even[1]);
      mma<M>(o[1], w[n], odd[0], odd[1]);
      mma<M>(o[0], w[n + 1], even[2], even[3]);
      mma<M>(o[1], w[n + 1], odd[2], odd[3]);
    }
  }
}

template <int kTiles>
__device__ void add_output(float (&total)[kTiles][4],
                           const float (&o)[kTiles][4],
                           const float (&keep)[2],
                           const float (&take)[2]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      total[n][i] = add_span(total[n][i], o[n][i], keep[i / 2], take[i / 2]);
    }
  }
}

// A state to the workspace. Sums are those of warp 0, over all threads of a row.
template <int D, int kTiles>
__device__ void store_state(float* state,
                            const float (&o)[kTiles][4],
                            const float (&max)[2],
                            const float (&sum)[2],
                            int heads) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* tail = state + state_floats(heads > 8 ? 2 : 1, D) - 2 * kHeads;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (h == 1 && heads <= 8) break;
    auto* to = reinterpret_cast<float2*>(state) + (h * (D / 8) + warp * kTiles) * 32 + lane;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) __stcg(to + n * 32, {o[n][h * 2], o[n][h * 2 + 1]});
    if (warp == 0 && lane % 4 == 0) {
      __stcg(tail + h * 8 + lane / 4, max[h]);
      __stcg(tail + kHeads + h * 8 + lane / 4, sum[h]);
    }
  }
}

// The row's states added up in ascending order; several are loaded at a time.
template <int kHalves, int D, int kTiles>
__device__ void add_states(RowTotal& total, float (&out)[kTiles][4], const float* states, int num) {
  constexpr int kBatch = D > 128 ? 4 / kHalves : 8 / kHalves;
  constexpr int kStride = state_floats(kHalves, D);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int first = 0; first < num; first += kBatch) {
    float o[kBatch][kTiles][4], max[kBatch][2], sum[kBatch][2];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const float* state = states + static_cast<int64_t>(first + b) * kStride;
      const float* tail = state + kStride - 2 * kHeads + lane / 4;
      bool in = first + b < num;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        bool some = in && h < kHalves;
        max[b][h] = some ? __ldcg(tail + h * 8) : -INFINITY;
        sum[b][h] = some ? __ldcg(tail + kHeads + h * 8) : 0;
        auto* from =
            reinterpret_cast<const float2*>(state) + (h * (D / 8) + warp * kTiles) * 32 + lane;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          float2 x = some ? __ldcg(from + n * 32) : float2{};
          o[b][n][h * 2] = x.x;
          o[b][n][h * 2 + 1] = x.y;
        }
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      float keep[2], take[2];
      total.add(max[b], sum[b], keep, take);
      add_output(out, o[b], keep, take);
    }
  }
}

// The states of what the row has in common with others, added up. kHalves 1: up to eight heads.
template <int kHalves, int D, int kTiles>
__device__ void add_prefix(RowTotal& total,
                           float (&out)[kTiles][4],
                           const SpanParams& p,
                           const Share& share) {
  constexpr int kBatch = D > 64 ? 4 : 8;
  const PrefixPlan::Group& group = p.prefixes.plan->groups[share.place >> kPrefixRowBits];
  const int row = share.place & ((1 << kPrefixRowBits) - 1), num = group.states;
  const int stride = prefix_state_floats(p.a.group, D);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float* states = p.prefix_states + group.state_at +
                        (static_cast<int64_t>(row) * p.a.kv_heads + share.kv_head) * num * stride;
  for (int first = 0; first < num; first += kBatch) {
    float o[kBatch][kTiles][4], max[kBatch][2], sum[kBatch][2];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const float* state = states + static_cast<int64_t>(first + b) * stride;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        int head = share.first_head + lane / 4 + h * 8;
        bool some = h < kHalves && first + b < num && lane / 4 + h * 8 < share.heads;
        max[b][h] = some ? __ldcg(state + p.a.group * D + head) : -INFINITY;
        sum[b][h] = some ? __ldcg(state + p.a.group * (D + 1) + head) : 0;
        auto* from =
            reinterpret_cast<const float2*>(state + head * D) + warp * kTiles * 4 + lane % 4;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          float2 x = some ? __ldcg(from + n * 4) : float2{};
          o[b][n][h * 2] = x.x;
          o[b][n][h * 2 + 1] = x.y;
        }
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      float keep[2], take[2];
      total.add(max[b], sum[b], keep, take);
      add_output(out, o[b], keep, take);
    }
  }
}

// Calls f(head, dimension, neighbours) with the thread's outputs, 2 or 4 neighbouring ones at a
// time.
template <typename KV, int kTiles, typename F>
__device__ void for_each_output(float (&o)[kTiles][4], int heads, int head_dim, F&& f) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    int head = lane / 4 + h * 8;
    if (head >= heads) continue;
    constexpr int kStep = sizeof(KV) == 1 ? 2 : 1;
#pragma unroll
    for (int n = 0; n < kTiles; n += kStep) {
      int d = output_dim<KV>(warp * kTiles + n, 0, lane);
      if (d >= head_dim) continue;
      if constexpr (sizeof(KV) == 1) {  // even and odd dimensions of four neighbours
        float x[4] = {o[n][h * 2], o[n + 1][h * 2], o[n][h * 2 + 1], o[n + 1][h * 2 + 1]};
        f(head, d, x);
      } else {
        float x[2] = {o[n][h * 2], o[n][h * 2 + 1]};
        f(head, d, x);
      }
    }
  }
}

// Totals to out.
template <typename T, typename KV, int kTiles>
__device__ void store_row(const SpanParams& p,
                          const Share& share,
                          float (&o)[kTiles][4],
                          const float (&sum)[2]) {
  const float inverse[2] = {1 / sum[0], 1 / sum[1]};
  rescale(o, inverse);
  T* out = static_cast<T*>(p.a.out) + blockIdx.z * p.a.out_stride + share.offset(p.a);
  for_each_output<KV>(o, share.heads, p.a.head_dim, [&](int head, int d, auto& x) {
    constexpr int kNum = sizeof(x) / sizeof(float);
    Pack<uint32_t, kNum / 2> packed;
    for (int i = 0; i < kNum / 2; ++i) packed.v[i] = pack<T>(x[i * 2], x[i * 2 + 1]);
    *reinterpret_cast<Pack<uint32_t, kNum / 2>*>(out + head * p.a.head_dim + d) = packed;
  });
}

// Whether this block is the last of the row's to come here: it then sees what the others stored.
__device__ inline bool last_of_row(int32_t* ticket, int splits) {
  __threadfence();
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(ticket, 1) == splits - 1;
    if (last) *ticket = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

// kPrefixes: some rows go on from states; without, more blocks fit on a multiprocessor.
template <typename T, typename KV, int D, int kStages, bool kPrefixes>
__global__ __launch_bounds__(kThreads, kPrefixes ? 3 : 1) void span_kernel(SpanParams p) {
  using Shape = SpanShape<KV, D>;
  using Q = Queries<T, KV, D>;
  constexpr int kTiles = Shape::kTiles, kStage = Shape::kStageBytes;
  extern __shared__ __align__(128) uint8_t smem[];
  __shared__ Exchange exchange;
  let_next_kernel_start();
  if constexpr (!kPrefixes) wait_for_previous_kernel();
  const Share share(p, kPrefixes);
  if (share.idle()) return;

  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Loader<KV, D> loader(p.a, share);
  int num = max(0, (share.end - share.begin + kKvTile - 1) / kKvTile);
  uint32_t stages = smem_address(smem);
  int id[kStages + 1];
#pragma unroll
  for (int j = 0; j <= kStages; ++j) id[j] = loader.fetch(share.begin + j * kKvTile);
  int next_id = id[kStages];
#pragma unroll
  for (int j = 0; j < kStages; ++j) {
    if (j < num) loader.copy(stages + j * kStage, share.begin + j * kKvTile, id[j]);
    copy_commit();
  }

  Q queries;
  const T* q = static_cast<const T*>(p.a.q) + blockIdx.z * p.a.q_stride + share.offset(p.a);
  const T* q0 = lane / 4 < share.heads ? q + lane / 4 * p.a.head_dim : nullptr;
  const T* q1 = lane / 4 + 8 < share.heads ? q + (lane / 4 + 8) * p.a.head_dim : nullptr;
  if (!Q::kShared || warp == 0) {
    queries.load(q0, q1, p.a.head_dim, stages + kStages * kStage, lane);
  } else if constexpr (kIsCodes<KV>) {
    queries.measure(q0, q1, p.a.head_dim, lane);
  }
  queries.address = stages + kStages * kStage + lane * 16;

  int64_t group_at = static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
  int stride = state_floats(share.heads > 8 ? 2 : 1, D);
  float* states = p.states + group_at * p.slots * state_floats(p.a.group > 8 ? 2 : 1, D);
  float* state_at = states + static_cast<int64_t>(share.slot) * stride;
  float o[kTiles][4] = {}, total_o[kTiles][4] = {};
  SoftmaxState state;
  RowTotal total;
  const int from[2] = {loader.lo, loader.lo}, to[2] = {loader.hi, loader.hi};
  if constexpr (kPrefixes) {
    // Every block of attend_prefixes waits for its inputs before it lets this kernel start. So
    // positions, q, K and V are complete by now; only the states are not.
    wait_for_previous_kernel();
    if (share.place >= 0 && blockIdx.x == 0) {
      p.a.group > 8 ? add_prefix<2, D>(total, total_o, p, share)
                    : add_prefix<1, D>(total, total_o, p, share);
    }
  }
  int stage = 0, freed = kStages - 1;
  copy_wait<kStages - 1>();
  __syncthreads();
  for (int j = 0; j < num; ++j) {
    int at = share.begin + j * kKvTile, own = at + warp * 16;
    uint32_t k = stages + stage * kStage;
    if (kIsCodes<KV> && at < loader.lo) {
      clear_scales<typename Shape::Scales>(k + 2 * Shape::Rows::kSize + Shape::Scales::kSize,
                                           min(loader.lo - at, kKvTile), threadIdx.x);
    }
    float s[2][4], top[2], alpha[2], shift[2];
    scores<T, KV, D, 16, kKvTile>(s, queries, k, lane, warp * 16);
    apply_softcap(s, p.a);
    if (own < loader.lo || own + 16 > loader.hi) mask(s, own, from, to, lane);
    row_tops(top, s);
    if (lane % 4 == 0) {
      exchange.top[lane / 4][warp] = top[0];
      exchange.top[lane / 4 + 8][warp] = top[1];
    }
    __syncthreads();  // the tops are there, and no warp reads the tile before any more
    if (j > 0) {
      int ahead = j + kStages - 1;
      if (ahead < num) {
        loader.copy(stages + freed * kStage, share.begin + ahead * kKvTile, next_id);
        next_id = loader.fetch(share.begin + (ahead + 1) * kKvTile);
      }
      copy_commit();
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float4 x = *reinterpret_cast<const float4*>(exchange.top[lane / 4 + h * 8]);
      top[h] = fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w));
    }
    raise_max(state, top, p.a.factor, alpha, shift);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      exchange.sums[warp][h][lane] = weigh(s[0], s[1], h, p.a.factor, shift[h]);
    }
    uint32_t w[kKvTile / 16][4];
    weights_fragment<Operand<T, KV>>(w[0], s[0], s[1]);
    exchange.weights[warp][lane] = {w[0][0], w[0][1], w[0][2], w[0][3]};
    copy_wait<kStages - 2>();
    __syncthreads();  // the weights are there, and the next tile
#pragma unroll
    for (int n = 0; n < kKvTile / 16; ++n) {
      uint4 x = exchange.weights[n][lane];
      w[n][0] = x.x, w[n][1] = x.y, w[n][2] = x.z, w[n][3] = x.w;
    }
    if (warp == 0) {  // the only one to know the sums until the end
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float sum = exchange.sums[0][h][lane];
        for (int i = 1; i < kWarps; ++i) sum += exchange.sums[i][h][lane];
        state.sum[h] = __fmaf_rn(state.sum[h], alpha[h], sum);
      }
    }
    if (__any_sync(~0u, alpha[0] != 1 || alpha[1] != 1)) rescale(o, alpha);
    accumulate_part<T, KV, D>(o, w, k + Shape::Rows::kSize, warp, lane);
    if (j + 1 == num || at + kKvTile == span_end(at)) {
      if (blockIdx.x == 0) {
        float keep[2], take[2];
        total.add(state, keep, take);
        add_output(total_o, o, keep, take);
      } else {
        const float sums[2] = {quad_sum(state.sum[0]), quad_sum(state.sum[1])};
        store_state<D>(state_at, o, state.max, sums, share.heads);
        state_at += stride;
      }
      state = {};
#pragma unroll
      for (int n = 0; n < kTiles; ++n) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0;
    }
    freed = stage;
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }

  if (share.num_slots > 1) {
    if (blockIdx.x == 0) store_state<D>(states, total_o, total.max, total.sum, share.heads);
    if (!last_of_row(p.tickets + group_at, p.splits)) return;
    total = {};
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
      total_o[n][0] = total_o[n][1] = total_o[n][2] = total_o[n][3] = 0;
    share.heads > 8 ? add_states<2, D>(total, total_o, states, share.num_slots)
                    : add_states<1, D>(total, total_o, states, share.num_slots);
  } else {
    if (warp == 0 && lane % 4 == 0) {
      exchange.totals[lane / 4] = total.sum[0];
      exchange.totals[lane / 4 + 8] = total.sum[1];
    }
    __syncthreads();
    total.sum[0] = exchange.totals[lane / 4];
    total.sum[1] = exchange.totals[lane / 4 + 8];
  }
  store_row<T, KV>(p, share, total_o, total.sum);
}

// Up to two blocks per multiprocessor, from what is known when a graph is captured.
int num_splits(int groups, int num_sms) { return std::max(1, 2 * num_sms / groups); }
// More groups than this are never split.
int max_split_groups(int num_sms) { return num_sms; }

int head_parts(const AttentionSpec& spec) {
  int group = spec.num_heads / spec.num_kv_heads;
  return (group + kHeads - 1) / kHeads;
}

// At a place that does not depend on the launch: tickets stay zero between launches of any size.
size_t ticket_bytes(int num_sms) {
  return (static_cast<size_t>(max_split_groups(num_sms)) * sizeof(int32_t) + 255) / 256 * 256;
}

// Three stages, or two where there is little shared memory. Heads above 128 come only where there
// is much (has_tile_kernel()).
template <typename T, typename KV, int D, bool kPrefixes, int kStages = 3>
void launch(const SpanParams& p, dim3 grid, cudaStream_t stream) {
  constexpr size_t kBytes =
      kStages * SpanShape<KV, D>::kStageBytes + Queries<T, KV, D>::kSharedBytes;
  constexpr size_t kTaken = kBytes + sizeof(Exchange) + 1024;  // the last: what the kernel has else
  if constexpr (kTaken > kLeastShared && D <= 128) {
    static_assert(kStages > 2);
    if (kTaken > target().shared) return launch<T, KV, D, kPrefixes, 2>(p, grid, stream);
  }
  allow_shared<span_kernel<T, KV, D, kStages, kPrefixes>>(kBytes, "attention decode");
  sluice::cuda::launch("attention decode", span_kernel<T, KV, D, kStages, kPrefixes>, grid,
                       kThreads, kBytes, stream, p);
}

}  // namespace

size_t spans_workspace(const AttentionSpec& spec, int max_decode, int max_positions, int num_sms) {
  int group = spec.num_heads / spec.num_kv_heads;
  int groups =
      std::min(max_decode * spec.num_kv_heads * head_parts(spec), max_split_groups(num_sms));
  size_t state = state_floats(group > 8 ? 2 : 1, template_dim(spec.head_dim)) * sizeof(float);
  return ticket_bytes(num_sms) + static_cast<size_t>(groups) * num_spans(max_positions) * state;
}

void attend_spans(const AttentionArgs& args, int num, cudaStream_t stream) {
  SpanParams p;
  p.a = make_params(args);
  p.head_parts = head_parts(args.spec);
  p.slots = num_spans(args.max_positions);
  p.prefixes = args.prefixes;
  p.prefix_states = args.prefix_states;
  int units = args.spec.num_kv_heads * p.head_parts;
  p.splits = num_splits(num * units, args.num_sms);
  p.tickets = static_cast<int32_t*>(args.workspace);
  p.states =
      reinterpret_cast<float*>(static_cast<uint8_t*>(args.workspace) + ticket_bytes(args.num_sms));
  dim3 grid(p.splits, units, num);
  with_tile_kernel(args.type, args.kv_type, args.spec.head_dim, [&](auto t, auto kv, auto dim) {
    using T = decltype(t);
    using KV = decltype(kv);
    constexpr int kDim = decltype(dim)::value;
    if constexpr (kDim <= 128) {
      // Rows have little of their own: more blocks rather than more stages.
      if (p.prefixes.plan) return launch<T, KV, kDim, true, 2>(p, grid, stream);
    }
    launch<T, KV, kDim, false>(p, grid, stream);
  });
}

}  // namespace sluice::cuda
