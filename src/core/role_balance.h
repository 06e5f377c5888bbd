// How many of several workers compute prompts for the others: the split that could carry the most
// requests of the kind that came of late within the objectives. It follows the mix of requests and
// not their number, so conductors side by side, who each see a part of them, come to the same.
// Pure, plain data. One thread.
#pragma once

#include <cstdint>

#include "core/step_cost.h"

namespace sluice {

// Means over the last requests.
struct RequestMix {
  double num = 0;             // requests, at most kMixMost
  double prompt = 0;          // seconds to compute what is not cached of a prompt, alone
  double prompt_squared = 0;  // of the same
  double tokens = 0;          // of a prompt
  double tokens_squared = 0;
  void learn(double seconds, int64_t num_tokens);
};
inline constexpr double kMixMost = 1024;

// All workers count as alike.
struct SplitSetup {
  const StepCost* cost = nullptr;  // of each; never null when asked
  double pace = 1, decode_pace = 1;
  int budget = 2048;          // tokens of a step
  int64_t kv_tokens = 0;      // positions of each one's pool; 0: unknown
  double ttft = 0, tpot = 0;  // objectives in seconds; 0: none
  double transfer = 0;        // seconds for the K and V of a token
  double output = 128;        // tokens of an output, expected
};

// Requests/s of which nine in ten keep the objectives, where `prefill` workers compute prompts and
// `decode` workers go on with them, and compute those that the others have no time for.
double split_capacity(const SplitSetup& setup, const RequestMix& mix, int prefill, int decode);

// Workers that cannot change, and those that can.
struct SplitWorkers {
  int prefill = 0, decode = 0;  // fixed
  int movable = 0;
  int moved = 0;  // of those, how many compute prompts now
};
// How many movable workers should compute prompts. It stays as it is where another split gains
// little.
int best_split(const SplitSetup& setup, const RequestMix& mix, const SplitWorkers& workers);

}  // namespace sluice
