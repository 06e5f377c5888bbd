// Attention over the positions that decode rows have in common: a tile of 64 or 128 (row, head)
// pairs reads K and V once for all its rows, where attend_spans reads them for each. An item is a
// tile of a group's rows, a kv head, and some of the prefix's spans. It leaves states, and
// attend_spans goes on from them: every score, weight and sum is computed and added up as without a
// group, so that a row's bits are the same. A fixed number of blocks takes the items in turns:
// which groups there are may change under a captured graph. This file has the sizes, and the kernel
// through mma.sync for every cache; attention_prefix_wgmma.cu has Hopper's for 16 bits.
#include <algorithm>

#include "backend/cuda/attention_kinds.cuh"
#include "backend/cuda/attention_prefill.cuh"
#include "backend/cuda/attention_prefix_item.cuh"
#include "backend/cuda/check.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/target.cuh"

namespace sluice::cuda {
namespace {

constexpr int kRows = 64;
constexpr int kThreads = kRows / 16 * 32;
constexpr int64_t kStateBytes = 32 << 20;  // for states, where rows do not need more

template <typename KV, int D>
constexpr int kRowsBytes = kKvTile* D* static_cast<int>(sizeof(KV));
template <typename KV, int D>
constexpr int kStageBytes = 2 * (kRowsBytes<KV, D> + ScaleRows<KV, D, kKvTile>::kSize);

// Shared memory: stages, then the output of earlier spans.
template <typename KV, int D, int kStages>
constexpr size_t kShared = kStages* kStageBytes<KV, D> + SpanOutput<D, kThreads>::kBytes;

template <typename T, typename KV, int D, int kStages>
__device__ void run_item(const PrefixParams& params, const PrefixItem& item, uint8_t* smem) {
  constexpr int kStage = kStageBytes<KV, D>;
  const AttentionParams& p = params.a;
  const PrefixPlan::Group& group = item.group;
  const int32_t* members = params.view.members + group.first;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int total = group.rows * p.group, first = item.first_row + warp * 16;
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

  const T* q[2] = {nullptr, nullptr};
  int row[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    row[h] = first + lane / 4 + h * 8;
    if (row[h] >= total) continue;
    int member = p.query_of(row[h]), head = row[h] - member * p.group;
    q[h] = static_cast<const T*>(p.q) + members[member] * p.q_stride +
           static_cast<int64_t>(item.kv_head * p.group + head) * p.head_dim;
  }
  Queries<T, KV, D> queries;
  queries.load(q[0], q[1], p.head_dim, 0, lane);

  float o[D / 8][4] = {};
  SoftmaxState state;
  SpanOutput<D, kThreads> before(smem + kStages * kStage);
  const bool folds = item.adds_up();
  int place = item.first_state(params);
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
        store_state<D>(params, item, row, place++, o, state.max, sums);
        clear(o);
        state = {};
      } else if (i + 1 < num) {
        float keep[2], take[2];
        before.total.add(state, keep, take);
        before.add(o, keep, take);
        clear(o);
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
    store_state<D>(params, item, row, 0, o, before.total.max, before.total.sum);
  }
}

template <typename T, typename KV, int D, int kStages>
__global__ __launch_bounds__(kThreads) void prefix_kernel(PrefixParams params) {
  extern __shared__ __align__(128) uint8_t smem[];
  wait_for_previous_kernel();
  let_next_kernel_start();  // attend_spans reads what those before have left
  const PrefixPlan& plan = *params.view.plan;
  const int halves = plan.tile / kRows, num = plan.num_items * params.a.kv_heads * halves;
  for (int i = blockIdx.x; i < num; i += gridDim.x) {
    if (i != blockIdx.x) __syncthreads();  // all warps are done with the stages
    PrefixItem item(plan, i / halves, params.a.kv_heads);
    item.first_row += i % halves * kRows;
    if (item.first_row < item.group.rows * params.a.group)
      run_item<T, KV, D, kStages>(params, item, smem);
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
  s.tile = has_wgmma() ? 2 * kRows : kRows;
  s.blocks = 2 * num_sms * kRows / s.tile;
  s.capacity =
      std::max(kStateBytes / static_cast<int64_t>(sizeof(float)),
               int64_t{std::min(max_decode, kMaxPrefixRows)} * s.kv_heads * s.state_floats);
  return s;
}

void attend_prefixes(const AttentionArgs& args, cudaStream_t stream) {
  PrefixParams params{make_params(args), args.prefixes, args.prefix_states};
  if (has_wgmma() && args.kv_type.type == args.type)
    return launch_prefix_wgmma(params, args.type, args.num_sms, stream);
  with_cache_types(args.type, args.kv_type, [&](auto t, auto kv) {
    using T = decltype(t);
    using KV = decltype(kv);
    args.spec.head_dim <= 64 ? launch<T, KV, 64>(params, 2 * args.num_sms, stream)
                             : launch<T, KV, 128>(params, 2 * args.num_sms, stream);
  });
}

}  // namespace sluice::cuda
