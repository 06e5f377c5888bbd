// How attention adds up a row's positions where bits may not depend on the batch, on chunking, or
// on whether the row is a decode. Device code.
#pragma once

#include "backend/cuda/attention_tile.cuh"
#include "backend/cuda/span_places.cuh"

namespace sluice::cuda {

// The spans of a row so far. Adding a span that the row does not see changes no bit, and neither
// does adding a total to an empty one.
struct RowTotal {
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};

  // Adds a span whose sum is over all threads; returns in keep and take what output so far and the
  // span's are multiplied with: add_span().
  __device__ void add(const float (&span_max)[2],
                      const float (&span_sum)[2],
                      float (&keep)[2],
                      float (&take)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = fmaxf(max[h], span_max[h]), shift = top == -INFINITY ? 0 : top;
      keep[h] = exp2_approx(__fsub_rn(max[h], shift));
      take[h] = exp2_approx(__fsub_rn(span_max[h], shift));
      max[h] = top;
      sum[h] = __fmaf_rn(span_sum[h], take[h], __fmul_rn(sum[h], keep[h]));
    }
  }
  __device__ void add(const SoftmaxState& span, float (&keep)[2], float (&take)[2]) {
    const float sums[2] = {quad_sum(span.sum[0]), quad_sum(span.sum[1])};
    add(span.max, sums, keep, take);
  }
};

__device__ inline float add_span(float total, float span, float keep, float take) {
  return __fmaf_rn(span, take, __fmul_rn(total, keep));
}

}  // namespace sluice::cuda
