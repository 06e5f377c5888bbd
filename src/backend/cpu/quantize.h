// Activations to int8, in blocks of 32 or 256 or by whole rows, as QuantView, SuperQuantView and
// RowQuantView (backend.h) define them. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

struct Act;

// cols a multiple of 32. scale = absmax / 127; q = x * (127 / absmax) to nearest even, so q lies in
// [-127, 127]; sum is the block's integer sum. A block with absmax < 1e-30 becomes zero; one that
// holds an infinity or a NaN gets q = 0 and a NaN scale, so that what reads it shows the fault.
// All versions give the same bits.
void quantize_row(const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum);

// The same with the whole row as one block: one scale, one sum.
void quantize_whole_row(const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum);

// The same in blocks of 256, with a sum of every 16. cols a multiple of 256.
void quantize_supers(const float* x, int64_t cols, int8_t* q, float* scale, int16_t* sum);

// Fills columns [first, first + cols) of out.q and out.s, where they are wanted, from y [cols];
// whole blocks of either.
void quantize_blocks(const Act& out, int64_t row, int64_t first, const float* y, int64_t cols);

namespace cpu {
// What the largest magnitude of a block makes of it. It is given as bits: compared as integers,
// infinities and NaNs come out largest.
struct Int8Scale {
  float scale, inverse;
  bool zero;  // so are all q
};
[[gnu::always_inline]] inline Int8Scale int8_scale(uint32_t bits) {
  float absmax;
  __builtin_memcpy(&absmax, &bits, sizeof(absmax));
  if (bits >= 0x7f800000u) return {__builtin_nanf(""), 0, true};
  if (absmax < 1e-30f) return {0, 0, true};
  return {absmax / 127, 127 / absmax, false};
}

void quantize_row_scalar(const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum);
void quantize_row_avx2(const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum);
void quantize_row_avx512(const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum);
void quantize_row_neon(const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum);
void quantize_whole_row_scalar(const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum);
void quantize_whole_row_avx2(const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum);
void quantize_whole_row_avx512(const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum);
void quantize_whole_row_neon(const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum);
void quantize_supers_scalar(const float* x, int64_t cols, int8_t* q, float* scale, int16_t* sum);
void quantize_supers_avx2(const float* x, int64_t cols, int8_t* q, float* scale, int16_t* sum);
void quantize_supers_avx512(const float* x, int64_t cols, int8_t* q, float* scale, int16_t* sum);
void quantize_supers_neon(const float* x, int64_t cols, int8_t* q, float* scale, int16_t* sum);
}  // namespace cpu

}  // namespace sluice
