// Attention as its formula has it: all scores of a head in memory, a softmax of each row, then the
// product with V. What --attention naive compares the tiled kernels with.
#pragma once

#include "backend/backend.h"
#include "base/thread_pool.h"

namespace sluice {

// out [n, heads * head_dim] f32; q [n, heads * head_dim]. Tasks: a slice's heads, each with
// count x context scores of its own.
void attend_naive(ThreadPool& pool,
                  Tensor out,
                  Tensor q,
                  const AttentionSpec& spec,
                  const BatchView& batch,
                  const KvLayer& kv);

}  // namespace sluice
