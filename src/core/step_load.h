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

inline StepLoad step_load(const StepPlan& plan) {
  StepLoad w;
  for (const Slice& s : plan.slices) {
    const int64_t pos = s.pos, count = s.count;
    w.tokens += s.count;
    w.sampled += samples(s.want) ? 1 : 0;
    w.context += pos + count;
    w.attended += count * pos + count * (count + 1) / 2;
  }
  return w;
}

}  // namespace sluice
