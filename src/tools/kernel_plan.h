// Which kernels `bench kernels` measures, on which shapes. Plain data.
#pragma once

#include <string>
#include <vector>

#include "backend/cpu/matmul_table.h"
#include "base/result.h"
#include "model/model.h"
#include "tools/commands.h"

namespace sluice {

struct KernelCaseId {
  std::string kernel, shape_name, product;
  const MatmulRow* row = nullptr;  // null: attention
  int64_t rows = 0, cols = 0;      // of the weight
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

}  // namespace sluice
