// Attention over the positions that decode rows have in common: a tile's 64 (row, head) pairs read
// K and V once for all its rows, where attend_spans reads them for each. An item is a tile of a
// group's rows, a kv head, and some of the prefix's spans. It leaves states, and attend_spans goes
// on from them: every score, weight and sum is computed and added up as without a group, so that a
// row's bits are the same. A fixed number of blocks takes the items in turns: which groups there
// are may change under a captured graph.
#include <algorithm>

#include "backend/cuda/attention_kinds.cuh"
#include "backend/cuda/attention_prefill.cuh"
#include "backend/cuda/attention_prefix.cuh"
#include "backend/cuda/check.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/target.cuh"

namespace sluice::cuda {
namespace {

constexpr int kWarps = kPrefixTile / 16;
constexpr int kThreads = kWarps * 32;
constexpr int64_t kStateBytes = 32 << 20;  // for states, where rows do not need more

template <typename KV, int D>
constexpr int kRowsBytes = kKvTile* D* static_cast<int>(sizeof(KV));
template <typename KV, int D>
constexpr int kStageBytes = 2 * (kRowsBytes<KV, D> + ScaleRows<KV, D, kKvTile>::kSize);

// Shared memory: stages, then the output of earlier spans.
template <typename KV, int D, int kStages>
constexpr size_t kShared = kStages* kStageBytes<KV, D> + SpanOutput<D, kThreads>::kBytes;

struct PrefixParams {
  AttentionParams a;
  PrefixView view;
  float* states;
};

struct Item {
  PrefixPlan::Group group;
  int kv_head, tile, first_span, end_span;

  __device__ Item(const PrefixPlan& plan, int index, int kv_heads) {
    kv_head = index % kv_heads;
    index /= kv_heads;
    int g = 0;
    for (; index >= plan.groups[g].tiles * plan.groups[g].chunks; ++g)
      index -= plan.groups[g].tiles * plan.groups[g].chunks;
    group = plan.groups[g];
    tile = index % group.tiles;
    first_span = index / group.tiles * plan.chunk;
    end_span = min(first_span + plan.chunk, group.spans);
  }
  __device__ int begin() const { return span_begin(first_span); }
  __device__ int end() const { return min(span_begin(end_span), group.positions); }
};

// A thread's two rows of a tile: their output's states, null where there is no row.
template <int D>
struct StateRows {
  float* output[2] = {nullptr, nullptr};  // of the first state
  int head[2] = {0, 0};
  int stride;  // of states

  __device__ void store(int state,
                        const AttentionParams& p,
                        const float (&o)[D / 8][4],
                        const float (&max)[2],
                        const float (&sum)[2]) const {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!output[h]) continue;
      float* to = output[h] + static_cast<int64_t>(state) * stride;
      auto* pairs = reinterpret_cast<float2*>(to + head[h] * D) + lane % 4;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) __stcg(pairs + n * 4, {o[n][h * 2], o[n][h * 2 + 1]});
      if (lane % 4 == 0) {
        __stcg(to + p.group * D + head[h], max[h]);
        __stcg(to + p.group * (D + 1) + head[h], sum[h]);
      }
    }
  }
};

template <typename T, typename KV, int D, int kStages>
__device__ void run_item(const PrefixParams& params, const Item& item, uint8_t* smem) {
  constexpr int kStage = kStageBytes<KV, D>;
  const AttentionParams& p = params.a;
  const PrefixPlan::Group& group = item.group;
  const int32_t* members = params.view.members + group.first;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int total = group.rows * p.group, first = item.tile * kPrefixTile + warp * 16;
  bool works = first < total;
  int begin = item.begin(), num = (item.end() - begin) / kKvTile;

  uint32_t stages = smem_address(smem);
  Tile tile{};
  tile.slice.slot = p.row_slot[members[0]];
  tile.kv_head = item.kv_head;
  using Scales = ScaleRows<KV, D, kKvTile>;
  TileLoader<kThreads, D* static_cast<int>(sizeof(KV)), Scales> loader(p, tile, begin, item.end());
  loader.fetch(begin);
  loader.copy(stages, begin);
  copy_commit();
  loader.fetch(begin + kKvTile);

  StateRows<D> rows;
  rows.stride = prefix_state_floats(p.group, D);
  const T* q[2] = {nullptr, nullptr};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    int row = first + lane / 4 + h * 8;
    if (row >= total) continue;
    int member = p.query_of(row), head = row - member * p.group;
    q[h] = static_cast<const T*>(p.q) + members[member] * p.q_stride +
           static_cast<int64_t>(item.kv_head * p.group + head) * p.head_dim;
    rows.head[h] = head;
    rows.output[h] =
        params.states + group.state_at +
        (static_cast<int64_t>(member) * p.kv_heads + item.kv_head) * group.states * rows.stride;
  }
  Queries<T, KV, D> queries;
  queries.load(q[0], q[1], p.head_dim, 0, lane);

  float o[D / 8][4] = {};
  SoftmaxState state;
  SpanOutput<D, kThreads> before(smem + kStages * kStage);
  const bool folds = item.first_span == 0;
  int place = item.first_span - params.view.plan->chunk + 1;
  for (int i = 0; i < num; ++i) {
    int at = begin + i * kKvTile;
    copy_wait<0>();
    __syncthreads();
    uint32_t k = stages + (i & (kStages - 1)) * kStage, v = k + kRowsBytes<KV, D>;
    auto copy_next = [&] {
      if (i + 1 < num) {
        loader.copy(stages + ((i + 1) & (kStages - 1)) * kStage, at + kKvTile);
        loader.fetch(at + 2 * kKvTile);
      }
      copy_commit();
    };
    if constexpr (kStages == 2) {
      copy_next();
      if (!works) continue;
    }
    float s[kKvTile / 8][4], alpha[2];
    scores<T, KV, D, kKvTile>(s, queries, k, lane);
    apply_softcap(s, p);
    online_softmax(s, p.factor, state, alpha);
    rescale(o, alpha);
    accumulate<T, KV, D, kKvTile>(o, s, v, lane);
    if (at + kKvTile == span_end(at)) {
      if (!folds) {
        const float sums[2] = {quad_sum(state.sum[0]), quad_sum(state.sum[1])};
        rows.store(place++, p, o, state.max, sums);
#pragma unroll
        for (int n = 0; n < D / 8; ++n) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0;
        state = {};
      } else if (i + 1 < num) {
        float keep[2], take[2];
        before.total.add(state, keep, take);
        before.add(o, keep, take);
        state = {};
      }
    }
    if constexpr (kStages == 1) {
      __syncthreads();  // all warps have read the tile
      copy_next();
    }
  }
  if (folds && works) {
    before.template finish<true>(o, state);
    rows.store(0, p, o, before.total.max, before.total.sum);
  }
}

template <typename T, typename KV, int D, int kStages>
__global__ __launch_bounds__(kThreads) void prefix_kernel(PrefixParams params) {
  extern __shared__ __align__(128) uint8_t smem[];
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int num = params.view.plan->num_items * params.a.kv_heads;
  for (int i = blockIdx.x; i < num; i += gridDim.x) {
    if (i != blockIdx.x) __syncthreads();  // all warps are done with the stages
    run_item<T, KV, D, kStages>(params, Item(*params.view.plan, i, params.a.kv_heads), smem);
  }
}

template <typename T, typename KV, int D, int kStages = 2>
void launch(const PrefixParams& params, int blocks, cudaStream_t stream) {
  constexpr size_t kBytes = kShared<KV, D, kStages>;
  if constexpr (kBytes > kLeastShared) {
    static_assert(kStages > 1);
    if (kBytes > target().shared) return launch<T, KV, D, 1>(params, blocks, stream);
  }
  allow_shared<prefix_kernel<T, KV, D, kStages>>(kBytes, "attention prefix");
  sluice::cuda::launch("attention prefix", prefix_kernel<T, KV, D, kStages>, blocks, kThreads,
                       kBytes, stream, params);
}

}  // namespace

PrefixSizes prefix_sizes(const AttentionSpec& spec, int max_decode, int num_sms) {
  if (spec.head_dim > 128) return {};
  PrefixSizes s;
  s.kv_heads = spec.num_kv_heads;
  s.group = spec.num_heads / spec.num_kv_heads;
  s.state_floats = prefix_state_floats(s.group, template_dim(spec.head_dim));
  s.blocks = 2 * num_sms;
  s.capacity =
      std::max(kStateBytes / static_cast<int64_t>(sizeof(float)),
               int64_t{std::min(max_decode, kMaxPrefixRows)} * s.kv_heads * s.state_floats);
  return s;
}

void attend_prefixes(const AttentionArgs& args, cudaStream_t stream) {
  PrefixParams params{make_params(args), args.prefixes, args.prefix_states};
  with_cache_types(args.type, args.kv_type, [&](auto t, auto kv) {
    using T = decltype(t);
    using KV = decltype(kv);
    args.spec.head_dim <= 64 ? launch<T, KV, 64>(params, 2 * args.num_sms, stream)
                             : launch<T, KV, 128>(params, 2 * args.num_sms, stream);
  });
}

}  // namespace sluice::cuda
