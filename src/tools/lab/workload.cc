#include "tools/lab/workload.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace sluice {

LabWorkload equal_requests(int num, int input, int output) {
  return LabWorkload(static_cast<size_t>(num), {.input = input, .output = output});
}

LabWorkload few_long_outputs(int num, int input, int every, int long_output, int short_output) {
  LabWorkload w = equal_requests(num, input, short_output);
  for (size_t i = 0; i < w.size(); i += static_cast<size_t>(every)) w[i].output = long_output;
  return w;
}

LabWorkload lognormal_outputs(int num, int input, int median, int most, uint64_t seed) {
  LabWorkload w = equal_requests(num, input, 0);
  for (size_t i = 0; i < w.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const double u = 1 - draw_double({seed, 1, at, 0}), v = draw_double({seed, 1, at, 1});
    const double normal = std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v);
    w[i].output = static_cast<int>(std::clamp(median * std::exp(normal), 4.0, double(most)));
  }
  return w;
}

LabWorkload poisson_arrivals(LabWorkload w, double rate, uint64_t seed) {
  double at = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    at -= std::log(1 - draw_double({seed, 2, static_cast<int64_t>(i), 0})) / rate;
    w[i].at = at;
  }
  return w;
}

LabWorkload prompts_into_decodes(
    int users, int input, int output, int prompts, int prompt_input, double gap) {
  LabWorkload w = equal_requests(users, input, output);
  for (int i = 0; i < prompts; ++i)
    w.push_back({.at = gap * (i + 1), .input = prompt_input, .output = 1});
  return w;
}

LabWorkload shared_prefixes(int num, int groups, int prefix, int input, int output) {
  LabWorkload w = equal_requests(num, prefix + input, output);
  for (size_t i = 0; i < w.size(); ++i) {
    w[i].prefix = prefix;
    w[i].group = static_cast<int>(i) % groups;
  }
  return w;
}

}  // namespace sluice
