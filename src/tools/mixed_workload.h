// The lengths of a workload that others publish figures for: 256 sequences, prompts and outputs
// uniform in [100, 1024], drawn as Python's random.seed(0) and randint draw them, so that they are
// the same requests. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice {

struct MixedRequest {
  std::vector<int32_t> prompt;  // ids in [0, 10000]
  int output = 0;
};

std::vector<MixedRequest> mixed_workload(int num,
                                         int longest_input,
                                         int longest_output,
                                         uint32_t seed);

}  // namespace sluice
