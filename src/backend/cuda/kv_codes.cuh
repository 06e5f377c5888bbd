// Rows of K and V as int8 codes (KvType) in the layout of attention_int8.cuh. Device code.
#pragma once

#include "backend/cuda/codes.cuh"

namespace sluice::cuda {

// Values saturate where f16's do, so that a code times its scale is a finite f16.
inline constexpr float kMostScale = 515.5f;

// A warp's x [head_dim]: codes plus 128, and a scale per `group` dimensions, `stride` apart.
__device__ inline void store_kv_codes(
    const float* x, int head_dim, int group, uint8_t* codes, __half* scales, int stride) {
  int lane = static_cast<int>(threadIdx.x) % 32, first = lane * 8;
  bool in = first < head_dim;
  float v[8], most = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[i] = in ? x[first + i] : 0;
    most = larger(most, v[i]);
  }
  for (int step = 1; step < group / 8; step *= 2)
    most = larger(most, __shfl_xor_sync(0xffffffffu, most, step));
  if (!in) return;
  bool number = __float_as_uint(most) <= 0x7f800000u;
  float scale = fminf(fmaxf(most / 127, 0x1p-24f), kMostScale);
  __half half = __float2half_rn(number ? scale : __uint_as_float(0x7fc00000u));
  scale = __half2float(half);
  Pack<uint8_t, 8> q;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    int code = number ? min(max(__float2int_rn(v[i] / scale), -127), 127) : 0;
    q.v[i] = static_cast<uint8_t>(code + 128);
  }
  *reinterpret_cast<Pack<uint8_t, 8>*>(codes + first) = q;
  if (first % group == 0) scales[first / group * stride] = half;
}

}  // namespace sluice::cuda
