// How much a step computes, counted from its plan: the inputs of every model of step time. Pure.
#pragma once

#include <cstdint>

#include "core/step_plan.h"

namespace sluice {

struct StepLoad {
  int tokens = 0;        // rows of the linear layers
  int sampled = 0;       // rows of the output matrix
  int64_t context = 0;   // KV positions read: once per slice
  int64_t attended = 0;  // pairs of a query and a key
  bool operator==(const StepLoad&) const = default;
  StepLoad& operator+=(const StepLoad& o) {
    tokens += o.tokens;
    sampled += o.sampled;
    context += o.context;
    attended += o.attended;
    return *this;
  }
};

// `tokens` of a prompt from position `pos` on.
inline StepLoad chunk_load(int64_t pos, int tokens) {
  const int64_t n = tokens;
  return {
      .tokens = tokens, .sampled = 1, .context = pos + n, .attended = n * pos + n * (n + 1) / 2};
}

inline StepLoad slice_load(const Slice& s) {
  StepLoad load = chunk_load(s.pos, s.count);
  load.sampled = samples(s.want) ? 1 : 0;
  return load;
}

inline StepLoad step_load(const StepPlan& plan) {
  StepLoad w;
  for (const Slice& s : plan.slices) w += slice_load(s);
  return w;
}

}  // namespace sluice
