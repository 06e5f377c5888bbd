#include "tools/mixed_workload.h"

#include <numeric>

#include <gtest/gtest.h>

namespace sluice {
namespace {

// Totals and first values of Python 3.11:
//   random.seed(0)
//   prompts = [[randint(0, 10000) for _ in range(randint(100, 1024))] for _ in range(256)]
//   outputs = [randint(100, 1024) for _ in range(256)]
TEST(MixedWorkload, IsTheOneThatPythonDraws) {
  std::vector<MixedRequest> w = mixed_workload(256, 1024, 1024, 0);
  int64_t in = 0, out = 0, sum = 0;
  for (const MixedRequest& r : w) {
    in += static_cast<int64_t>(r.prompt.size());
    out += r.output;
    sum = std::accumulate(r.prompt.begin(), r.prompt.end(), sum);
  }
  EXPECT_EQ(in, 142827);
  EXPECT_EQ(out, 133966);
  EXPECT_EQ(sum, 712773398);
  EXPECT_EQ(w[0].prompt.size(), 964u);
  EXPECT_EQ(w[0].prompt[0], 6311);
  EXPECT_EQ(w[255].output, 312);
}

}  // namespace
}  // namespace sluice
