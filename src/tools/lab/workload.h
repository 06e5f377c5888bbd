// Requests of an experiment: when each comes and how long it is. Pure functions of their
// arguments. For tools/lab.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice {

struct LabRequest {
  double at = 0;  // seconds after the start
  int input = 0, output = 0;
  int prefix = 0, group = 0;  // its first `prefix` tokens are those of all requests of its group
  std::vector<uint64_t> blocks = {};  // of a trace (TraceEntry): equal ids, equal tokens
  int block_tokens = 512;             // of each of them
};
using LabWorkload = std::vector<LabRequest>;

// All at the start.
LabWorkload equal_requests(int num, int input, int output);
// One in `every` is long, the others are short.
LabWorkload few_long_outputs(int num, int input, int every, int long_output, int short_output);
// Outputs log-normal with that median and sigma 1, in [4, most].
LabWorkload lognormal_outputs(int num, int input, int median, int most, uint64_t seed);
// Exponential gaps, `rate` requests per second.
LabWorkload poisson_arrivals(LabWorkload requests, double rate, uint64_t seed);
// `users` decode from the start, and a long prompt comes every `gap` seconds.
LabWorkload prompts_into_decodes(
    int users, int input, int output, int prompts, int prompt_input, double gap);
// Every prompt is one of `groups` prefixes and `input` tokens of its own.
LabWorkload shared_prefixes(int num, int groups, int prefix, int input, int output);

}  // namespace sluice
