// Pooling (embeddings): one vector per request, from the final hidden states of its prompt.
// An executor notes the rows of a step whose states it needs and hands those in when the step is
// done. Owned by an executor, on the thread that makes its results.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/request.h"
#include "core/step_plan.h"

namespace sluice {

// One row of hidden states for a pooled vector.
struct PoolRow {
  int32_t row = 0;     // in the batch
  int32_t result = 0;  // in StepResult::rows
  Slot slot = 0;
  Pooling pooling = Pooling::last;
  int32_t num_prompt = 0;
  bool first = false, last = false;  // of the prompt
};

// Appends those that slice `s` asks for, if it does. at: of its first position.
void add_pool_rows(const Slice& s, PoolRow at, std::vector<PoolRow>& rows);

class Pooler {
 public:
  explicit Pooler(size_t num_slots) : sums_(num_slots) {}

  // The hidden state of a row, in ascending order of positions, whatever the chunks: the sum is
  // always the same. With the last one the vector goes to the result.
  void add(const PoolRow& p, std::span<const float> hidden, StepResult& result);

 private:
  std::vector<std::vector<double>> sums_;  // by slot [hidden], for the mean
};

}  // namespace sluice
