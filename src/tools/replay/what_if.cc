// Recorded arrivals under other settings: simulated with costs fitted to the recorded steps. And
// the longest step that held up others, in words.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/str.h"
#include "core/policy.h"
#include "core/scheduler_state.h"
#include "core/simulation.h"
#include "core/step_cost.h"
#include "tools/commands.h"
#include "tools/replay/recorded_workload.h"
#include "tools/replay/replay.h"

namespace sluice {

namespace {

Result<void> set_one(std::string_view key, std::string_view value, SchedulerConfig& c) {
  auto bad = [&](const char* what) {
    return Error{400, strf("--what-if %.*s=%.*s: %s", static_cast<int>(key.size()), key.data(),
                           static_cast<int>(value.size()), value.data(), what)};
  };
  if (key == "order") {
    auto order = value_named(kOrders, value);
    if (!order) return bad("no such order");
    c.order = *order;
    return {};
  }
  if (key == "admission") {
    auto admission = value_named(kAdmissions, value);
    if (!admission) return bad("no such admission");
    c.admission = *admission;
    return {};
  }
  int* to = key == "budget"         ? &c.budget
            : key == "chunk"        ? &c.chunk
            : key == "mixed_budget" ? &c.mixed_budget
            : key == "max_seqs"     ? &c.max_seqs
            : key == "kv_blocks"    ? &c.num_blocks
                                    : nullptr;
  if (!to)
    return bad("settings are budget, chunk, mixed_budget, max_seqs, kv_blocks, order, admission");
  char* end = nullptr;
  std::string text(value);
  long number = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || number < 0 || number > 1 << 26)
    return bad("not a whole number from 0 to 67108864");
  *to = static_cast<int>(number);
  return {};
}

Result<SchedulerConfig> changed(SchedulerConfig c, std::string_view spec) {
  while (!spec.empty()) {
    std::string_view one = spec.substr(0, spec.find(','));
    spec.remove_prefix(std::min(spec.size(), one.size() + 1));
    size_t eq = one.find('=');
    if (eq == one.npos) return Error{400, "--what-if: settings are NAME=VALUE, with commas"};
    if (auto ok = set_one(one.substr(0, eq), one.substr(eq + 1), c); !ok) return ok.error();
  }
  c.pages.slot_blocks = 0;
  if (auto ok = check_config(c); !ok) return ok.error();
  if (auto ok = check_policies(c, true); !ok) return ok.error();
  return c;
}

double share(std::vector<double> v, double q) {
  if (v.empty()) return 0;
  std::ranges::sort(v);
  return v[std::min(v.size() - 1, static_cast<size_t>(q * static_cast<double>(v.size())))];
}

double longest_gap(const SimRun& r) {
  double most = 0;
  for (const SimAnswer& a : r.answers) most = std::max(most, seconds(a.longest_gap));
  return most;
}

void print_run(const char* name, const SimRun& r) {
  std::vector<double> ttft, tpot;
  int64_t tokens = 0;
  for (const SimAnswer& a : r.answers) {
    if (a.num_tokens == 0) continue;
    ttft.push_back(a.ttft() * 1e3);
    if (a.num_tokens > 1) tpot.push_back(a.tpot() * 1e3);
    tokens += a.num_tokens;
  }
  std::printf("  %-14s %9.1f %9.1f %9.2f %9.1f %9.1f %7llu %7llu %7d %7d\n", name, share(ttft, 0.5),
              share(ttft, 0.99), share(tpot, 0.5), longest_gap(r) * 1e3,
              r.elapsed > 0 ? static_cast<double>(tokens) / r.elapsed : 0,
              static_cast<unsigned long long>(r.num_steps),
              static_cast<unsigned long long>(r.num_preemptions), r.num_refused, r.num_expired);
}

// The step that held up decodes longest, and a setting that would have made it shorter.
void tell_stall(const RecordedWorkload& w, const SimSetup& setup) {
  std::vector<double> plain;
  const RecordedStep* worst = nullptr;
  for (const RecordedStep& s : w.steps) {
    if (s.seconds <= 0 || s.num_decode == 0) continue;
    if (s.prompt_tokens == 0) {
      plain.push_back(s.seconds);
    } else if (!worst || s.seconds > worst->seconds) {
      worst = &s;
    }
  }
  const double usual = share(plain, 0.5);
  if (!worst || plain.empty() || worst->seconds < 2 * usual) {
    std::printf("No stall: no step with a prompt took twice as long as those without (%.1f ms).\n",
                usual * 1e3);
    return;
  }
  std::printf(
      "The longest stall: step %llu took %.1f ms, steps that only decode %.1f ms. "
      "%d sequences waited for their next token while %d prompt tokens ran, %d of them "
      "request %llu's prompt from position %d on.\n",
      static_cast<unsigned long long>(worst->step), worst->seconds * 1e3, usual * 1e3,
      worst->num_decode, worst->prompt_tokens, worst->prompt_count,
      static_cast<unsigned long long>(worst->prompt), worst->prompt_pos);
  const double before = longest_gap(simulate(setup, w.requests));
  for (int chunk : {256, 128, 64, 32, 16}) {
    if (chunk >= worst->prompt_tokens) continue;
    SimSetup other = setup;
    other.scheduler.chunk = chunk;
    const double after = longest_gap(simulate(other, w.requests));
    if (after > 0.6 * before) continue;
    std::printf(
        "With --chunk %d it would not have happened: simulated, the longest gap between two "
        "tokens of a request is %.1f ms instead of %.1f ms.\n",
        chunk, after * 1e3, before * 1e3);
    return;
  }
  std::printf("No --chunk makes the longest simulated gap (%.1f ms) much shorter.\n", before * 1e3);
}

}  // namespace

int replay_what_if(const RecordingFiles& files, const ReplayOptions& o) {
  for (const RecordedRun& run : files.runs) {
    const RecordingHeader& h = run.header();
    Result<SchedulerConfig> config = changed(h.config, o.what_if);
    if (!config) return report(config.error());
    Result<RecordedWorkload> read = read_workload(run);
    if (!read) return report(read.error());
    const RecordedWorkload& w = *read;
    std::vector<TimedStep> samples;
    for (const RecordedStep& s : w.steps) {
      if (s.seconds > 0 && s.load.tokens > 0) samples.push_back({s.load, s.seconds});
    }
    std::printf("run %016llx of %s: %zu arrivals, %zu timed steps\n",
                static_cast<unsigned long long>(h.run), h.model.c_str(), w.requests.size(),
                samples.size());
    if (w.requests.empty() || samples.empty()) {
      std::printf("  too little to simulate\n");
      continue;
    }
    const CostFit fit = fit_step_cost(samples);
    std::printf(
        "  costs fitted to these steps: half of them within %.0f %%, nine in ten within "
        "%.0f %%\n",
        fit.error_p50 * 100, fit.error_p90 * 100);
    std::printf("  %-14s %9s %9s %9s %9s %9s %7s %7s %7s %7s\n", "simulated", "TTFT p50", "p99 ms",
                "TPOT p50", "gap max", "tokens/s", "steps", "preempt", "refused", "expired");
    SimSetup setup{.scheduler = h.config, .cost = fit.cost};
    print_run("as recorded", simulate(setup, w.requests));
    if (!o.what_if.empty()) {
      SimSetup other = setup;
      other.scheduler = *config;
      print_run("what if", simulate(other, w.requests));
    }
    tell_stall(w, setup);
  }
  return kExitOk;
}

}  // namespace sluice
