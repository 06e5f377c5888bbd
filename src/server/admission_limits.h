// What requests may take, as the command line sets it. Plain data.
#pragma once

#include <cstdint>

namespace sluice {

// What one request takes, or part of it.
struct Load {
  int64_t sequences = 0;  // prompts x choices
  int64_t tokens = 0;     // of its prompts
  int64_t bytes = 0;      // of its answer, at most, unless streamed; and of what that repeats
};

struct AdmissionLimits {
  // 0 is no limit of its own, here and below.
  Load total{512, 262'144, int64_t{1} << 30};
  Load per_key;
  Load per_request{2048, 0, int64_t{256} << 20};  // tokens: bounded by the context
};

}  // namespace sluice
