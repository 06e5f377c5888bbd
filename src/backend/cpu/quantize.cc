#include "backend/cpu/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "backend/backend.h"
#include "backend/cpu/features.h"

namespace sluice {
namespace cpu {

void quantize_whole_row_scalar(
    const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum) {
  uint32_t bits = 0;
  for (int64_t i = 0; i < cols; ++i)
    bits = std::max(bits, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  const Int8Scale s = int8_scale(bits);
  *scale = s.scale;
  *sum = 0;
  if (s.zero) {
    std::fill(q, q + cols, int8_t{0});
    return;
  }
  for (int64_t i = 0; i < cols; ++i) {
    q[i] = static_cast<int8_t>(std::nearbyint(x[i] * s.inverse));
    *sum += q[i];
  }
}

void quantize_row_scalar(const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum) {
  for (int64_t b = 0; b < cols / 32; ++b) {
    quantize_whole_row_scalar(x + 32 * b, 32, q + 32 * b, scale + b, sum + b);
  }
}

void quantize_supers_scalar(const float* x, int64_t cols, int8_t* q, float* scale, int16_t* sum) {
  for (int64_t b = 0; b < cols / 256; ++b, q += 256) {
    int32_t whole;
    quantize_whole_row_scalar(x + 256 * b, 256, q, scale + b, &whole);
    for (int i = 0; i < 16; ++i) {
      *sum++ = static_cast<int16_t>(std::accumulate(q + 16 * i, q + 16 * i + 16, 0));
    }
  }
}

}  // namespace cpu

namespace {

using Fn = void (*)(const float*, int64_t, int8_t*, float*, int32_t*);
using SupersFn = void (*)(const float*, int64_t, int8_t*, float*, int16_t*);

struct Fns {
  Fn blocks, whole;
  SupersFn supers;
};

const Fns& fns() {
  static const Fns chosen = []() -> Fns {
#if defined(__x86_64__)
    if (cpu_features().has(kCpuAvx512))
      return {cpu::quantize_row_avx512, cpu::quantize_whole_row_avx512,
              cpu::quantize_supers_avx512};
    if (cpu_features().has(kCpuAvx2))
      return {cpu::quantize_row_avx2, cpu::quantize_whole_row_avx2, cpu::quantize_supers_avx2};
#elif defined(__aarch64__)
    if (cpu_features().has(kCpuNeonDot))
      return {cpu::quantize_row_neon, cpu::quantize_whole_row_neon, cpu::quantize_supers_neon};
#endif
    return {cpu::quantize_row_scalar, cpu::quantize_whole_row_scalar, cpu::quantize_supers_scalar};
  }();
  return chosen;
}

}  // namespace

void quantize_row(const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum) {
  fns().blocks(x, cols, q, scale, sum);
}

void quantize_whole_row(const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum) {
  fns().whole(x, cols, q, scale, sum);
}

void quantize_supers(const float* x, int64_t cols, int8_t* q, float* scale, int16_t* sum) {
  fns().supers(x, cols, q, scale, sum);
}

void quantize_blocks(const Act& out, int64_t row, int64_t first, const float* y, int64_t cols) {
  if (out.s.q) {
    const int64_t at = row * out.s.cols + first;
    quantize_supers(y, cols, out.s.q + at, out.s.scale + at / kActSuper, out.s.sum + at / kActSum);
  }
  if (out.q.q) {
    const int64_t at = row * out.q.cols + first, block = at / kActBlock;
    quantize_row(y, cols, out.q.q + at, out.q.scale + block, out.q.sum + block);
  }
}

}  // namespace sluice
