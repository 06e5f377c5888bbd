// Shared by the kernels of common prefixes: their arguments, the part of a group that an item is,
// and the place of its states. Device code.
#pragma once

#include "backend/cuda/attention_prefill.cuh"
#include "backend/cuda/attention_prefix.cuh"

namespace sluice::cuda {

struct PrefixParams {
  AttentionParams a;
  PrefixView view;
  float* states;
};

// The kernel on Hopper's warpgroup matrix instructions: K and V in `type`, heads of up to 128.
void launch_prefix_wgmma(const PrefixParams& params, DType type, int num_sms, cudaStream_t stream);

struct PrefixItem {
  PrefixPlan::Group group;
  int kv_head;
  int first_row;  // of the group's (row, head) pairs
  int first_span, end_span;

  __device__ PrefixItem(const PrefixPlan& plan, int index, int kv_heads) {
    kv_head = index % kv_heads;
    index /= kv_heads;
    int g = 0;
    for (; index >= plan.groups[g].tiles * plan.groups[g].chunks; ++g)
      index -= plan.groups[g].tiles * plan.groups[g].chunks;
    group = plan.groups[g];
    first_row = index % group.tiles * plan.tile;
    first_span = index / group.tiles * plan.chunk;
    end_span = min(first_span + plan.chunk, group.spans);
  }
  __device__ int begin() const { return span_begin(first_span); }
  __device__ int end() const { return min(span_begin(end_span), group.positions); }
  // The first item's spans are added up and leave state 0.
  __device__ bool adds_up() const { return first_span == 0; }
  __device__ int first_state(const PrefixParams& p) const {
    return first_span - p.view.plan->chunk + 1;
  }
};

// A state of the thread's two rows (lane / 4 and + 8 of its warp's 16), which may lie beyond the
// group's; o as accumulate() leaves it.
template <int D>
__device__ void store_state(const PrefixParams& params,
                            const PrefixItem& item,
                            const int (&row)[2],
                            int state,
                            const float (&o)[D / 8][4],
                            const float (&max)[2],
                            const float (&sum)[2]) {
  const AttentionParams& p = params.a;
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    int member = p.query_of(row[h]), head = row[h] - member * p.group;
    if (member >= item.group.rows) continue;
    int64_t index = (static_cast<int64_t>(member) * p.kv_heads + item.kv_head) * item.group.states;
    float* to =
        params.states + item.group.state_at + (index + state) * prefix_state_floats(p.group, D);
    auto* pairs = reinterpret_cast<float2*>(to + head * D) + lane % 4;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) __stcg(pairs + n * 4, {o[n][h * 2], o[n][h * 2 + 1]});
    if (lane % 4 == 0) {
      __stcg(to + p.group * D + head, max[h]);
      __stcg(to + p.group * (D + 1) + head, sum[h]);
    }
  }
}

}  // namespace sluice::cuda
