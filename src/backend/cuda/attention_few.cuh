// Decode over 8-bit K and V where at most eight query heads share a kv head: the heads are the
// eight columns of the tensor cores' products, positions and then dimensions their 16 rows. So no
// product computes rows that nobody wants, and outputs take half the registers. All operands are in
// f16, where codes and e4m3 are exact and cheap to make; queries are divided by a power of two.
// Device code.
#pragma once

#include "backend/cuda/attention_tile.cuh"

namespace sluice::cuda {

// A thread has, of queries, those of head lane / 4; of scores, weights and outputs those of heads
// first_few(lane) and the next.
__device__ inline int first_few(int lane) { return (lane & 3) * 2; }

// Fragments of q [8, D], the right operand.
template <typename T, typename KV, int D>
struct FewQueries {
  static constexpr int kSteps = D / 16;
  uint32_t f[kSteps][2];
  float unit[2];  // what scores are multiplied with
  // With codes: where the products of a group start.
  float bias[kBiased<KV, D> ? D / 32 : 1][4];

  // q: the first head's.
  __device__ void load(const T* q, int heads, int head_dim, int lane) {
    const T* row = lane / 4 < heads ? q + lane / 4 * head_dim : nullptr;
    float most = 0;
#pragma unroll
    for (int i = 0; i < kSteps * 2; ++i) {
      int d = query_dim<KV>(i / 2, i % 2, lane);
      uint32_t x = row && d < head_dim ? *reinterpret_cast<const uint32_t*>(row + d) : 0;
      f[i / 2][i % 2] = x;
      float2 y = unpack<T>(x);
      most = fmaxf(most, fmaxf(fabsf(y.x), fabsf(y.y)));
    }
    divide(most, lane);
  }

 private:
  // Fragments in f16, by a power of two.
  __device__ void divide(float most, int lane) {
    const float own = query_unit(most), inverse = 1 / own;
    constexpr float kRaise = kBiased<KV, D> ? 0x1p24f : 1;
    const int from = first_few(lane) * 4;  // the lane that has the first head's
#pragma unroll
    for (int h = 0; h < 2; ++h) unit[h] = __shfl_sync(~0u, own, from + h * 4) * kRaise;
#pragma unroll
    for (int g = 0; g < kSteps / 2; ++g) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t& x = f[g * 2 + i / 2][i % 2];
        float2 y = unpack<T>(x);
        x = pack<__half>(y.x * inverse, y.y * inverse);
        y = unpack<__half>(x);
        sum += y.x + y.y;
      }
      if constexpr (kBiased<KV, D>) {
        sum = -128 * 0x1p-24f * quad_sum(sum);
        bias[g][0] = bias[g][2] = __shfl_sync(~0u, sum, from);
        bias[g][1] = bias[g][3] = __shfl_sync(~0u, sum, from + 4);
      }
    }
  }
};

// s [kPositions, 8] = k · qᵀ. The scales of codes lie behind k and v.
template <typename T, typename KV, int D, int kPositions>
__device__ void few_scores(float (&s)[kPositions / 16][4],
                           const FewQueries<T, KV, D>& q,
                           uint32_t k,
                           int lane) {
  using Rows = SmemRows<kPositions, D>;
  using Scales = ScaleRows<KV, D, kPositions>;
  const uint32_t scales = k + 2 * Rows::kSize + (lane >> 2) * 2;
  int row = ((lane >> 3) & 1) * 8 + (lane & 7), lane_c = lane >> 4;
#pragma unroll
  for (int n = 0; n < kPositions / 16; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
  for (int step = 0; step < D / 16; step += 2) {
#pragma unroll
    for (int n = 0; n < kPositions / 16; ++n) {
      uint32_t r[4];  // positions 0 to 7 and 8 to 15 of a chunk, then of the next
      ldmatrix(r, k + Rows::at(n * 16 + row, step, lane_c));
      const uint32_t at = scales + n * 32;
      if constexpr (std::is_same_v<KV, Codes32>) {
        const uint32_t base = kBiased<KV, D> ? 0 : 0x64646464u;
        float part[4] = {0, 0, 0, 0};
        uint32_t a[2][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a[i / 2][i % 2] = code_pair<0, 1>(r[i], base);
          a[i / 2][i % 2 + 2] = code_pair<2, 3>(r[i], base);
        }
        if constexpr (kBiased<KV, D>) {
          mma_onto(part, a[0], q.f[step][0], q.f[step][1], q.bias[step / 2]);
        } else {
#pragma unroll
          for (int i = 0; i < 8; ++i) a[i / 4][i % 4] = less_bias(a[i / 4][i % 4]);
          mma<__half>(part, a[0], q.f[step][0], q.f[step][1]);
        }
        mma<__half>(part, a[1], q.f[step + 1][0], q.f[step + 1][1]);
        const uint32_t group = at + step / 2 * Scales::kStride;
        const float w0 = scale_of(group), w1 = scale_of(group + 16);
#pragma unroll
        for (int i = 0; i < 4; ++i) s[n][i] = fmaf(part[i], i < 2 ? w0 : w1, s[n][i]);
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t x = r[half * 2], y = r[half * 2 + 1], a[4];
          if constexpr (std::is_same_v<KV, Codes8>) {
            uint32_t group = at + ((step + half) * 2 + ((lane >> 1) & 1)) * Scales::kStride;
            uint32_t u = scale_twice(group), v = scale_twice(group + 16);
            a[0] = scaled_codes<0, 1>(x, u), a[1] = scaled_codes<0, 1>(y, v);
            a[2] = scaled_codes<2, 3>(x, u), a[3] = scaled_codes<2, 3>(y, v);
          } else {
            a[0] = widen<__half, 0, 1>(x), a[1] = widen<__half, 0, 1>(y);
            a[2] = widen<__half, 2, 3>(x), a[3] = widen<__half, 2, 3>(y);
          }
          mma<__half>(s[n], a, q.f[step + half][0], q.f[step + half][1]);
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kPositions / 16; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] *= q.unit[i % 2];
  }
}

// Positions outside [lo, hi) become -inf. s[0] is at position `at`.
template <int N>
__device__ void mask_few(float (&s)[N][4], int at, int lo, int hi, int lane) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int position = at + n * 16 + half * 8 + lane / 4;
      if (position < lo || position >= hi) s[n][half * 2] = s[n][half * 2 + 1] = -INFINITY;
    }
  }
}

// online_softmax() by columns.
template <int N>
__device__ void few_softmax(float (&s)[N][4],
                            float factor,
                            SoftmaxState& state,
                            float (&alpha)[2]) {
  float top[2], shift[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    top[h] = fmaxf(s[0][h], s[0][h + 2]);
#pragma unroll
    for (int n = 1; n < N; ++n) top[h] = fmaxf(top[h], fmaxf(s[n][h], s[n][h + 2]));
#pragma unroll
    for (int i = 4; i < 32; i *= 2) top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], i));
  }
  raise_max(state, top, factor, alpha, shift);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 2 * N; ++i) {
      float& x = s[i / 2][i % 2 * 2 + h];
      x = exp2_approx(__fmaf_rn(x, factor, -shift[h]));
      sum += x;
    }
    state.sum[h] = __fmaf_rn(state.sum[h], alpha[h], sum);
  }
}

template <int N>
__device__ void rescale_few(float (&o)[N][4], const float (&alpha)[2]) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) o[n][i] *= alpha[i % 2];
  }
}

// An 8 x 8 matrix of 16-bit elements, transposed between the threads.
__device__ inline uint32_t transposed(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// o [D, 8] += vᵀ · s. Rows of o's tile n: dimensions 16 n + 2 (lane / 4) in o[n][0 and 1], the next
// in o[n][2 and 3].
template <typename KV, int D, int kPositions>
__device__ void accumulate_few(float (&o)[D / 16][4],
                               const float (&s)[kPositions / 16][4],
                               uint32_t v,
                               int lane) {
  using Rows = SmemRows<kPositions, D>;
  int row = ((lane >> 3) & 1) * 8 + (lane & 7), lane_c = lane >> 4;
#pragma unroll
  for (int n = 0; n < kPositions / 16; ++n) {
    const uint32_t b0 = transposed(pack<__half>(s[n][0], s[n][1]));
    const uint32_t b1 = transposed(pack<__half>(s[n][2], s[n][3]));
#pragma unroll
    for (int d = 0; d < D / 32; ++d) {
      uint32_t r[4], even[4], odd[4], w[4] = {};
      ldmatrix_trans(r, v + Rows::at(n * 16 + row, d * 2, lane_c));
      load_value_scales<KV, D, kPositions>(w, v, n * 16, d * 2, lane);
      widen_values<__half, KV>(even, odd, r, w);
      mma<__half>(o[d * 2], {even[0], odd[0], even[1], odd[1]}, b0, b1);
      mma<__half>(o[d * 2 + 1], {even[2], odd[2], even[3], odd[3]}, b0, b1);
    }
  }
}

}  // namespace sluice::cuda
