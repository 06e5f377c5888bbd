#include "core/simulation.h"

#include <algorithm>

#include "base/random.h"
#include "core/simulated_worker.h"

namespace sluice {

std::vector<Token> sim_prompt(const SimRequest& r, size_t index) {
  constexpr uint64_t kMask = 0x3fffffff;
  const auto own = static_cast<Token>(mix_bits(index + 1) & kMask);
  std::vector<Token> out(static_cast<size_t>(std::max(r.input, 0)), own);
  const size_t size = static_cast<size_t>(std::max(r.block_tokens, 1));
  for (size_t b = 0; b < r.blocks.size() && b * size < out.size(); ++b) {
    const auto token = static_cast<Token>(mix_bits(~r.blocks[b]) & kMask);
    const size_t end = std::min(out.size(), (b + 1) * size);
    std::fill(out.begin() + static_cast<std::ptrdiff_t>(b * size),
              out.begin() + static_cast<std::ptrdiff_t>(end), token);
  }
  return out;
}

SimRun simulate(const SimSetup& setup, std::span<const SimRequest> workload) {
  SimulatedWorker worker(setup, false);
  for (size_t i = 0; i < workload.size(); ++i) worker.push(workload[i], i);
  worker.run_until(kNever);
  return worker.finish();
}

}  // namespace sluice
