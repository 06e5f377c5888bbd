// Attention over what decode rows have in common (attention_prefix.cu) on Hopper's warpgroup matrix
// instructions: 128 (row, head) pairs of a group at a time, as attention_wgmma.cu has those of a
// slice.
#include "backend/cuda/attention_prefix_item.cuh"
#include "backend/cuda/attention_wgmma.cuh"
#include "backend/cuda/check.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/target.cuh"

namespace sluice::cuda {
namespace {

template <typename T, int D>
__device__ void run_item(const PrefixParams& params, const PrefixItem& item, uint8_t* smem) {
  constexpr int kStages = Layout<D, true>::kStages;
  const AttentionParams& p = params.a;
  const int32_t* members = params.view.members + item.group.first;
  int lane = threadIdx.x % 32, group = threadIdx.x / 128;
  int total = item.group.rows * p.group;
  bool pair = item.first_row + 64 < total;  // both warpgroups have rows
  int begin = item.begin(), num = (item.end() - begin) / kKvTile;
  uint32_t stages = smem_address(smem), full = stages + Layout<D, true>::kBarriers;
  uint32_t empty = full + kStages * 8;
  if (threadIdx.x < kStages) {
    barrier_init(full + threadIdx.x * 8, kWgmmaThreads);
    barrier_init(empty + threadIdx.x * 8, pair ? kWgmmaThreads : kWgmmaThreads / 2);
  }
  Tile tile{};
  tile.slice.slot = p.row_slot[members[0]];
  tile.kv_head = item.kv_head;
  tile.first = item.first_row;
  Ring<D, true> ring{stages, full, empty, begin, num, {p, tile, begin, item.end()}};

  ring.loader.fetch(begin);
  uint32_t q_smem = ring.k(kStages - 1);  // not filled before step 1: q has been read by then
  QueryLoader<T, D>::copy(q_smem, p, tile, total,
                          [&](int query) -> int64_t { return members[query]; });
  copy_commit();
  ring.start();
  __syncthreads();
  Queries<T, T, D> queries;
  QueryLoader<T, D>::load(queries, q_smem);
  ring.finish_first();
  if (group == 1 && !pair) {
    for (int i = 0; i < num; ++i) {
      if (i > 0) ring.wait(i);  // so that q has been read before its stage is filled
      ring.step(i);
    }
    return;
  }

  const int first = item.first_row + threadIdx.x / 32 * 16 + lane / 4;
  const int row[2] = {first, first + 8};
  const bool adds_up = item.adds_up();
  int place = item.first_state(params);
  float o[D / 8][4] = {}, s[kKvTile / 8][4] = {};
  SoftmaxState state;
  SpanOutput<D, kWgmmaThreads> before(smem + Layout<D, true>::kTotal);
  ring.wait(0);
  queue_scores<T, D>(s, queries, ring.k(0));
  wgmma_wait<0>();
  pin(s);
  for (int i = 0; i < num; ++i) {
    int at = begin + i * kKvTile;
    // The factors of the span before and of the output so far, or that span's maxima and sums.
    float alpha[2], keep[2], take[2];
    bool new_span = i > 0 && at == span_end(at - kKvTile);
    if (new_span) {
      if (adds_up) {
        before.total.add(state, keep, take);
      } else {
#pragma unroll
        for (int h = 0; h < 2; ++h) keep[h] = state.max[h], take[h] = quad_sum(state.sum[h]);
      }
      state = {};
    }
    uint32_t weights[kKvTile / 16][4];
    apply_softcap(s, p);
    online_softmax(s, p.factor, state, alpha);
    finish_before_wait(state.sum[0] + state.sum[1], ring.stages);
    wgmma_wait<0>();  // the previous tile's sum, which reads the registers of its weights
    pin(o);
    pin(s);
    if (i > 0) ring.release(i - 1);
#pragma unroll
    for (int n = 0; n < kKvTile / 16; ++n) {
      weights_fragment<T>(weights[n], s[n * 2], s[n * 2 + 1]);
    }
    if (new_span && adds_up) {
      before.add(o, keep, take);
    } else if (new_span) {
      store_state<D>(params, item, row, place++, o, keep, take);
    } else if (__any_sync(~0u, alpha[0] != 1 || alpha[1] != 1)) {
      rescale(o, alpha);
    }
    ring.step(i);
    if (i + 1 < num) ring.wait(i + 1);
    pin(o);
    pin(s);
    if (i + 1 < num) queue_scores<T, D>(s, queries, ring.k(i + 1));
    queue_sum<T, D>(o, weights, ring.v(i), new_span);
    wgmma_wait<1>();  // the next scores; nothing after the last tile
    pin(s);
  }
  wgmma_wait<0>();
  pin(o);
  if (adds_up) {
    before.template finish<true>(o, state);
    store_state<D>(params, item, row, 0, o, before.total.max, before.total.sum);
  } else {
    const float sums[2] = {quad_sum(state.sum[0]), quad_sum(state.sum[1])};
    store_state<D>(params, item, row, place, o, state.max, sums);
  }
}

template <typename T, int D>
__global__ __launch_bounds__(kWgmmaThreads, 1) void prefix_wgmma_kernel(PrefixParams params) {
#if SLUICE_HAS_WGMMA
  extern __shared__ __align__(1024) uint8_t smem[];
  wait_for_previous_kernel();
  let_next_kernel_start();  // attend_spans reads what those before have left
  const PrefixPlan& plan = *params.view.plan;
  const int num = plan.num_items * params.a.kv_heads;
  for (int i = blockIdx.x; i < num; i += gridDim.x) {
    if (i != blockIdx.x) {  // the stages and barriers serve once more
      copy_wait<0>();
      __syncthreads();
      constexpr int kStages = Layout<D, true>::kStages;
      if (threadIdx.x < 2 * kStages)
        barrier_end(smem_address(smem) + Layout<D, true>::kBarriers + threadIdx.x * 8);
      __syncthreads();
    }
    run_item<T, D>(params, PrefixItem(plan, i, params.a.kv_heads), smem);
  }
#else
  __trap();
#endif
}

template <typename T, int D>
void launch(const PrefixParams& params, int num_sms, cudaStream_t stream) {
  constexpr int kBytes = Layout<D, true>::kBytes;
  allow_shared<prefix_wgmma_kernel<T, D>>(kBytes, "attention prefix");
  sluice::cuda::launch("attention prefix", prefix_wgmma_kernel<T, D>, num_sms, kWgmmaThreads,
                       kBytes, stream, params);
}

}  // namespace

void launch_prefix_wgmma(const PrefixParams& params, DType type, int num_sms, cudaStream_t stream) {
  const bool small = params.a.head_dim <= 64;
  if (type == DType::f16) {
    small ? launch<__half, 64>(params, num_sms, stream)
          : launch<__half, 128>(params, num_sms, stream);
  } else {
    small ? launch<__nv_bfloat16, 64>(params, num_sms, stream)
          : launch<__nv_bfloat16, 128>(params, num_sms, stream);
  }
}

}  // namespace sluice::cuda
