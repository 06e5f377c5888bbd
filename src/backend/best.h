// Argmax of a row of logits, with its value: greedy decoding. Pure; any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace sluice {

// NaN is never the largest. Equal values: the lowest index.
struct Best {
  float value = -std::numeric_limits<float>::infinity();
  int32_t at = -1;  // -1: nothing above -inf

  bool beats(const Best& b) const { return value > b.value || (value == b.value && at < b.at); }
};

// Largest of x[0, n), NaN ignored; -inf when there is none.
inline float largest(const float* x, int64_t n) {
  constexpr int kLanes = 16;  // independent running maxima: four SSE or one AVX-512 register
  float lane[kLanes];
  std::fill(lane, lane + kLanes, -std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
  }
  for (int l = 0; i + l < n; ++l) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
  return *std::max_element(lane, lane + kLanes);
}

// The better of `b` and x[0, n), whose indices begin at `first`, behind those that `b` has seen or
// before them.
inline Best better(Best b, const float* x, int64_t n, int64_t first = 0) {
  constexpr int64_t kSpan = 4096;  // read twice only where there is something better: from L1
  for (int64_t at = 0; at < n; at += kSpan) {
    float value = largest(x + at, std::min(kSpan, n - at));
    if (!(value >= b.value) || value == -std::numeric_limits<float>::infinity()) continue;
    int64_t i = at;
    while (!(x[i] == value)) ++i;
    Best found{value, static_cast<int32_t>(first + i)};
    if (found.beats(b)) b = found;
  }
  return b;
}

}  // namespace sluice
