// Which kernels `bench kernels` measures, on which shapes. Plain data.
#pragma once

#include <string>
#include <vector>

#include "backend/cpu/matmul/matmul_table.h"
#include "base/result.h"
#include "model/model.h"
#include "tools/commands.h"
#include "tools/bench_kernels/report.h"

namespace sluice {

struct KernelCaseId {
  std::string kernel, shape_name, product;
  const MatmulRow* row = nullptr;  // null: attention
  int64_t rows = 0, cols = 0;      // of the weight
  int times = 0;                   // that a step runs it
  ModelShape shape;
  KvType kv;
  int decode = 0;
  std::vector<int> ms;  // ascending

  std::string key(int m) const;  // KernelTiming::key()
};

// "1,8,32-34": ascending, each once.
Result<std::vector<int>> parse_ms(const std::string& text);

// What the options ask for, in the order of the tables. A name that nothing has is an error.
Result<std::vector<KernelCaseId>> kernel_cases(const BenchKernelsOptions& options,
                                               const std::vector<int>& ms);

// All matmuls of a model's step of M tokens, with one kernel.
struct StepTime {
  int m = 0;
  double seconds = 0, limit = 0;  // the limit's seconds
};
// From the rows of `cases`, which are every product of one kernel and shape; by ascending M. Above
// the M that lm_head was measured for it counts with one row: a prompt has the logits of its last
// position only. Empty where something is missing.
std::vector<StepTime> step_times(const std::vector<KernelCaseId>& cases,
                                 const std::vector<KernelTiming>& rows);

}  // namespace sluice
