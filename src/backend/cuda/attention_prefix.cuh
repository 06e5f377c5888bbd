// Attention over what decode rows have in common (prefix_groups.h): sizes, and the plan of a step.
// The kernels are in attention_prefix.cu and, for what each row has of its own, attention_spans.cu.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/backend.h"
#include "backend/prefix_groups.h"
#ifdef __CUDACC__
#include "backend/cuda/span_places.cuh"
#endif

namespace sluice::cuda {

// The sizes that a plan depends on besides its groups. kv_heads 0: this GPU has no such attention.
struct PrefixSizes {
  int kv_heads = 0, group = 0;  // query heads of a kv head
  int state_floats = 0;         // of a row's query heads of one kv head
  int tile = 0;                 // (row, head) pairs of an item
  int blocks = 0;               // items that are computed at the same time
  int64_t capacity = 0;         // floats for states
};

// A state of a row and kv head: the output of its query heads [group, dim], their maxima, their
// sums. dim: the kernel's (template_dim). A row's states of a kv head lie behind each other, and
// the kv heads of a row.
constexpr int prefix_state_floats(int group, int dim) { return group * (dim + 2); }

// For decode rows of up to max_decode.
PrefixSizes prefix_sizes(const AttentionSpec& spec, int max_decode, int num_sms);
inline size_t prefix_bytes(const PrefixSizes& s) {
  return static_cast<size_t>(s.capacity) * sizeof(float);
}

#ifdef __CUDACC__
// A row's first so many spans are added up by one item, and leave one state; each further one its
// own.
__device__ inline int prefix_states(int spans, int chunk) { return 1 + max(0, spans - chunk); }

// Items get so many spans that all blocks have work once, or more where the states of so small
// items have no room. One thread.
__device__ inline void plan_prefixes(PrefixPlan& plan,
                                     const PrefixGroup* groups,
                                     int num,
                                     const PrefixSizes& sizes) {
  int64_t work = 0;
  int longest = 1;
  for (int g = 0; g < num; ++g) {
    PrefixPlan::Group& to = plan.groups[g];
    to.first = groups[g].first, to.rows = groups[g].rows, to.positions = groups[g].positions;
    to.spans = span_of(to.positions - 1) + 1;
    to.tiles = (to.rows * sizes.group + sizes.tile - 1) / sizes.tile;
    work += int64_t{to.tiles} * to.spans * sizes.kv_heads;
    longest = max(longest, to.spans);
  }
  int chunk = max(1, static_cast<int>((work + sizes.blocks - 1) / sizes.blocks));
  const int64_t row_floats = int64_t{sizes.kv_heads} * sizes.state_floats;
  for (;; chunk *= 2) {
    int64_t at = 0;
    int items = 0;
    for (int g = 0; g < num; ++g) {
      PrefixPlan::Group& to = plan.groups[g];
      to.states = prefix_states(to.spans, chunk);
      to.chunks = (to.spans + chunk - 1) / chunk;
      to.state_at = at;
      at += row_floats * to.rows * to.states;
      items += to.tiles * to.chunks;
    }
    plan.num_items = items;
    if (at <= sizes.capacity || chunk >= longest) break;
  }
  plan.chunk = chunk;
  plan.tile = sizes.tile;
  plan.num_groups = num;
}
#endif

}  // namespace sluice::cuda
