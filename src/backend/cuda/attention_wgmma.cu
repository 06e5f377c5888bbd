// Attention of slices on Hopper's warpgroup matrix instructions: f16, bf16, f8 or i8 cache,
// head_dim up to 128. Two warpgroups of a block take 64 (query, head) rows each, with q, scores and
// output in registers, and share the K and V tiles of 64 positions in shared memory, through a ring
// of stages that lets one do its softmax while the other has the tensor cores. A warpgroup queues
// the scores of its next tile and the weighted sum of this one together, so that its own softmax
// overlaps too.
#include "backend/cuda/attention_bytes.cuh"
#include "backend/cuda/attention_kinds.cuh"
#include "backend/cuda/attention_prefill.cuh"
#include "backend/cuda/attention_wgmma.cuh"
#include "backend/cuda/check.cuh"

namespace sluice::cuda {
namespace {

// The same of an 8-bit cache: tile i + 3 is loaded into registers while tile i is in work, and
// written to its stage a step later.
template <typename KV, int D>
struct WideningRing {
  using Loader = WideningLoader<KV, kWgmmaThreads, D>;
  static constexpr int kStages = Layout<D, false>::kStages;
  uint32_t stages, full, empty;
  int begin, num;
  Loader loader;
  typename Loader::Bytes first, ahead;

  __device__ uint32_t k(int i) const { return stages + i % kStages * kStageBytes<D>; }
  __device__ uint32_t v(int i) const { return k(i) + kStageBytes<D> / 2; }

  // Tile i, whose ids are there; then the ids of the next.
  __device__ void load(typename Loader::Bytes& to, int i) {
    if (i >= num) return;
    loader.load(to, begin + i * kKvTile);
    loader.fetch(begin + (i + 1) * kKvTile);
  }
  __device__ void put(const typename Loader::Bytes& from, int i) {
    if (i >= num) return;
    if (i >= kStages) barrier_wait(empty + i % kStages * 8, i / kStages - 1);
    loader.store(from, k(i));
    publish_copies();
    barrier_arrive(full + i % kStages * 8);
  }
  __device__ void wait(int i) { barrier_wait(full + i % kStages * 8, i / kStages); }
  __device__ void release(int i) { barrier_arrive(empty + i % kStages * 8); }
  __device__ void start() {
    load(first, 0);
    load(ahead, 1);
    copy_wait<0>();
  }
  __device__ void finish_first() {
    put(first, 0);
    put(ahead, 1);
    load(ahead, 2);
  }
  __device__ void step(int i) {
    put(ahead, i + 2);
    load(ahead, i + 3);
  }
};

template <typename KV, int D, bool kSpans>
using RingOf = std::conditional_t<sizeof(KV) == 1, WideningRing<KV, D>, Ring<D, kSpans>>;

// An 8-bit cache is multiplied in halves. Its kernels do not add up by spans, whose bits must be
// those of launch_mma().
template <typename T, typename KV, int D, bool kSpans>
__global__ __launch_bounds__(kWgmmaThreads, D <= 64 ? 2 : 1) void wgmma_kernel(TilePlan plan) {
#if SLUICE_HAS_WGMMA
  constexpr int kStages = Layout<D, kSpans>::kStages;
  constexpr bool kBytes = sizeof(KV) == 1;
  constexpr bool kUnits = kBytes && std::is_same_v<T, __nv_bfloat16>;
  static_assert(!(kBytes && kSpans));
  using M = std::conditional_t<kBytes, __half, T>;
  using TileRing = RingOf<KV, D, kSpans>;
  extern __shared__ __align__(1024) uint8_t smem[];
  wait_for_previous_kernel();
  Tile tile;
  if (!find_tile<kWgmmaRows>(plan, tile)) return;
  const AttentionParams& p = plan.a;
  TileView<kWgmmaRows> view(tile, p);
  int lane = threadIdx.x % 32, group = threadIdx.x / 128;
  bool pair = tile.first + 64 < view.total;  // both warpgroups have rows
  int begin = view.lo / kKvTile * kKvTile;
  int num = (view.hi - begin + kKvTile - 1) / kKvTile;
  uint32_t stages = smem_address(smem), full = stages + Layout<D, kSpans>::kBarriers;
  uint32_t empty = full + kStages * 8;
  if (threadIdx.x < kStages) {
    barrier_init(full + threadIdx.x * 8, kWgmmaThreads);
    barrier_init(empty + threadIdx.x * 8, pair ? kWgmmaThreads : kWgmmaThreads / 2);
  }
  TileRing ring{stages, full, empty, begin, num, {p, tile, view.lo, view.hi}};

  ring.loader.fetch(begin);
  // A stage that is not filled before step 1: q has been read by then.
  uint32_t q_smem = ring.k(kStages - 1);
  QueryLoader<T, D>::copy(q_smem, p, tile, view.total,
                          [&](int query) -> int64_t { return tile.slice.row + query; });
  copy_commit();
  ring.start();
  __syncthreads();
  Queries<M, M, D> queries;
  QueryLoader<M, D>::load(queries, q_smem);
  float unit[2];
  if constexpr (kUnits) halve_queries<D>(queries.f, unit);
  ring.finish_first();
  if (group == 1 && !pair) {
    for (int i = 0; i < num; ++i) {
      if (i > 0) ring.wait(i);  // so that q has been read before its stage is filled
      ring.step(i);
    }
    return;
  }

  float o[D / 8][4] = {}, s[kKvTile / 8][4] = {};
  SoftmaxState state;
  SpanOutput<D, kWgmmaThreads> before(smem + Layout<D, kSpans>::kTotal);
  ring.wait(0);
  queue_scores<M, D>(s, queries, ring.k(0));
  wgmma_wait<0>();
  pin(s);
  for (int i = 0; i < num; ++i) {
    int at = begin + i * kKvTile;
    float alpha[2], keep[2], take[2];
    bool new_span = kSpans && i > 0 && at == span_end(at - kKvTile);
    if (new_span) {
      before.total.add(state, keep, take);
      state = {};
    }
    uint32_t weights[kKvTile / 16][4];
    if constexpr (kUnits) {
#pragma unroll
      for (int n = 0; n < kKvTile / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) s[n][c] *= unit[c / 2];
      }
    }
    apply_softcap(s, p);
    if (view.needs_mask(at)) mask(s, at, view.from, view.to, lane);
    online_softmax(s, p.factor, state, alpha);
    finish_before_wait(state.sum[0] + state.sum[1], ring.stages);
    wgmma_wait<0>();  // the previous tile's sum, which reads the registers of its weights
    pin(o);
    pin(s);
    if (i > 0) ring.release(i - 1);
#pragma unroll
    for (int n = 0; n < kKvTile / 16; ++n) {
      weights_fragment<M>(weights[n], s[n * 2], s[n * 2 + 1]);
    }
    if (new_span) {
      before.add(o, keep, take);
    } else if (__any_sync(~0u, alpha[0] != 1 || alpha[1] != 1)) {
      rescale(o, alpha);
    }
    if constexpr (!kBytes) ring.step(i);
    if (i + 1 < num) ring.wait(i + 1);
    pin(o);
    pin(s);
    if (i + 1 < num) queue_scores<M, D>(s, queries, ring.k(i + 1));
    queue_sum<M, D>(o, weights, ring.v(i), new_span);
    if constexpr (kBytes) ring.step(i);  // widens a tile while the tensor cores work
    wgmma_wait<1>();                     // the next scores; nothing after the last tile
    pin(s);
  }
  wgmma_wait<0>();
  pin(o);
  before.template finish<kSpans>(o, state);
  store_output<T, T, D, kWgmmaRows>(o, before.total, plan, tile, view);
#else
  __trap();
#endif
}

template <typename T, typename KV, int D, bool kSpans>
void launch(TilePlan plan, std::span<const SliceView> slices, cudaStream_t stream) {
  constexpr int kBytes = Layout<D, kSpans>::kBytes;
  plan_tiles(plan, slices, kWgmmaRows);
  allow_shared<wgmma_kernel<T, KV, D, kSpans>>(kBytes, "attention prefill");
  wgmma_kernel<T, KV, D, kSpans>
      <<<plan.num_tiles * plan.a.kv_heads, kWgmmaThreads, kBytes, stream>>>(plan);
  check_launch("attention prefill");
}

template <typename T, typename KV, bool kSpans>
void launch_dim(const TilePlan& plan, std::span<const SliceView> slices, cudaStream_t stream) {
  if (plan.a.head_dim <= 64) return launch<T, KV, 64, kSpans>(plan, slices, stream);
  launch<T, KV, 128, kSpans>(plan, slices, stream);
}

}  // namespace

void launch_wgmma(TilePlan plan,
                  DType type,
                  KvType kv_type,
                  bool spans,
                  std::span<const SliceView> slices,
                  cudaStream_t stream) {
  with_cache_types(type, kv_type, [&](auto t, auto kv) {
    using T = decltype(t);
    using KV = decltype(kv);
    if constexpr (sizeof(KV) == 2) {
      if (spans) return launch_dim<T, KV, true>(plan, slices, stream);
    }
    launch_dim<T, KV, false>(plan, slices, stream);
  });
}

}  // namespace sluice::cuda
