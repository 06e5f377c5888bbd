#include "backend/cpu/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "backend/cpu/features.h"

namespace sluice {
namespace cpu {

void quantize_row_scalar(const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum) {
  for (int64_t b = 0; b < cols / 32; ++b, x += 32, q += 32) {
    // Compared as bits, so that infinities and NaNs come out largest.
    uint32_t bits = 0;
    for (int i = 0; i < 32; ++i) bits = std::max(bits, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
    const float absmax = std::bit_cast<float>(bits);
    sum[b] = 0;
    if (bits >= 0x7f800000u || absmax < 1e-30f) {
      std::fill(q, q + 32, int8_t{0});
      scale[b] = absmax < 1e-30f ? 0 : std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    scale[b] = absmax / 127;
    const float inverse = 127 / absmax;
    for (int i = 0; i < 32; ++i) {
      q[i] = static_cast<int8_t>(std::nearbyint(x[i] * inverse));
      sum[b] += q[i];
    }
  }
}

}  // namespace cpu

void quantize_row(const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum) {
  using Fn = void (*)(const float*, int64_t, int8_t*, float*, int32_t*);
  static const Fn fn = []() -> Fn {
#if defined(__x86_64__)
    if (cpu_features().has(kCpuAvx512)) return cpu::quantize_row_avx512;
    if (cpu_features().has(kCpuAvx2)) return cpu::quantize_row_avx2;
#elif defined(__aarch64__)
    if (cpu_features().has(kCpuNeonDot)) return cpu::quantize_row_neon;
#endif
    return cpu::quantize_row_scalar;
  }();
  fn(x, cols, q, scale, sum);
}

}  // namespace sluice
