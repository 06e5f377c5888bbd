#include "runtime/step_log.h"

#include <algorithm>

#include "base/str.h"

namespace sluice {

std::optional<std::string> StepLog::add(const StepReport& r) {
  if (r.launched) {
    if (since_ == Time{0}) since_ = r.plan_begin;
    now_.plan += r.plan_end - r.plan_begin;
    now_.tokens += static_cast<uint64_t>(r.num_tokens);
  }
  if (!r.completed) return {};
  now_.step += r.end - r.begin;
  now_.complete += r.complete_end - r.complete_begin;
  if (++now_.steps < static_cast<uint64_t>(every_)) return {};
  all_.plan += now_.plan, all_.step += now_.step, all_.complete += now_.complete;
  all_.steps += now_.steps, all_.tokens += now_.tokens;
  auto ms = [](Time sum, uint64_t n) { return seconds(sum) * 1e3 / static_cast<double>(n); };
  auto part = [&](const char* name, Time now, Time all) {
    return strf("%s %.3f ms (%.3f since the start, %.1f s in all)", name, ms(now, now_.steps),
                ms(all, all_.steps), seconds(all));
  };
  const SchedulerStats& s = r.stats;
  const double wall = std::max(seconds(r.complete_end - since_), 1e-9);
  const Time host = now_.plan + now_.complete;
  std::string line = strf(
      "steps %llu to %llu: %d of %d running, %d waiting, KV %.0f %%, %.1f steps/s, %.0f tokens/s; ",
      static_cast<unsigned long long>(all_.steps - now_.steps + 1),
      static_cast<unsigned long long>(all_.steps), s.num_running, max_seqs_, s.num_waiting,
      s.total_blocks > 0 ? 100.0 * (s.total_blocks - s.available_blocks) / s.total_blocks : 0.0,
      static_cast<double>(now_.steps) / wall, static_cast<double>(now_.tokens) / wall);
  line += part("plan", now_.plan, all_.plan) + ", " + part("step", now_.step, all_.step) + ", " +
          part("complete", now_.complete, all_.complete);
  line += strf("; host %.2f %% of both",
               100 * seconds(host) / std::max(seconds(host + now_.step), 1e-12));
  now_ = {};
  since_ = r.complete_end;
  return line;
}

}  // namespace sluice
