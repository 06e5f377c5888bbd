// The bounds of spans, which attention adds up one by one (attention_spans.cuh). Device code.
#pragma once

namespace sluice::cuda {

// Positions are cut into spans at fixed places: 2^kSpanShift positions each, and from 64 spans on
// twice as many with every doubling of the position. A span's softmax starts from nothing, and a
// row's spans are folded in ascending order (RowTotal). So a row's bits do not depend on which
// block computes which of its spans, nor on the rows beside it.
inline constexpr int kSpanShift = 8;
__device__ inline int span_shift(int position) {
  return max(kSpanShift, 26 - __clz(position));  // 32 spans between 2^n and 2^(n + 1)
}
__device__ inline int span_of(int position) {
  int shift = span_shift(position);
  return (shift - kSpanShift) * 32 + (position >> shift);
}
__device__ inline int span_begin(int span) {
  int doublings = max(0, span / 32 - 1);
  return (span - doublings * 32) << (kSpanShift + doublings);
}
__device__ inline int span_end(int position) {
  int shift = span_shift(position);
  return ((position >> shift) + 1) << shift;
}

}  // namespace sluice::cuda
