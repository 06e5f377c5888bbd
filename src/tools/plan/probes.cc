#include "tools/plan/probes.h"

#include <algorithm>
#include <utility>

#include "base/str.h"

namespace sluice {

namespace {

// Prompts' lengths are of no special kind: kernels compute rows in tiles, so that a multiple of 128
// is cheaper than its neighbours, and hardly any request has one. Some are, as budgets are.
constexpr int kPromptLengths[] = {3,    6,    11,   13,   19,   23,   29,   37,   47,  59,
                                  83,   101,  149,  197,  256,  331,  421,  512,  683, 857,
                                  1024, 1361, 1733, 2048, 2731, 3407, 4096, 5463, 8192};

// Nor are numbers of decodes: a GPU has graphs for some, and runs others in the next larger one.
constexpr int kDecodeCounts[] = {1,  2,  3,  4,  5,  6,  8,   9,   11,  13,  16,  19,  24, 27,
                                 36, 43, 54, 67, 81, 97, 121, 151, 182, 256, 333, 409, 512};

// Requests all there from the start: a step of their prompts, chunk by chunk, then decodes.
Probe batch_probe(Probe::Kind kind, int num, int input, int output) {
  return {kind, strf("%d x %d tokens", num, input), equal_requests(num, input, output)};
}

std::vector<Probe> decode_probes(int most) {
  std::vector<Probe> out;
  for (int n : kDecodeCounts)
    if (n <= most) out.push_back(batch_probe(Probe::Kind::decodes, n, 8, 12));
  return out;
}

std::vector<Probe> prompt_probes(const SchedulerConfig& c) {
  std::vector<Probe> out;
  for (int n : kPromptLengths)
    if (n <= c.budget && n < c.max_len - 4)
      out.push_back(batch_probe(Probe::Kind::prompt, 1, n, 2));
  return out;
}

// Prompts that come while others decode.
std::vector<Probe> mixed_probes(int most, int longest) {
  std::vector<Probe> out;
  for (int users : {1, 4, 8, 16, 32, 64}) {
    if (users > most / 2) break;
    LabWorkload w = equal_requests(users, 16, 40);
    int i = 0;
    for (int input : {101, 397, 1601})
      w.push_back({.at = 0.03 * ++i, .input = std::min(longest, input), .output = 4});
    out.push_back({Probe::Kind::mixed, strf("prompts beside %d decodes", users), std::move(w)});
  }
  return out;
}

// Rows and contexts apart from each other: what K and V cost shows only in the product of both.
std::vector<Probe> context_probes(const SchedulerConfig& c, int most, int longest) {
  std::vector<std::pair<int, int>> grid;
  for (int length : {64, 128, 256, 512, 1024, 2048, 4096, 8192})
    for (int n : {1, 5, 13, 50, 256})
      if (length <= longest && n <= most &&
          static_cast<int64_t>(n) * (length + 32) <=
              static_cast<int64_t>(c.num_blocks) * c.block_size)
        grid.emplace_back(n, length);
  std::ranges::stable_sort(grid, {}, [](const auto& g) { return g.first * g.second; });
  std::vector<Probe> out;
  // Outputs long enough that all of them decode together in the end.
  for (auto [n, length] : grid)
    out.push_back(
        batch_probe(Probe::Kind::context, n, length, 16 + 3 * (n * length / c.budget) / 2));
  return out;
}

// The first one, the one in the middle, those in the middle of what is left, and so on.
std::vector<Probe> far_apart(std::vector<Probe> in) {
  std::vector<Probe> out;
  std::vector<char> taken(in.size());
  size_t step = 1;
  while (step < in.size()) step *= 2;
  for (; step > 0; step /= 2) {
    for (size_t i = 0; i < in.size(); i += step)
      if (!std::exchange(taken[i], char{1})) out.push_back(std::move(in[i]));
  }
  return out;
}

}  // namespace

std::vector<Probe> calibration_probes(const SchedulerConfig& c) {
  const int most = std::min(c.max_seqs, 512);
  const int longest = std::max(8, std::min(c.max_len / 2, 4 * c.budget));
  std::vector<std::vector<Probe>> kinds;
  kinds.push_back(far_apart(decode_probes(most)));
  kinds.push_back(far_apart(prompt_probes(c)));
  kinds.push_back(far_apart(mixed_probes(most, longest)));
  kinds.push_back(far_apart(context_probes(c, most, longest)));
  size_t longest_list = 0;
  for (const auto& k : kinds) longest_list = std::max(longest_list, k.size());
  std::vector<Probe> out;
  for (size_t i = 0; i < longest_list; ++i)
    for (auto& k : kinds)
      if (i < k.size()) out.push_back(std::move(k[i]));
  return out;
}

double probe_seconds(const LabWorkload& w, const StepCost& cost, int budget) {
  StepLoad decode;
  int outputs = 0;
  double tokens = 0, pairs = 0;
  for (const LabRequest& r : w) {
    const int64_t n = r.input;
    tokens += r.input, pairs += 0.5 * r.input * r.input;
    decode += {.tokens = 1, .sampled = 1, .context = n, .attended = n};
    outputs = std::max(outputs, r.output);
  }
  const double steps = std::max(1.0, tokens / budget);
  const StepLoad prompts{.tokens = static_cast<int>(tokens / steps),
                         .sampled = 1,
                         .context = static_cast<int64_t>(tokens / steps),
                         .attended = static_cast<int64_t>(pairs / steps)};
  return steps * cost.seconds(prompts) + outputs * cost.seconds(decode);
}

}  // namespace sluice
