#include "tools/step_means.h"

#include <unordered_map>

#include "base/str.h"

namespace sluice {

std::vector<StepSample> step_samples(std::span<const StepReport> reports) {
  std::unordered_map<uint64_t, StepSample> launched;
  std::vector<StepSample> out;
  for (const StepReport& r : reports) {
    if (r.launched) {
      StepSample& s = launched[r.launched_step];
      s.work = r.work;
      s.num_requests = r.num_slices;
      s.scheduling = seconds(r.plan_end - r.plan_begin);
    }
    if (!r.completed) continue;
    auto it = launched.find(r.completed_step);
    // Launched before the first report, or a step that only closes rows.
    if (it == launched.end() || it->second.num_requests == 0) continue;
    StepSample& s = out.emplace_back(it->second);
    s.to_inference = seconds(r.begin - r.scheduled);
    s.inference = seconds(r.end - r.begin);
    s.latency = seconds(r.complete_end - r.scheduled);
    launched.erase(it);
  }
  return out;
}

StepMeans step_means(std::span<const StepSample> steps) {
  StepMeans m;
  m.num_steps = steps.size();
  if (steps.empty()) return m;
  for (const StepSample& s : steps) {
    m.num_requests += s.num_requests;
    m.num_tokens += s.work.tokens;
    m.scheduling += s.scheduling;
    m.to_inference += s.to_inference;
    m.inference += s.inference;
    m.latency += s.latency;
  }
  for (double* v :
       {&m.num_requests, &m.num_tokens, &m.scheduling, &m.to_inference, &m.inference, &m.latency})
    *v /= static_cast<double>(steps.size());
  return m;
}

std::string wde_line(int budget, uint64_t num_requests, double elapsed, const StepMeans& m) {
  const double per_step = m.num_steps > 0 ? elapsed / static_cast<double>(m.num_steps) : 0;
  return strf(
      "Batchsize %d, Throughput %.4f requests/s, Scheduling time %.4f ms, Num requests %.4f, "
      "Num batched tokens %.4f, Scheduling2inference %.4f ms, Inference time %.4f ms, "
      "Avg Latency %.4f ms, Latency %.4f ms, n_step %llu",
      budget, static_cast<double>(num_requests) / elapsed, m.scheduling * 1e3, m.num_requests,
      m.num_tokens, m.to_inference * 1e3, m.inference * 1e3, per_step * 1e3, m.latency * 1e3,
      static_cast<unsigned long long>(m.num_steps));
}

}  // namespace sluice
