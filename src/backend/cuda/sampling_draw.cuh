// Device code: from the weights of candidates to one of them. Included by sampling.cu.
#pragma once

#include "backend/cuda/sampling_block.cuh"
#include "backend/cuda/sampling_row.cuh"

namespace sluice::cuda {

// How one row draws, apart from its temperature.
struct Draw {
  double uniform;  // in [0, 1)
  float top_p;
  int top_k, vocab;
};

// A uniform integer of [1, total].
__device__ inline uint64_t draw_weight(double uniform, uint64_t total) {
  auto all = static_cast<double>(total);
  double at = floor(__dmul_rn(uniform, all));
  return static_cast<uint64_t>(fmin(at, all - 1)) + 1;
}

// The weight that a nucleus must reach: sums are integers, so rounding up changes nothing.
__device__ inline uint64_t nucleus_weight(float top_p, uint64_t total) {
  return static_cast<uint64_t>(ceil(fmax(1.0, __dmul_rn(top_p, static_cast<double>(total)))));
}

// The first block alone, from the n candidates gathered. `target` is the nucleus' weight, or 0
// when it is a share of the top_k.
template <int kBlocks>
__device__ inline int draw_gathered(
    Block<kBlocks>& b, const Draw& how, const Weigher& weigher, int n, uint64_t target) {
  uint64_t* a = b.s.gathered;
  b.sort_down(a, n);
  if (how.top_k > 0) n = min(n, how.top_k);
  uint64_t place[2], weight[2];
  int at = 2 * b.thread;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    place[k] = at + k < n ? a[at + k] : 0;
    weight[k] = at + k < n ? weigher(logit_at(place[k])) : 0;
  }
  uint64_t total;
  uint64_t before = b.sum_before(weight[0] + weight[1], total);
  int keep = at < n ? (at + 1 < n ? 2 : 1) : 0;  // of this thread's two
  if (how.top_p < 1) {
    if (target == 0) target = nucleus_weight(how.top_p, total);
    if (before + weight[0] >= target) keep = min(keep, 1);
    if (before >= target) keep = 0;
  }
  int shift = Weigher::weight_bits(how.vocab) + 1;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    if (k < keep) a[at + k] = ~(static_cast<uint64_t>(id_at(place[k])) << shift | weight[k]);
  }
  auto kept = static_cast<int>(b.template fold_block<Fold::sum>(static_cast<uint64_t>(keep)));
  b.sort_down(a, kept);
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    place[k] = at + k < kept ? ~a[at + k] : 0;
    weight[k] = place[k] & ((uint64_t{1} << shift) - 1);
  }
  before = b.sum_before(weight[0] + weight[1], total);
  uint64_t wanted = draw_weight(how.uniform, total);
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    if (before < wanted && wanted <= before + weight[k]) {
      b.s.token = static_cast<int>(place[k] >> shift);
    }
    before += weight[k];
  }
  __syncthreads();
  return b.s.token;
}

}  // namespace sluice::cuda
