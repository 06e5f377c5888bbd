#include "tools/plan/calibrate.h"

#include <algorithm>
#include <chrono>
#include <unordered_map>

#include "base/str.h"
#include "runtime/placement.h"
#include "runtime/session.h"
#include "tools/cpu_limits.h"
#include "tools/lab/files.h"
#include "tools/lab/run.h"
#include "tools/lab/workload.h"

namespace sluice {

namespace {

constexpr double kLongHost = 5e-3;  // between two steps: the engine waited, it did not compute

struct Probe {
  std::string what;
  LabWorkload requests;
};

// Requests all there from the start: a step of their prompts, chunk by chunk, then decodes.
Probe batch_probe(int num, int input, int output) {
  return {strf("%d x %d tokens", num, input), equal_requests(num, input, output)};
}

// Prompts' lengths are of no special kind: kernels compute rows in tiles, so that a multiple of 128
// is cheaper than its neighbours, and hardly any request has one. Some are, as budgets are.
constexpr int kPromptLengths[] = {3,    6,    11,   13,   19,   23,   29,   37,   47,  59,
                                  83,   101,  149,  197,  256,  331,  421,  512,  683, 857,
                                  1024, 1361, 1733, 2048, 2731, 3407, 4096, 5463, 8192};

// Nor are numbers of decodes: a GPU has graphs for some, and runs others in the next larger one.
constexpr int kDecodeCounts[] = {1,  2,  3,  4,  5,  6,  8,   9,   11,  13,  16,  19,  24, 27,
                                 36, 43, 54, 67, 81, 97, 121, 151, 182, 256, 333, 409, 512};

// What a calibration runs, the quickest first: decodes by their number, prompts by their length,
// prompts that come while others decode, then long contexts.
std::vector<Probe> probes_for(const SchedulerConfig& c) {
  const int most = std::min(c.max_seqs, 512), len = c.max_len;
  const int longest = std::max(8, std::min(len / 2, 4 * c.budget));
  std::vector<Probe> out;
  for (int n : kDecodeCounts)
    if (n <= most) out.push_back(batch_probe(n, 8, 12));
  for (int n : kPromptLengths)
    if (n <= c.budget && n < len - 4) out.push_back(batch_probe(1, n, 2));
  for (int users : {1, 4, 8, 16, 32, 64}) {
    if (users > most / 2) break;
    LabWorkload w = equal_requests(users, 16, 40);
    int i = 0;
    for (int input : {101, 397, 1601})
      w.push_back({.at = 0.03 * ++i, .input = std::min(longest, input), .output = 4});
    out.push_back({strf("prompts beside %d decodes", users), std::move(w)});
  }
  // Rows and contexts apart from each other: what K and V cost shows only in the product of both.
  std::vector<std::pair<int, int>> grid;
  for (int length : {64, 128, 256, 512, 1024, 2048, 4096, 8192})
    for (int n : {1, 5, 13, 50, 256})
      if (length <= longest && n <= most &&
          static_cast<int64_t>(n) * (length + 32) <=
              static_cast<int64_t>(c.num_blocks) * c.block_size)
        grid.emplace_back(n, length);
  std::ranges::stable_sort(grid, {}, [](const auto& g) { return g.first * g.second; });
  // Outputs long enough that all of them decode together in the end.
  for (auto [n, length] : grid)
    out.push_back(batch_probe(n, length, 16 + 3 * (n * length / c.budget) / 2));
  return out;
}

// Seconds that a probe will take, by a cost.
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

}  // namespace

std::vector<TimedStep> timed_steps(std::span<const StepReport> reports) {
  struct Launched {
    StepLoad load;
    Time at{0};
  };
  std::unordered_map<uint64_t, Launched> launched;
  std::vector<TimedStep> out;
  Time last_end{0};
  for (const StepReport& r : reports) {
    if (r.launched) launched[r.launched_step] = {r.work, r.plan_end};
    if (!r.completed) continue;
    auto it = launched.find(r.completed_step);
    if (it != launched.end() && it->second.load.tokens > 0) {
      const Time from = std::max(it->second.at, last_end);
      if (r.end > from && !r.failed) out.push_back({it->second.load, seconds(r.end - from)});
    }
    last_end = std::max(last_end, r.end);
    if (it != launched.end()) launched.erase(it);
  }
  return out;
}

StepKinds step_kinds(std::span<const TimedStep> steps, const StepCost& cost) {
  StepKinds out = {{{.name = "decodes"}, {.name = "prompts"}, {.name = "both"}}};
  for (const TimedStep& s : steps) {
    // Of a prompt at most one token is sampled; several prompts count as both.
    const bool decodes = s.load.tokens == s.load.sampled;
    StepKind& k = out[decodes ? 0 : s.load.sampled <= 1 ? 1 : 2];
    ++k.num;
    k.predicted += cost.seconds(s.load);
    k.measured += s.seconds;
  }
  return out;
}

HostCost fit_host_cost(std::span<const StepReport> reports) {
  std::vector<double> ata(4), aty(2);
  for (size_t i = 1; i < reports.size(); ++i) {
    const StepReport &before = reports[i - 1], &r = reports[i];
    if (!before.completed || !r.launched || r.num_slices == 0) continue;
    const double s = seconds(r.plan_end - before.complete_begin), n = r.num_slices;
    if (!(s > 0) || s > kLongHost) continue;
    const double w = 1 / (s * s);
    ata[0] += w, ata[1] += w * n, ata[2] += w * n, ata[3] += w * n * n;
    aty[0] += w * s, aty[1] += w * s * n;
  }
  const std::vector<double> x = nonneg_least_squares(ata, aty);
  return {x[0], x[1]};
}

EngineOptions calibration_options(EngineOptions o) {
  o.scheduler.prefix_cache = false;
  o.scheduler.slo = {};
  // Prompts fill steps also beside decodes, so that all sizes of steps are seen.
  if (o.step_sizes) o.step_sizes->chunk = o.step_sizes->mixed_budget = 0;
  o.record_metrics = true;
  return o;
}

Result<CostFile> calibrate(Session& s,
                           double limit,
                           const std::function<void(const std::string&, double)>& progress) {
  using std::chrono::steady_clock;
  const auto begin = steady_clock::now();
  const auto spent = [&] {
    return std::chrono::duration<double>(steady_clock::now() - begin).count();
  };
  const SchedulerConfig& c = s.options().scheduler;
  LabSetup setup;
  std::vector<TimedStep> steps;
  std::vector<StepReport> reports;
  const std::vector<Probe> probes = probes_for(c);
  CostFit fit;
  // Again and again while there is time: the first round says how long each probe takes. What does
  // not fit the time that is left is left out.
  bool any = true;
  for (uint64_t round = 0; any && (round == 0 || spent() < limit); ++round) {
    any = false;
    for (const Probe& p : probes) {
      if (!steps.empty() && spent() + probe_seconds(p.requests, fit.cost, c.budget) > limit)
        continue;
      progress(p.what, std::min(1.0, spent() / limit));
      setup.warm = steps.empty();
      Result<LabRun> run = run_lab_on(s, setup, p.requests, 1000 + round * probes.size());
      if (!run) return run.error();
      any = true;
      for (const TimedStep& t : timed_steps(run->reports)) steps.push_back(t);
      reports.insert(reports.end(), run->reports.begin(), run->reports.end());
      if (round == 0 || &p == &probes.back()) fit = fit_step_cost(steps);
    }
  }
  fit = fit_step_cost(steps);
  const HostCost host = fit_host_cost(reports);
  const ModelShape& shape = s.model().shape();
  CostFile f;
  f.model = s.options().model;
  f.format = cost_format(f.model, random_format(s.options()));
  f.types = weight_types(s.options());
  f.arch = shape.arch;
  f.layers = shape.num_layers, f.hidden = shape.hidden, f.vocab = shape.vocab;
  f.device = s.options().device.is_gpu() ? s.options().device.name() : "cpu";
  f.threads = num_threads(s.options());
  f.machine = s.backend().describe() + "; " + machine_line(s.options().threads.value_or(0));
  f.measured = utc_now();
  f.kv_token = static_cast<double>(s.ledger().kv_per_token);
  f.memory = static_cast<double>(s.ledger().available);
  f.num_steps = static_cast<int>(steps.size());
  f.error_p50 = fit.error_p50, f.error_p90 = fit.error_p90;
  f.cost = fit.cost;
  f.cost.host_step = host.step, f.cost.host_slice = host.slice;
  return f;
}

}  // namespace sluice
