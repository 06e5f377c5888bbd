// Device code: rows that only take their most likely token. Some blocks share a row and nothing but
// a maximum; the last of them to finish knows the token. Included by sampling.cu.
#pragma once

#include "backend/cuda/sampling_block.cuh"
#include "backend/cuda/sampling_load.cuh"
#include "backend/cuda/sampling_row.cuh"

namespace sluice::cuda {

inline constexpr int kGreedyThreads = 256;
inline constexpr int kGreedyBlocks = 4;  // on a multiprocessor

// Grid: parts of a row, rows.
__global__ void __launch_bounds__(kGreedyThreads, kGreedyBlocks)
    greedy_kernel(const __grid_constant__ SampleArgs args) {
  OutputRow out = args.step.outputs[blockIdx.y];
  if (out.slot < 0 || !only_greedy(args, out)) return;
  RowAdjust adjust(args.rows, out.slot, mask_of(args, out));
  adjust.settle(args.step.vocab);
  int parts = static_cast<int>(gridDim.x), part = static_cast<int>(blockIdx.x);
  int chunk = ((args.step.vocab + parts - 1) / parts + 3) / 4 * 4;
  RowLoad load(args, static_cast<int>(blockIdx.y), part * chunk, chunk);
  Extent e;
  auto add = [&](int id, float4 v) { e.add_top(v, id); };
  if (adjust.any()) {
    load.each<kGreedyThreads, 2>([&](int id, float4 v) { add(id, adjust(v, id)); });
  } else {
    load.each<kGreedyThreads, 4>(add);
  }
  __shared__ uint64_t warps[kGreedyThreads / 32];
  __shared__ uint64_t best;
  __shared__ bool last;
  uint64_t mine = e.best_of_warp();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (uint64_t w : warps) mine = mine > w ? mine : w;
    last = true;
    if (parts > 1) {
      GreedyRow& row = args.rows.greedy[out.slot];
      atomicMax(reinterpret_cast<unsigned long long*>(&row.best),
                static_cast<unsigned long long>(mine));
      __threadfence();
      last = atomicAdd(&row.done, 1u) == static_cast<unsigned>(parts) - 1;
      __threadfence();
      if (last) {
        mine = atomicExch(reinterpret_cast<unsigned long long*>(&row.best), 0ull);
        row.done = 0;
      }
    }
    best = mine;
  }
  __syncthreads();
  if (!last) return;
  int token = best != 0 ? id_at(best) : adjust.lowest_allowed(args.step.vocab);
  if (threadIdx.x != 0) return;
  args.step.results[blockIdx.y] = {token, 0, 0, 0};
  remember(args.rows, out.slot, token);
}

}  // namespace sluice::cuda
